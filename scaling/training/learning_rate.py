"""Learning rates: how they follow the global batch, and how they change over a training.

Torch's SGD has no rate in v = momentum * v + gradient, so a rate that changes needs no correction of the
momentum (Goyal et al., remark 2). In warm-up step t of W, from 0, has (t + 1) / W of the peak; Goyal et al.
begin at the unscaled rate instead; beginning near 0 means something under every rule. "cosine" falls along
half a cosine to 0 behind the last step, one cycle without restarts.

References: P. Goyal et al., arXiv 1706.02677 (linear, warm-up); A. Krizhevsky, arXiv 1404.5997 (square root);
I. Loshchilov, F. Hutter, "SGDR", arXiv 1608.03983 (cosine).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Rule = Literal["fixed", "linear", "sqrt"]
Schedule = Literal["constant", "step", "cosine"]

DEFAULT_GAMMA = 0.1


@dataclass(frozen=True)
class LearningRate:
    """`peak`: after warm-up; `warmup_epochs`: fractions are rounded to whole steps; `milestones`, `gamma`: of
    "step": behind so many epochs from the start, ascending, the rate is multiplied with that."""

    peak: float
    warmup_epochs: float = 0.0
    schedule: Schedule = "constant"
    milestones: tuple[float, ...] = ()
    gamma: float = DEFAULT_GAMMA

    def at(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        warmup = round(self.warmup_epochs * steps_per_epoch)
        if step < warmup:
            return self.peak * (step + 1) / warmup
        if self.schedule == "step":
            passed = sum(step >= round(epoch * steps_per_epoch) for epoch in self.milestones)
            return float(self.peak * self.gamma**passed)
        if self.schedule == "cosine":
            share = (step - warmup) / max(1, epochs * steps_per_epoch - warmup)
            return self.peak * (1 + math.cos(math.pi * min(share, 1.0))) / 2
        return self.peak


def scaled_rate(rate: float, rule: Rule, global_batch: int, base_batch: int | None) -> float:
    """The peak rate for a global batch; `base_batch` is the one that `rate` was chosen for."""
    if rule == "fixed":
        return rate
    assert base_batch is not None, "the study's rules demand it"
    ratio = global_batch / base_batch
    return rate * (ratio if rule == "linear" else math.sqrt(ratio))
