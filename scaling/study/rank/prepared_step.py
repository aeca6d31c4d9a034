"""A cell's training step on one rank: built, checked, and described for the record of the run."""

from __future__ import annotations

import hashlib
from typing import cast

import torch
from torch import Tensor, nn

from scaling.aggregators.registry import create as create_aggregator
from scaling.bucket import shapes_by_dtype_text
from scaling.errors import ExchangeError
from scaling.process_group import Group
from scaling.study.cell import TIMING_BATCHES, Cell
from scaling.study.rank.context import RankSummary, RunContext
from scaling.training.batch_norm import synchronized
from scaling.training.by_tensor import ByTensorStep
from scaling.training.captured import CapturedStep
from scaling.training.compute import AUTOCAST, Compute, with_channels_last, with_checkpointing
from scaling.training.ddp import DdpSettings
from scaling.training.gradients import WIRES, ClippedGradient, GradientSettings
from scaling.training.layered import LayeredStep
from scaling.training.local_updates import LocalStep, OneBlock
from scaling.training.optimizers import AdamSettings, OptimizerSettings, SgdSettings
from scaling.training.outer_updates import OuterName, outer_update
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep, TrainingStep
from scaling.training.step_check import FIRST_STEPS, LATER_STEPS, StepCheck
from scaling.workloads.registry import create_model
from scaling.workloads.sampling import epoch_batches, shard

UNUSED_BUCKET_MB = 25.0  # of a step without DDP


class PreparedStep:
    """The step of one cell, of which `check` has seen the first ones. Collective."""

    def __init__(self, cell: Cell, context: RunContext) -> None:
        self._cell, self._context = cell, context
        self.splits = context.loaded.data(cell)
        self.step = build_step(cell, context)
        aggregator = create_aggregator(cell.aggregator, cell.aggregator_parameters)
        checked, settings = self.step, settings_of(cell)
        if isinstance(checked, LocalStep):
            settings, checked = checked.outer.settings, OneBlock(checked)
        self.check = StepCheck(checked, aggregator, settings, context.group)

    def check_first_steps(self) -> None:
        """Before anything is measured, unless the command has done so in another repeat."""
        if not self._context.is_checked:
            self._check_steps(FIRST_STEPS)

    def check_later_steps(self) -> None:
        """After the samples were taken, or before a checkpoint is: the replicas too."""
        self.check.replicas()
        self._check_steps(LATER_STEPS)

    def own_batches(self) -> Tensor:
        """Indices of this rank's samples: [TIMING_BATCHES at most, local batch] int64."""
        cell, group = self._cell, self._context.group
        batches = epoch_batches(len(self.splits.train), cell.global_batch, cell.seed, 1)[:TIMING_BATCHES]
        return shard(batches, group.rank, group.world_size)

    def _check_steps(self, max_steps: int) -> None:
        """Checks some steps on the first batches; the memory that this takes is no part of the peak."""
        split, device = self.splits.train, self._context.device
        with self._context.memory_peak_kept():
            batches = self.own_batches().to(split.inputs.device)
            self.check.steps(
                [(split.inputs[batch].to(device), split.targets[batch].to(device)) for batch in batches],
                max_steps,
            )

    def summary(self, bytes_sent: int, messages_sent: int | None) -> RankSummary:
        return RankSummary(
            num_parameters=self.step.replica.layout.num_elements,
            bytes_sent=bytes_sent,
            messages_sent=messages_sent,
            checksums=self.splits.checksums,
            notes=self.step.notes,
            data_in_host_memory=self.splits.in_host_memory,
            memory_peak_bytes=self._context.memory_peak_bytes(),
            seconds=self._context.seconds,
            tensor_shapes=shapes_by_dtype_text(self.step.replica.layouts),
            model_flops=None if self._context.group.rank else self._context.loaded.model_flops(self._cell),
            tokens_per_sample=self._context.loaded.tokens_per_sample(self._cell),
            optimizer_state_bytes=self.step.optimizer_state_bytes,
            bucket_bytes=self.step.bucket_bytes if isinstance(self.step, OverlappedStep) else [],
            checks=self.check.findings.as_dict(),
        )


