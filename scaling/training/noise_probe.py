"""Squared norms of gradients in some steps of a training, of which its noise scale is estimated.

For b samples the squared norm is |G|^2 + tr(Sigma) / b in the mean, so two batch sizes give both without bias
(McCandlish et al., appendix A.1):

- several ranks: each rank's own gradient before any encoding, and their exact mean.
- one rank: `accumulate` equal parts of its batch, or two, computed once more.
- local updates: each rank's own at the start of a block, where models are equal, computed once more.

Every STRIDE-th step is looked at: below 1% of a training of many strides (benchmarks/noise_scale_cost.py). It
runs without graph or compiled code then; nothing that it makes is changed, and nothing is metered.

Reference: S. McCandlish et al., "An empirical model of large-batch training", arXiv 1812.06162, appendix A.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import compress
from typing import Any, Literal

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator
from scaling.process_group import Group
from scaling.training.captured import CapturedStep
from scaling.training.exchanges import Record
from scaling.training.gradients import GradientSettings
from scaling.training.local_updates import LocalStep
from scaling.training.overlapped import OverlappedStep
from scaling.training.step import TrainingStep

Source = Literal["delivered", "exchanged", "recomputed"]

STRIDE: dict[Source, int] = {"delivered": 32, "exchanged": 256, "recomputed": 256}
"""Steps from one that is looked at to the next: the mean is delivered; it takes an exchange; or a pass."""

HIDDEN_PASSES = 3  # that a step takes where a library hides what it exchanges (`scaling.training.exchanges`)


class NoiseProbe:
    """Collective to make and to use. `is_on`: not where parts of a batch differ in size, fp16 has no scale,
    or ranks have shards of the model (fsdp2)."""

    def __init__(
        self,
        step: TrainingStep,
        aggregator: Aggregator[Any],
        gradients: GradientSettings,
        group: Group,
        local_batch: int,
    ) -> None:
        self._step, self._group = step, group
        self._inner: TrainingStep = step.uncaptured if isinstance(step, CapturedStep) else step
        self._passes, world_size = step.replica.compute.accumulate, group.world_size
        clips_own = gradients.clip_norm is not None and gradients.clip_gradient == "local"
        sites = {aggregator.site(layout) for layout in step.replica.layouts.values()}
        self.source: Source = "exchanged"
        if world_size == 1 or isinstance(step, LocalStep) or clips_own or aggregator.own_momentum():
            self.source = "recomputed"
        elif sites == {"replica"} and not aggregator.lossy and gradients.wire is None:
            self.source = "delivered"
        if world_size == 1:
            self._passes = max(2, self._passes)
        self._stride = STRIDE[self.source]
        is_hidden = isinstance(step, OverlappedStep) and aggregator.ddp_path() in ("own", "optimizer")
        if self.source == "delivered" and is_hidden:
            self._stride = HIDDEN_PASSES * STRIDE["recomputed"]
        self.small_batch = local_batch // (self._passes if world_size == 1 else 1)
        self.big_batch = local_batch * world_size
        is_scaled = self.source == "recomputed" and step.replica.compute.scales_loss
        is_sharded = aggregator.ddp_path() == "fully_sharded"
        self.is_on = local_batch % self._passes == 0 and not is_scaled and not is_sharded
        self._every = step.sync_every if isinstance(step, LocalStep) else 1
        self._steps: list[int] = []
        self._squares: list[Tensor] = []

    def take(self, number: int, index: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """Gives the step's loss. `number`: from 0 over the training; `index`: from 0 in the epoch."""
        since = number - self._stride // 2
        if not self.is_on or index % self._every or since < 0 or since % self._stride >= self._every:
            return self._step(inputs, targets)
        if self.source == "recomputed":
            self._add(number, self._recomputed(inputs, targets))
            return self._step(inputs, targets)
        record: Record = []
        factor = self._inner.treatment.expected_factor()
        self._inner.record = record
        try:
            loss = self._inner(inputs, targets)
        finally:
            self._inner.record = None
        if record:
            self._add(number, self._recorded(record) * factor**2)
        return loss

    def _add(self, number: int, squares: Tensor) -> None:
        self._steps.append(number)
        self._squares.append(squares)

    @torch.no_grad()
    def _recorded(self, record: Record) -> Tensor:
        """[2]: the squared norms of this rank's gradient and of the mean, of all buckets."""
        small = sum(square(exchange.contribution) for exchange in record)
        means = (
            exchange.mean
            if self.source == "delivered" and exchange.mean is not None
            else self._summed(exchange.contribution.float())
            for exchange in record
        )
        return torch.stack([torch.as_tensor(small), torch.as_tensor(sum(map(square, means)))])

    def _summed(self, gradient: Tensor) -> Tensor:
        with self._group.meter.standing_still():
            self._group.all_reduce(gradient)
        return gradient.div_(self._group.world_size)

    def _recomputed(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """[2]: these by passes of their own; on one rank the first is the mean over the passes."""
        replica, count, world_size = self._step.replica, self._passes, self._group.world_size
        parts = torch.zeros((), dtype=torch.float64, device=inputs.device)
        total: Tensor | None = None
        with self._as_it_was():
            for part in range(count):
                chosen = slice(part * len(inputs) // count, (part + 1) * len(inputs) // count)
                loss = replica.forward(inputs[chosen], targets[chosen])
                gradients = torch.autograd.grad(loss, replica.trainable, allow_unused=True)
                flat = torch.cat([g.reshape(-1).float() for g in gradients if g is not None])
                parts += square(flat) / count
                total = flat if total is None else total.add_(flat)
        assert total is not None
        own = total.div_(count)
        small = parts if world_size == 1 else square(own)
        return torch.stack([small, square(self._summed(own))])

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """Puts buffers (statistics of batch normalisation) and the random state back; compiles nothing."""
        module = self._step.replica.module
        buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
        devices = {p.device for p in self._step.replica.trainable if p.is_cuda}
        has_compiled = "torch._dynamo" in sys.modules  # importing it takes seconds
        eager = torch.compiler.set_stance("force_eager") if has_compiled else nullcontext()
        with torch.random.fork_rng(list(devices)), eager:
            yield
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)

    def finish_epoch(self) -> dict[str, Any]:
        """What was seen since the last call, the same on every rank: `steps` whose norms were finite, and the
        squared norms at `small_batch` and `big_batch` samples. Collective."""
        seen, steps = {"small_batch": self.small_batch, "big_batch": self.big_batch}, self._steps
        rows: list[tuple[int, float, float]] = []
        if steps:
            small, big = torch.stack(self._squares).double().T.contiguous()
            with self._group.meter.standing_still():
                self._group.all_reduce(small)
            small /= self._group.world_size
            finite = (small.isfinite() & big.isfinite()).tolist()
            rows = list(compress(zip(steps, small.tolist(), big.tolist(), strict=True), finite))
        self._steps, self._squares = [], []
        names = ("steps", "small", "big")
        return {**seen, **{name: [row[place] for row in rows] for place, name in enumerate(names)}}


def square(flat: Tensor) -> Tensor:
    """The squared norm, float64; waits for nothing."""
    return (
        torch.linalg.vector_norm(flat, dtype=torch.promote_types(flat.dtype, torch.float32)).double().square()
    )
