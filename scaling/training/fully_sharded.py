"""The step of torch's fully_shard (FSDP2): each rank keeps a shard of each parameter, its gradient and state.

torch shows nothing of its exchange: it is part of `forward` and `backward`. For the checks this rank's
gradients are computed once more, without FSDP. Reference: Y. Zhao et al., "PyTorch FSDP", arXiv 2304.11277.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo

from scaling.errors import CheckpointError, LaunchError, StudyError
from scaling.measure.phases import UNMARKED, Marks
from scaling.process_group import TorchGroup
from scaling.training.compute import FLOAT32, Compute, checkpointed_layers
from scaling.training.exchanges import recomputed_exchanges, repeatable_gradients
from scaling.training.gradients import AS_THEY_ARE, GradientSettings, GradientTreatment
from scaling.training.optimizers import OptimizerSettings, set_learning_rate
from scaling.training.replica import Replica, dtype_name, local, take_passes, whole
from scaling.training.step import TrainingStep
from scaling.workloads.base import Loss, cross_entropy


class ShardedReplica(Replica):
    """`layout` has the whole shapes. Collective to make. `shard_ranks`: neighbouring ranks that share a
    replica; None: all; `bytes_sent`: per rank in a step, as torch fills shards up; the last dimension of
    `mesh` has the ranks that share a replica."""

    def __init__(
        self,
        module: nn.Module,
        group: TorchGroup,
        *,
        reshard_after_forward: bool | int = True,
        shard_ranks: int | None = None,
        loss: Loss = cross_entropy,
        compute: Compute = FLOAT32,
    ) -> None:
        super().__init__(module, loss, compute)
        if len(self.dtypes) > 1:
            name = "fsdp2" if shard_ranks is None else "hsdp"
            raise StudyError(
                f"aggregator {name!r} takes parameters of one dtype, and the model has "
                f"{' and '.join(map(dtype_name, self.dtypes))}; store them alike, or use zero1 or zero2"
            )
        self._unsharded = copy.deepcopy(module).to("meta")
        shapes = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        mesh = self.mesh = _mesh(group, self.trainable[0].device.type, shard_ranks)
        n = mesh.size(mesh.ndim - 1)
        replicas = group.world_size // n
        kept_by = reshard_after_forward
        is_grouped = not isinstance(kept_by, bool) and kept_by < n
        in_group = kept_by if is_grouped else n
        blocks = [block for block in checkpointed_layers(module) if any(True for _ in block.parameters())]
        in_blocks = {id(parameter) for block in blocks for parameter in block.parameters()}
        gathered_again = {
            name
            for name, parameter in module.named_parameters()
            if kept_by and name in shapes and id(parameter) in in_blocks
        }
        again = n - n // in_group  # shards that the second gather sends
        self.bytes_sent = sum(
            ((2 * (n - 1) + again * (name in gathered_again)) * replicas + 2 * (replicas - 1))
            * _shard_elements(shapes[name], n)
            * parameter.itemsize
            // replicas
            for name, parameter in zip(self.layout.names, self.trainable, strict=True)
        )
        with _kept_in_groups(_mesh(group, mesh.device_type, in_group)) if is_grouped else nullcontext():
            for block in blocks:
                fully_shard(block, mesh=mesh, reshard_after_forward=bool(kept_by))
        fully_shard(module, mesh=mesh)
        self.shards = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.trainable: list[Any] = [local(shard.detach()) for shard in self.shards]

    def full_parameters(self) -> list[Tensor]:
        return [whole(shard.detach()) for shard in self.shards]

    def backward(self, loss: Tensor, *, adding: bool = False) -> None:
        if not adding:
            for shard in self.shards:  # the module's own are whole ones between the passes
                shard.grad = None
        loss.backward()  # type: ignore[no-untyped-call]

    def local_gradients(
        self, inputs: Tensor, targets: Tensor, parameters: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """This rank's gradients of a batch, a multiple of the micro-batches, by whole parameters."""
        leaves = [parameter.clone().requires_grad_() for parameter in parameters]
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        frozen = {name: p for name, p in self.module.named_parameters() if not p.requires_grad}
        tensors = {**dict(zip(self.layout.names, leaves, strict=True)), **buffers, **frozen}
        count = self.compute.accumulate
        for micro_inputs, micro_targets in zip(inputs.chunk(count), targets.chunk(count), strict=True):
            call = partial(torch.func.functional_call, self._unsharded, tensors)
            (self.forward(micro_inputs, micro_targets, call) / count).backward()  # type: ignore[no-untyped-call]
        return [parameter.grad for parameter in leaves]


