"""The gradient noise scale of a training: the batch at which a gradient is as much noise as signal.

tr(Sigma) and |G|^2 (`Squares`) are averaged separately over a window of steps; their ratio is B_simple. Steps
that follow each other are alike, so the means of up to MOST_GROUPS groups of neighbours are the independent
values of its interval, Fieller's. It has no upper end where |G|^2 is not shown to be above zero.

References: S. McCandlish et al., "An empirical model of large-batch training", arXiv 1812.06162, section 2.2
and appendix A.1; E. C. Fieller, "Some problems in interval estimation", Journal of the Royal Statistical
Society B 16 (1954).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling.measure.statistics import CONFIDENCE

Floats = NDArray[np.float64]

NOISE_FORMS = ("noise", "preconditioned_noise")  # keys of an epoch; the second one of Adam alone
MOST_GROUPS, FEWEST_GROUPS = 20, 4  # one or two steps may be of a model that has learned nothing yet


@dataclass(frozen=True)
class Squares:
    """Squared norms of the gradients of two batch sizes, in samples, by steps of an epoch, and the estimates
    without bias of tr(Sigma), a sample's summed variances, and |G|^2; some of these are negative."""

    small_batch: int
    big_batch: int
    small: Floats
    big: Floats

    @property
    def trace(self) -> Floats:
        return (self.small - self.big) / (1 / self.small_batch - 1 / self.big_batch)

    @property
    def square(self) -> Floats:
        difference = self.big_batch * self.big - self.small_batch * self.small
        return difference / (self.big_batch - self.small_batch)


class NoiseScale(NamedTuple):
    """In samples; no value where the estimate of |G|^2 is not positive."""

    value: float | None
    low: float
    high: float | None


def squares_of(epochs: Sequence[Mapping[str, Any] | None]) -> tuple[Squares, ...]:
    """What was recorded, an item an epoch; nothing where one lacks it."""
    if any(epoch is None for epoch in epochs):
        return ()
    return tuple(
        Squares(one["small_batch"], one["big_batch"], *np.array([one["small"], one["big"]], float))
        for one in epochs
        if one
    )


def noise_scale(windows: Sequence[Sequence[Squares]]) -> NoiseScale | None:
    """Over steps of several trainings, each a sequence of epochs; None of fewer than FEWEST_GROUPS."""
    series = [
        np.concatenate([[one.trace, one.square] for one in epochs], axis=1)
        for epochs in windows
        if any(len(one.small) for one in epochs)
    ]
    if sum(one.shape[1] for one in series) < FEWEST_GROUPS:
        return None
    traces, squares = np.concatenate(series, axis=1)
    value = float(traces.mean() / squares.mean()) if squares.mean() > 0 else None
    return NoiseScale(value, *_fieller(_group_means(series)))


def _group_means(series: Sequence[Floats]) -> Floats:
    """[2, group]: means over groups of neighbouring steps of one training, of about the same size."""
    size = -(-sum(one.shape[1] for one in series) // MOST_GROUPS)
    groups = [np.array_split(one, max(1, one.shape[1] // size), axis=1) for one in series]
    return np.stack([part.mean(axis=1) for parts in groups for part in parts], axis=1)


def _fieller(means: Floats) -> tuple[float, float | None]:
    """The 95% interval of the ratio of the two means; ends below zero are zero, and there may be no upper."""
    from scipy import special  # as in scaling.measure.statistics

    count = means.shape[1]
    top, bottom = means.mean(axis=1)
    variances = float(special.stdtrit(count - 1, (1 + CONFIDENCE) / 2)) ** 2 * np.cov(means) / count
    a, b, c = bottom**2 - variances[1, 1], top * bottom - variances[0, 1], top**2 - variances[0, 0]
    root = math.sqrt(max(0.0, b * b - a * c))  # the ratios r with a r^2 - 2 b r + c <= 0 are not excluded
    if a > 0 and bottom > 0:
        return max(0.0, float((b - root) / a)), max(0.0, float((b + root) / a))
    if a >= 0 or c <= 0:
        return 0.0, None
    return float((b - root) / a), None
