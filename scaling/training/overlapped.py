"""The overlapped step: gradients are exchanged bucket by bucket while the backward pass still runs.

Every aggregator runs as a communication hook of torch's DistributedDataParallel, except that

- `all_reduce` is what users run: DDP's own path, without a hook;
- `no_op` takes the path of the arm that it controls, and exchanges nothing;
- `none` is not wrapped at all, and `horovod_optimizer` wraps the optimizer instead: what it has not hidden
  under the backward pass is `communicate`.

DDP's own path shows nothing of its exchange. Its profiled iterations therefore run the same all-reduce as a
hook, and so do all steps of workers that share a GPU, whose messages go through host memory.

Reference: S. Li et al., "PyTorch Distributed", arXiv 2006.15704; torch's documentation of DDP communication
hooks.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator
from scaling.aggregators.native import AllReduce
from scaling.bucket import BucketLayout
from scaling.collectives.owners import assign_owners
from scaling.errors import LaunchError
from scaling.measure.phases import UNMARKED, Marks, PhaseRecorder
from scaling.process_group import TorchGroup
from scaling.training.ddp import USUAL_DDP, DdpSettings, wrapped
from scaling.training.exchanges import Record, filled, recomputed_exchanges, repeatable_gradients
from scaling.training.gradients import AS_THEY_ARE, GradientSettings, GradientTreatment
from scaling.training.hooked_buckets import HookedBuckets, LibraryHookBuckets
from scaling.training.optimizers import OptimizerSettings, OptimizerState, set_learning_rate, skip_where
from scaling.training.replica import Replica, require_dtypes, take_passes
from scaling.training.step import TrainingStep

if TYPE_CHECKING:  # torch.distributed has it too, hidden from type checkers
    from torch._C._distributed_c10d import GradBucket
    from torch.distributed.optim import ZeroRedundancyOptimizer

PASSES_UNTIL_BUCKETS_STAY = 2
"""DDP rebuilds its buckets once, after the first backward pass; a static graph is known one pass later."""


class OverlappedStep(TrainingStep):
    """A step of an aggregator that overlaps, or `none`."""

    def __init__(
        self,
        replica: Replica,
        aggregator: Aggregator[Any],
        settings: OptimizerSettings,
        group: TorchGroup,
        gradients: GradientSettings = AS_THEY_ARE,
        *,
        bucket_mb: float,
        ddp: DdpSettings = USUAL_DDP,
        inputs: Tensor,
        targets: Tensor,
    ) -> None:
        require_dtypes(replica.module, aggregator)
        self.replica, self._aggregator, self._group = replica, aggregator, group
        self._device = replica.trainable[0].device
        self.treatment = GradientTreatment(gradients, replica.compute, self._device)
        self._path = aggregator.ddp_path()
        if self._path == "own" and (group.through_host or gradients.wire is not None):
            self._path = "hook"  # Gloo would stage the buckets, not the group; nor does DDP cast them
        self._optimizer: Any
        self._send_parameters: Callable[[], None] | None = None
        self._make_optimizer(settings)
        stateful = self._optimizer.optim if aggregator.shards_optimizer else self._optimizer
        places = {str(number): parameter for number, parameter in enumerate(replica.trainable)}
        self._kept = OptimizerState(stateful, places, settings.state_names)
        self._example = (inputs, targets)
        self._micro_batch = len(inputs) // replica.compute.accumulate
        self._marks: Marks = UNMARKED
        self._record: Record | None = None
        self._forward: Callable[[Tensor], Tensor] = replica.module
        made = LibraryHookBuckets if self._path == "library_hook" else HookedBuckets
        self._buckets = made(
            aggregator, group, self._device, replica.layout, replica.trainable, gradients.wire
        )
        if self._path == "own":
            self._buckets.captures = False  # what profiled iterations do is as near to it as can be
        self._hooked = False
        self._unused: list[str] = []
        self._compiled = ddp.compiled
        if self._path in ("bare", "optimizer"):
            if ddp.compiled:
                self._forward = torch.compile(replica.module)
        else:
            self._start_ddp(bucket_mb, ddp)

    def _make_optimizer(self, settings: OptimizerSettings) -> None:
        """Collective where ranks share its state."""
        replica, aggregator, found_inf = self.replica, self._aggregator, self.treatment.found_inf
        if aggregator.shards_optimizer:
            self._optimizer = _sharded_optimizer(settings, replica.trainable, self._group)
            # Its step would send them at its end: here that is a phase of its own.
            self._send_parameters = self._optimizer._sync_params
            self._optimizer._sync_params = lambda: None
        else:
            self._optimizer = settings.optimizer(replica.trainable, skippable=found_inf is not None)
        if found_inf is not None:
            skip_where(self._optimizer, found_inf)
        if self._path == "optimizer":
            self._optimizer = aggregator.wrap_optimizer(
                self._optimizer, replica.layout, replica.trainable, self._group
            )

    def _start_ddp(self, bucket_mb: float, ddp: DdpSettings) -> None:
        """Wraps the module and makes the passes after which its buckets stay. Collective."""
        self._run_dry(1)
        parameters = zip(self.replica.layout.names, self.replica.trainable, strict=True)
        self._unused = [name for name, parameter in parameters if parameter.grad is None]
        group = self._group
        exchanges = self._path != "own" or self._aggregator.exchanges
        # Without it DDP waits for their gradients, for ever; with it it walks the graph of every step.
        finds_unused = group.largest(len(self._unused)) > 0 or bool(ddp.find_unused_parameters)
        among = group.data if exchanges else group.single_rank_group()
        self._ddp, self._forward = wrapped(
            self.replica.module, among, bucket_mb, ddp, finds_unused=finds_unused
        )
        num_passes = PASSES_UNTIL_BUCKETS_STAY + int(ddp.static_graph)
        if self._path in ("hook", "library_hook"):
            self._hook_in(num_passes)
        else:
            self._run_dry(num_passes)

    @property
    def notes(self) -> list[str]:
        unused = ", ".join(self._unused)
        shown = f"DDP searches every step for parameters that the loss does not depend on: {unused:.200}"
        return [*self.replica.notes, *([shown] if unused else []), *self._buckets.notes]

    @property
    def record(self) -> Record | None:
        return self._record

    @record.setter
    def record(self, record: Record | None) -> None:
        self._record = self._buckets.record = record

    @property
    def bucket_bytes(self) -> list[int]:
        """Of each bucket, in the order of the exchanges; empty where no hook has seen them."""
        return self._buckets.num_bytes

    def set_learning_rate(self, rate: float) -> None:
        set_learning_rate(self._optimizer, rate)

    def state_dict(self) -> dict[str, Any]:
        return self._saved(self._buckets.state_dict(), self._kept.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.replica.module.load_state_dict(state["module"])
        self._buckets.load_state_dict(state["aggregator"])
        self._kept.load_state_dict(state["update"])
        self.treatment.load_state_dict(state.get("scale", {}))

    def factors(self) -> dict[str, Tensor] | None:
        if (found := self._kept.factors()) is None:
            return None
        named = enumerate(zip(self.replica.layout.names, self.replica.trainable, strict=True))
        return {name: found.get(str(place), torch.zeros_like(p)) for place, (name, p) in named}

    @property
    def optimizer_state_bytes(self) -> int:
        return self._kept.state_bytes

    def check(self) -> None:
        self._buckets.check()

    def prepare_profiled(self, recorder: PhaseRecorder) -> bool:
        """DDP's own path gets a hook that does the same: only a hook can mark the exchange."""
        if self._path == "own":
            self._hook_in(1)
        return self._buckets.mark_graphs(recorder)

    @property
    def settle_profiled(self) -> bool:  # type: ignore[override]
        return self._buckets.has_graphs

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        self._marks = marks
        hidden = self._record is not None and not self._hooked and self._path in ("own", "optimizer")
        gradients, autocast = None, self.replica.compute.autocast
        if hidden:
            compute, like = partial(self._unexchanged, inputs, targets), self.replica.trainable
            gradients = repeatable_gradients(compute, like, self._group.largest, autocast)
        loss = take_passes(
            self.replica,
            inputs,
            targets,
            marks,
            self.treatment.scaled,
            forward=self._forward,
            around=self._syncing_last,
            after=self._buckets.raise_failure,
        )
        if self._path == "optimizer":
            with marks.phase("communicate"):
                self._optimizer.synchronize()
        if self._record is not None and gradients is not None:
            means = [filled(parameter.grad, parameter) for parameter in self.replica.trainable]
            self._record += recomputed_exchanges(self.replica.layout.names, gradients, means, autocast)
        if self.treatment.waits_for_all:
            means = [parameter.grad for parameter in self.replica.trainable if parameter.grad is not None]
            self.treatment.before_update(means, marks.phase)
        # An optimizer that has waited for its gradients is not to do so again.
        stepping = self._optimizer.skip_synchronize() if self._path == "optimizer" else nullcontext()
        with marks.phase("update"), stepping:
            self._optimizer.step()
        if self._send_parameters is not None:
            with marks.phase("communicate"):
                self._send_parameters()
        self._meter_own_path()
        return loss

    def _syncing_last(self, is_last: bool) -> AbstractContextManager[None]:
        """DDP exchanges what the last micro-batch has made whole."""
        if is_last or self._path in ("bare", "optimizer"):
            return nullcontext()
        return self._ddp.no_sync()

    def _unexchanged(self, inputs: Tensor, targets: Tensor) -> Sequence[Tensor | None]:
        """An optimizer that exchanges hears of each pass. Compiled code is kept: it rounds elsewhere."""
        scaled = self.treatment.scaled
        if self._path == "optimizer":
            loss = scaled(self.replica.forward(inputs, targets, self._forward))
            return torch.autograd.grad(loss, self.replica.trainable, allow_unused=True)
        forward = self._forward if self._compiled else None
        with self._ddp.no_sync():
            take_passes(self.replica, inputs, targets, UNMARKED, scaled, forward=forward)
        return [parameter.grad for parameter in self.replica.trainable]

    def _meter_own_path(self) -> None:
        """DDP's own exchanges, and an optimizer's, pass the group by; a hook's do not."""
        if self._path in ("own", "optimizer") and self._aggregator.exchanges and self._group.world_size > 1:
            group = self._group
            for dtype in self.replica.dtypes:
                layout = self.replica.layout_of(dtype)
                place = (layout, group.world_size, group.rank, dtype.itemsize)
                if not self._hooked:
                    exchange = AllReduce() if self._aggregator.shards_optimizer else self._aggregator
                    group.meter.count(exchange.wire_bytes(*place) or 0, 0)
                if self._aggregator.shards_optimizer:
                    group.meter.count(_parameter_bytes(*place), 0)

    def _hook_in(self, dry_passes: int) -> None:
        """From now on buckets go to `_hook`. Collective."""
        # DDP's reducer keeps the hook where no collector finds it: a reference to DDP itself would never end.
        itself = weakref.ref(self)

        def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP does not understand postponed annotations
            step = itself()
            assert step is not None, "backward runs while somebody has the step"
            return step._hook(bucket)

        self._ddp.register_comm_hook(None, hook)
        self._hooked = True
        self._run_dry(dry_passes)
        self._buckets.start()

    def _run_dry(self, num_passes: int) -> None:
        """Passes without an update, in which DDP settles its buckets; what they change is put back."""
        module = self.replica.module
        state = {name: value.detach().clone() for name, value in module.state_dict().items()}
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            for _ in range(num_passes):
                inputs, targets = (values[: self._micro_batch] for values in self._example)
                self.replica.backward(self.replica.forward(inputs, targets, self._forward))
        module.load_state_dict(state)
        self._group.meter.reset()

    def _hook(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        marks = self._marks
        if not self._buckets.started:
            return self._buckets.note_and_return(bucket)
        # The backward pass stands still while this hook does, if it blocks.
        with marks.paused(until_beside_ends=bucket.is_last()):
            return self._buckets.launch(bucket, marks)


def _parameter_bytes(layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
    """What a rank broadcasts of the parameters that it steps under ZeroRedundancyOptimizer."""
    sizes = [math.prod(shape) for shape in layout.shapes]
    owners = assign_owners(sizes, world_size)
    owned = sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank)
    return (world_size - 1) * owned * itemsize


def _sharded_optimizer(
    settings: OptimizerSettings, parameters: Sequence[Tensor], group: TorchGroup
) -> ZeroRedundancyOptimizer:
    """torch's, of the class and numbers of the settings. Collective."""
    if group.through_host:
        raise LaunchError(
            "zero_redundancy_optimizer needs a GPU for each worker; use zero1, or fewer workers"
        )
    from torch.distributed.optim import ZeroRedundancyOptimizer

    plain = settings.optimizer(parameters[:1])
    accepted = inspect.signature(type(plain)).parameters
    numbers = {name: value for name, value in plain.defaults.items() if name in accepted}
    return ZeroRedundancyOptimizer(parameters, type(plain), process_group=group.data, **numbers)