class FullyShardedStep(TrainingStep):
    replica: ShardedReplica

    def __init__(
        self,
        replica: ShardedReplica,
        settings: OptimizerSettings,
        group: TorchGroup,
        gradients: GradientSettings = AS_THEY_ARE,
    ) -> None:
        if group.through_host:
            raise LaunchError("fsdp2 needs a GPU for each worker; use zero2, or fewer workers")
        self.replica, self._group = replica, group
        self.treatment = GradientTreatment(gradients, replica.compute, replica.trainable[0].device)
        self._optimizer = settings.optimizer(replica.shards)
        self._state_names = settings.state_names

    @property
    def optimizer_state_bytes(self) -> int:
        return sum(values.nbytes for values in self._state().values())

    def set_learning_rate(self, rate: float) -> None:
        set_learning_rate(self._optimizer, rate)

    def _state(self) -> dict[str, Tensor]:
        """The optimizer's tensors on this rank; none before the first step."""
        return {
            f"{name}/{number}": local(values)
            for number, shard in enumerate(self.replica.shards)
            for name in self._state_names
            if (values := self._optimizer.state.get(shard, {}).get(name)) is not None
        }

    def state_dict(self) -> dict[str, Any]:
        return self._saved({}, {name: values.clone() for name, values in self._state().items()})

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """CheckpointError: its shards are of another world size, or of another model; nothing is changed."""
        module = {name: local(values.detach()) for name, values in self.replica.module.state_dict().items()}
        for name, values in module.items():
            saved = state["module"].get(name)
            if saved is None or saved.shape != values.shape:
                raise CheckpointError(
                    f"the saved shards of fsdp2 are of another world size or model: {name!r} has shape "
                    f"{list(values.shape)} here and {saved if saved is None else list(saved.shape)} there; "
                    "continue with what it was saved with, or begin anew"
                )
        for name, values in module.items():
            values.copy_(state["module"][name])
        for number, shard in enumerate(self.replica.shards):
            for name in self._state_names:
                self._load_update(shard, name, state["update"].get(f"{name}/{number}"))
        self.treatment.load_state_dict(state.get("scale", {}))

    def _load_update(self, shard: Tensor, name: str, saved: Tensor | None) -> None:
        """One tensor of the optimizer's state; one that is not there before the first step is made."""
        values = self._optimizer.state.get(shard, {}).get(name)
        if values is None and saved is not None:
            is_shard = saved.shape == local(shard.detach()).shape
            values = torch.zeros_like(shard) if is_shard else torch.zeros_like(saved, device=shard.device)
            self._optimizer.state[shard][name] = values
        if values is not None:
            local(values).zero_() if saved is None else local(values).copy_(saved)

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        replica, local_gradients = self.replica, None
        if self.record is not None:
            compute = partial(replica.local_gradients, inputs, targets, replica.full_parameters())
            like, autocast = replica.full_parameters(), replica.compute.autocast
            local_gradients = repeatable_gradients(compute, like, self._group.largest, autocast)
        last_only: Any = replica.module.set_requires_gradient_sync
        loss = take_passes(replica, inputs, targets, marks, self.treatment.scaled, around=last_only)
        if self.record is not None and local_gradients is not None:
            means = [
                torch.zeros(shape, dtype=shard.dtype, device=shard.device)  # the loss does not depend on it
                if shard.grad is None
                else whole(shard.grad)
                for shard, shape in zip(replica.shards, replica.layout.shapes, strict=True)
            ]
            self.record += recomputed_exchanges(
                replica.layout.names, local_gradients, means, replica.compute.autocast
            )
        if self.treatment.waits_for_all:
            shards = [local(shard.grad) for shard in replica.shards if shard.grad is not None]
            self.treatment.before_update(shards, marks.phase, self._add_up)
        with marks.phase("update"):
            self._optimizer.step()
        self._group.meter.count(replica.bytes_sent, 0)
        return loss

    def _add_up(self, tensor: Tensor) -> None:
        mesh = self.replica.mesh
        if mesh.ndim == 1:
            self._group.all_reduce(tensor)
        else:
            dist.all_reduce(tensor, group=mesh.get_group(1))


def _mesh(group: TorchGroup, device: str, shard_ranks: int | None) -> DeviceMesh:
    """Of all ranks, or of replicas by shards. Collective. torch keeps meshes that are equal; the name tells a
    group that was made anew after a failure."""
    n, name = group.world_size, f"shards of {group.data.group_name}"
    num_shards = n if shard_ranks is None else math.gcd(shard_ranks, n)
    if num_shards == n:
        return DeviceMesh.from_group(group.data, device, mesh_dim_names=(name,))
    ranks = torch.arange(n).view(-1, num_shards)
    backend, groups = dist.get_backend(group.data), []
    for lines in (ranks.T, ranks):  # replicas of a shard, shards of a replica
        made = [dist.new_group(line, backend=backend) for line in lines.tolist()]
        groups += [made[index] for index, line in enumerate(lines.tolist()) if group.rank in line]
    names = (f"replicas of {group.data.group_name}", name)
    return DeviceMesh.from_group(groups, device, mesh=ranks, mesh_dim_names=names)


@contextmanager
def _kept_in_groups(mesh: DeviceMesh) -> Iterator[None]:
    """Modules that are sharded here are kept by the shards of that mesh between the passes. Given a number of
    ranks, torch would make groups with the backend of the default group, which is Gloo here."""
    info = HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)
    with patch.object(_fully_shard, "_get_post_forward_mesh_info", return_value=info):
        yield


def _shard_elements(shape: Sequence[int], world_size: int) -> int:
    """Of the largest shard: torch cuts the first dimension."""
    rows, *rest = shape or (1,)
    return -(-rows // world_size) * math.prod(rest)
