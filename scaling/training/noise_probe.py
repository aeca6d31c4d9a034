"""Squared norms of gradients in some steps of a training, of which its noise scale is estimated.

Of two batch sizes (McCandlish et al., "An empirical model of large-batch training", arXiv 1812.06162, A.1):

- several ranks: each rank's own gradient before any encoding, and their exact mean.
- one rank: `accumulate` equal parts of its batch, or two, computed once more.
- local updates: each rank's own at the start of a block, where models are equal, computed once more.

With Adam also the norms of these gradients divided as the optimizer divides, by its state before the step.
A look runs without graph or compiled code; nothing that a step makes is changed, and nothing is metered.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator
from scaling.bucket import BucketLayout
from scaling.process_group import Group
from scaling.training.captured import CapturedStep
from scaling.training.exchanges import Record
from scaling.training.gradients import GradientSettings
from scaling.training.local_updates import LocalStep
from scaling.training.overlapped import OverlappedStep
from scaling.training.step import TrainingStep

Source = Literal["delivered", "exchanged", "recomputed"]
Factors = Mapping[str, Tensor]

STRIDE: dict[Source, int] = {"delivered": 32, "exchanged": 256, "recomputed": 256}
"""Steps from one that is looked at to the next: the mean is delivered; it takes an exchange; or a pass."""
STRIDE_CAPTURED: dict[Source, int] = {"delivered": 1024, "exchanged": 2048, "recomputed": 2048}
"""A look runs without the graph, so that it takes up to 20 captured steps (small MLP, H200)."""

HIDDEN_PASSES = 3  # that a step takes where a library hides what it exchanges (`scaling.training.exchanges`)
FORMS = ("noise", "preconditioned_noise")  # of gradients as they are, and divided


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
        compute, world_size = step.replica.compute, group.world_size
        clips_own = gradients.clip_norm is not None and gradients.clip_gradient == "local"
        sites = {aggregator.site(layout) for layout in step.replica.layouts.values()}
        self.source: Source = "exchanged"
        if world_size == 1 or isinstance(step, LocalStep) or clips_own or aggregator.own_momentum():
            self.source = "recomputed"
        elif sites == {"replica"} and not aggregator.lossy and gradients.wire is None:
            self.source = "delivered"
        self._passes = compute.accumulate if world_size > 1 else max(2, compute.accumulate)
        self.stride = (STRIDE_CAPTURED if isinstance(step, CapturedStep) else STRIDE)[self.source]
        is_hidden = isinstance(step, OverlappedStep) and aggregator.ddp_path() in ("own", "optimizer")
        if self.source == "delivered" and is_hidden:
            self.stride = HIDDEN_PASSES * STRIDE["recomputed"]
        small_batch = local_batch // (self._passes if world_size == 1 else 1)
        self._batches = {"small_batch": small_batch, "big_batch": local_batch * world_size}
        is_scaled = self.source == "recomputed" and compute.scales_loss
        is_sharded = aggregator.ddp_path() == "fully_sharded"
        self.is_on = local_batch % self._passes == 0 and not is_scaled and not is_sharded
        self._every = step.sync_every if isinstance(step, LocalStep) else 1
        self._differ = self.source != "delivered" or aggregator.shards_optimizer  # ranks' optimizers may
        self._forms = FORMS if self._inner.factors() is not None else FORMS[:1]
        self.stride *= len(self._forms)  # a look at both takes twice as long, or less
        self._looks: list[tuple[int, Tensor]] = []  # numbers of steps, [form, small or big batch]

    def take(self, number: int, index: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """Gives the step's loss. `number`: from 0 over the training; `index`: from 0 in the epoch."""
        since = number - self.stride // 2
        if not self.is_on or index % self._every or since < 0 or since % self.stride >= self._every:
            return self._step(inputs, targets)
        factors = self._adams_factors()
        if self.source == "recomputed":
            self._looks.append((number, self._recomputed(inputs, targets, factors)))
            return self._step(inputs, targets)
        record: Record = []
        factor = self._inner.treatment.expected_factor()
        self._inner.record = record
        try:
            loss = self._inner(inputs, targets)
        finally:
            self._inner.record = None
        if record:
            self._looks.append((number, self._recorded(record, factors) * factor**2))
        return loss

    @torch.no_grad()
    def _adams_factors(self) -> Factors | None:
        """Of all parameters; where optimizers differ their sum, since a factor changes no noise scale."""
        factors = self._inner.factors()
        if factors is None or not self._differ:
            return factors
        shapes = [values.shape for values in factors.values()]
        total = self._summed(torch.cat([values.flatten() for values in factors.values()]))
        layout = BucketLayout.of([*zip(factors, shapes, strict=True)])
        return dict(zip(factors, layout.views(total), strict=True))

    @torch.no_grad()
    def _recorded(self, record: Record, factors: Factors | None) -> Tensor:
        """[form, 2]: the squared norms of this rank's gradient and of the mean, of all buckets."""
        found = []
        for exchange in record:
            mean, chosen = exchange.mean, (exchange.layout, factors)
            small = _squares(exchange.contribution, *chosen)
            if self.source != "delivered" or mean is None:
                mean = self._summed(exchange.contribution.float()).div_(self._group.world_size)
            found.append(torch.stack([small, _squares(mean, *chosen)], dim=1))
        return torch.stack(found).sum(dim=0)

    def _summed(self, values: Tensor) -> Tensor:
        with self._group.meter.standing_still():
            self._group.all_reduce(values)
        return values

    def _recomputed(self, inputs: Tensor, targets: Tensor, factors: Factors | None) -> Tensor:
        """[form, 2]: these by passes of their own; on one rank the first is the mean over the passes."""
        replica, count, world_size = self._step.replica, self._passes, self._group.world_size
        parts, total, chosen = [], None, (replica.layout, factors)
        with self._as_it_was():
            for part in range(count):
                samples = slice(part * len(inputs) // count, (part + 1) * len(inputs) // count)
                loss = replica.forward(inputs[samples], targets[samples])
                gradients = torch.autograd.grad(loss, replica.trainable, materialize_grads=True)
                flat = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
                parts += [_squares(flat, *chosen)] if world_size == 1 else []
                total = flat if total is None else total.add_(flat)
        assert total is not None
        own = total.div_(count)
        small = torch.stack(parts).mean(dim=0) if parts else _squares(own, *chosen)
        big = _squares(self._summed(own).div_(world_size), *chosen)
        return torch.stack([small, big], dim=1)

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

    def finish_epoch(self) -> dict[str, dict[str, Any]]:
        """Of each form what was seen since the last call, the same on every rank: `steps` whose norms were
        finite, and the squared norms at `small_batch` and `big_batch` samples. Collective."""
        looks, self._looks = self._looks, []
        seen = {form: {**self._batches, "steps": [], "small": [], "big": []} for form in self._forms}
        if looks:
            small, big = torch.stack([norms for _, norms in looks]).permute(2, 1, 0).contiguous()
            self._summed(small).div_(self._group.world_size)
            steps = [number for number, _ in looks]
            for form, *norms in zip(self._forms, small.tolist(), big.tolist(), strict=True):
                rows = [row for row in zip(steps, *norms, strict=True) if all(map(math.isfinite, row))]
                names = ("steps", "small", "big")
                seen[form] |= {name: [row[place] for row in rows] for place, name in enumerate(names)}
        return seen


def _squares(flat: Tensor, layout: BucketLayout, factors: Factors | None) -> Tensor:
    """[form]: the squared norms, float64; waits for nothing."""
    norms = [torch.linalg.vector_norm(flat, dtype=torch.promote_types(flat.dtype, torch.float32))]
    if factors is not None:
        views = [values.float() for values in layout.views(flat)]
        products = torch._foreach_mul(views, [factors[name] for name in layout.names])
        norms.append(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(products))))
    return torch.stack(norms).double().square()