def build_step(cell: Cell, context: RunContext) -> TrainingStep:
    """The step of a cell on this rank, from the initial weights. Collective."""
    group, device = context.group, context.device
    module = context.loaded.module(cell)
    require_same_model(module, group)
    if cell.batch_norm == "sync":
        module = synchronized(module, group)
    if cell.memory_format == "channels_last":
        module = with_channels_last(module)
    if cell.checkpoint_activations:
        module = with_checkpointing(module)
    aggregator = create_aggregator(cell.aggregator, cell.aggregator_parameters)
    path = aggregator.ddp_path()
    without_ddp = path in ("layered", "by_tensor")
    if cell.compile and (cell.step == "eager" or without_ddp):
        module.compile()
    chosen = aggregator, settings_of(cell), group
    gradients = gradients_of(cell)
    loss = create_model(cell.model, cell.model_parameters).loss
    train = context.loaded.data(cell).train
    inputs, targets = (values[: cell.local_batch].to(device) for values in (train.inputs, train.targets))
    captured = cell.step == "captured"
    compute = Compute(AUTOCAST.get(cell.precision or ""), cell.accumulate, captured)
    if path == "fully_sharded":
        from scaling.training.fully_sharded import FullyShardedStep, ShardedReplica

        sharded = ShardedReplica(module, group, loss=loss, compute=compute, **aggregator.parameters())
        return FullyShardedStep(sharded, chosen[1], group, gradients)
    if cell.step == "overlapped" and path == "by_tensor":
        by_tensor = FlatReplica(module, loss, compute, by_tensor=True)
        return ByTensorStep(by_tensor, *chosen, gradients)
    if cell.step == "overlapped" and not without_ddp:
        bucket_mb = cell.bucket_mb or UNUSED_BUCKET_MB
        replica = Replica(module, loss, compute)
        ddp = DdpSettings(
            cell.first_bucket_mb,
            cell.bucket_sizes_mb and tuple(cell.bucket_sizes_mb),
            cell.find_unused_parameters,
            bool(cell.static_graph),
            bool(cell.gradient_as_bucket_view),
            compiled=cell.compile,
        )
        return OverlappedStep(
            replica, *chosen, gradients, bucket_mb=bucket_mb, ddp=ddp, inputs=inputs, targets=targets
        )
    flat = FlatReplica(module, loss, compute)
    if cell.bucket_mb is not None:
        layered = LayeredStep(flat, *chosen, gradients, bucket_mb=cell.bucket_mb, capturable=captured)
        return CapturedStep(layered, inputs, targets, group) if captured else layered
    if cell.outer_update is not None:
        outer = outer_update(
            cast(OuterName, cell.outer_update),
            group.world_size,
            cell.outer_momentum,
            cell.outer_learning_rate,
        )
        return LocalStep(flat, *chosen, gradients, sync_every=cell.sync_every, outer=outer)
    eager = EagerStep(flat, *chosen, gradients, capturable=captured)
    return CapturedStep(eager, inputs, targets, group) if captured else eager


def settings_of(cell: Cell) -> OptimizerSettings:
    if cell.optimizer == "sgd":
        return SgdSettings(cell.learning_rate, cell.momentum, cell.weight_decay, cell.nesterov)
    assert cell.beta1 is not None
    assert cell.beta2 is not None
    assert cell.epsilon is not None
    betas, decoupled = (cell.beta1, cell.beta2), cell.optimizer == "adamw"
    return AdamSettings(cell.learning_rate, cell.weight_decay, *betas, cell.epsilon, decoupled=decoupled)


def gradients_of(cell: Cell) -> GradientSettings:
    which = cast(ClippedGradient, cell.clip_gradient or "mean")
    return GradientSettings(WIRES.get(cell.wire or ""), cell.clip_norm, which)


DIGEST_BYTES = 6  # a float64 holds whole numbers of so many bytes exactly
VALUES = 2**14  # of a tensor that are compared: another seed or model shows in the first ones

Described = dict[str, tuple[str, str]]  # a tensor's name -> shape and type, and digest


def require_same_model(module: nn.Module, ranks: Group) -> None:
    """Compares names, shapes, types and first values of the model's tensors. Collective."""
    description = _described(module)
    digest = hashlib.blake2b(repr(description).encode(), digest_size=DIGEST_BYTES).digest()
    by_rank = [0.0] * ranks.world_size
    by_rank[ranks.rank] = float(int.from_bytes(digest, "big"))
    digests = ranks.largest_of(by_rank)
    other = next((rank for rank, value in enumerate(digests) if value != digests[0]), 0)
    if other:
        first, second = ranks.share(description, 0), ranks.share(description, other)
        difference = _difference(first, second, other)
        raise ExchangeError(
            f"rank {other} has built another model than rank 0: {difference}; build it "
            "of its parameters and of torch's random numbers alone, which are the same on every rank"
        )


def _described(module: nn.Module) -> Described:
    described = {}
    for name, tensor in module.state_dict().items():
        values = tensor.detach().reshape(-1)[:VALUES].cpu().contiguous().view(torch.uint8)
        digest = hashlib.blake2b(values.numpy().data, digest_size=DIGEST_BYTES).hexdigest()
        described[name] = (f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}", digest)
    return described


def _difference(first: Described, second: Described, rank: int) -> str:
    for name in dict.fromkeys([*first, *second]):
        there, here = first.get(name, ("missing", "")), second.get(name, ("missing", ""))
        if there[0] != here[0]:
            return f"{name} is {here[0]} on rank {rank}, {there[0]} on rank 0"
        if there[1] != here[1]:
            return f"{name} has other initial values"
    return "its tensors are in another order"
