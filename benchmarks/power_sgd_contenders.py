"""What `power_sgd_speed.py` compares: DDP's ways and ours to train a model, each with a model of its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from ddp_loop import DdpLoop
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from scaling.aggregators.power_sgd import PowerSgd
from scaling.aggregators.registry import create
from scaling.process_group import TorchGroup
from scaling.training.captured import CapturedStep
from scaling.training.layered import LayeredStep
from scaling.training.optimizers import SgdSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep

Size = TypeVar("Size", float, float | None)
Kind = Literal["ddp", "hook", "ours", "other"]
StepFunction = Callable[[Tensor, Tensor], Tensor]

SETTINGS = SgdSettings(learning_rate=0.01, momentum=0.9)
"""Those of `DdpLoop`."""

OURS = "power_sgd"
CAPTURED = (OURS, "one_bit", "none")
START_ITERATION = 2
"""The earliest that torch's hook allows: DDP rebuilds its buckets in the first."""

BUCKETS_MB = (None, 1, 5, 25, 100, 1000)
"""Of DDP with the hook; None is its default, 25 MiB and a first bucket of 1 MiB."""
VIEWS_MB = (25, 1000)
"""Of DDP with the hook and gradients that are views into its buckets."""
BATCHED_MB = 1000
"""Of DDP with the hook that batches matrices of one shape: all must lie in one bucket."""
OVERLAPPED_MB = (1, 25, 1000)
LAYERED_MB = (1, 25)
"""Lower size of a bucket of the captured step that exchanges layer by layer."""


@dataclass
class Contender:
    """One way to train.

    Attributes:
        kind: "ddp": without PowerSGD; "hook": torch's; "ours": our power_sgd; "other": ours, for comparison.
        step: an iteration.
        state: the hook's, None without one.
    """

    kind: Kind
    step: StepFunction
    state: Any = None

    def compression(self) -> float | None:
        """By how much torch's hook says that it has made the gradients smaller; None without the hook.

        Raises:
            RuntimeError: the hook has not compressed anything yet.
        """
        if self.state is None:
            return None
        ratio, before, _ = self.state.compression_stats()
        if not before or self.state.iter < START_ITERATION:
            raise RuntimeError("torch's hook has not begun to compress: more warm-up iterations are needed")
        return float(ratio)


Maker = Callable[[], Contender]


class Makers:
    """How each contender is made, by name.

    Args:
        model: on its device; every contender gets a copy.
        group: the ranks.
        ddp_group: the same for DDP and its hooks: a communicator that no CUDA graph has a part in, which
            would cost every other operation on it.
        batch: an example of the batches, on the device.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        group: TorchGroup,
        ddp_group: dist.ProcessGroup,
        batch: tuple[Tensor, Tensor],
    ) -> None:
        self._model, self._group, self._ddp_group = model, group, ddp_group
        self._inputs, self._targets = batch

    def __iter__(self) -> Iterator[tuple[str, Maker]]:
        """(name, maker). Each maker is collective."""
        yield "DDP", self._ddp
        yield "DDP, fp16 hook", self._fp16
        for bucket_mb in self._different(BUCKETS_MB):
            shown = "default buckets" if bucket_mb is None else f"{bucket_mb} MB"
            yield f"hook, {shown}", partial(self._hook, bucket_mb)
        for bucket_mb in self._different(VIEWS_MB):
            yield f"hook, {bucket_mb} MB, views", partial(self._hook, bucket_mb, bucket_views=True)
        yield f"hook, {BATCHED_MB} MB, batched", partial(self._hook, BATCHED_MB, batched=True)
        yield "power_sgd eager", self._ours_eager
        for bucket_mb in self._different(OVERLAPPED_MB):
            yield f"power_sgd overlap, {bucket_mb} MB", partial(self._overlapped, bucket_mb)
        if not self._inputs.is_cuda:
            return
        for name in CAPTURED:
            yield f"{name} captured", partial(self._captured, name, None)
            for bucket_mb in LAYERED_MB:
                yield f"{name} captured, {bucket_mb} MB", partial(self._captured, name, bucket_mb)

    def _different(self, sizes_mb: Sequence[Size]) -> list[Size]:
        """Those sizes, without what is larger than one that holds all gradients."""
        gradient_mb = (
            sum(parameter.numel() * parameter.element_size() for parameter in self._model.parameters())
            / 2**20
        )
        enough = min((size for size in sizes_mb if size and size >= gradient_mb), default=math.inf)
        return [size for size in sizes_mb if size is None or size <= enough]

    def _own(self) -> torch.nn.Module:
        return copy.deepcopy(self._model)

    def _ddp(self) -> Contender:
        return Contender("ddp", DdpLoop(self._own(), self._ddp_group, broadcast_buffers=False).step)

    def _fp16(self) -> Contender:
        hook = (default_hooks.fp16_compress_hook, self._ddp_group)
        loop = DdpLoop(self._own(), self._ddp_group, broadcast_buffers=False, hook=hook)
        return Contender("ddp", loop.step)

    def _hook(
        self, bucket_mb: float | None, *, bucket_views: bool = False, batched: bool = False
    ) -> Contender:
        ours = PowerSgd()
        state = powerSGD_hook.PowerSGDState(
            self._ddp_group,
            matrix_approximation_rank=ours.approximation_size,
            start_powerSGD_iter=START_ITERATION,
            min_compression_rate=ours.minimum_compression,
            use_error_feedback=ours.error_feedback,
            warm_start=ours.warm_start,
            batch_tensors_with_same_shape=batched,
        )
        loop = DdpLoop(
            self._own(),
            self._ddp_group,
            broadcast_buffers=False,
            bucket_mb=bucket_mb,
            bucket_views=bucket_views,
            hook=(powerSGD_hook.powerSGD_hook, state),
        )
        return Contender("hook", loop.step, state)

    def _eager(self, aggregator: str, *, capturable: bool = False) -> EagerStep:
        replica = FlatReplica(self._own())
        return EagerStep(replica, create(aggregator), SETTINGS, self._group, capturable=capturable)

    def _ours_eager(self) -> Contender:
        return Contender("ours", self._eager(OURS))

    def _overlapped(self, bucket_mb: float) -> Contender:
        step = OverlappedStep(
            Replica(self._own()),
            create(OURS),
            SETTINGS,
            self._group,
            bucket_mb=bucket_mb,
            inputs=self._inputs,
            targets=self._targets,
        )
        return Contender("ours", step)

    def _captured(self, name: str, bucket_mb: float | None) -> Contender:
        """The eager step in a graph, or, with a bucket size, the one that exchanges layer by layer."""
        if bucket_mb is None:
            step: EagerStep | LayeredStep = self._eager(name, capturable=True)
        else:
            replica = FlatReplica(self._own())
            step = LayeredStep(
                replica, create(name), SETTINGS, self._group, bucket_mb=bucket_mb, capturable=True
            )
        captured = CapturedStep(step, self._inputs, self._targets, self._group)
        return Contender("ours" if name == OURS else "other", captured)
