"""The gradient noise scale of a training: the batch at which a gradient is as much noise as signal.

Of squared norms of gradients of b and of B samples, in each step that was looked at:

1. tr(Sigma) is (|g_b|^2 - |g_B|^2) / (1/b - 1/B), |G|^2 is (B |g_B|^2 - b |g_b|^2) / (B - b): unbiased.
2. Over a window of steps each is averaged on its own; their ratio is the noise scale B_simple.
3. Its 95% interval is Fieller's, for a ratio of two correlated means: steps that follow each other are
   alike, so the means of up to `MOST_GROUPS` groups of neighbouring steps are the independent values.

The interval has no upper end where |G|^2 is not shown to be above zero: the noise may be all there is.

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

NOISE_FORMS = (
    "noise",
    "preconditioned_noise",
)  # keys of an epoch: gradients as they are; as Adam divides them
MOST_GROUPS, FEWEST_GROUPS = 20, 4  # one or two steps may be of a model that has learned nothing yet


@dataclass(frozen=True)
class Squares:
    """Squared norms of the gradients of two batch sizes, in steps of an epoch."""

    small_batch: int  # small_batch, big_batch: samples
    big_batch: int
    small: Floats  # small, big: [step]
    big: Floats

    @property
    def trace(self) -> Floats:
        """[step]: estimates of tr(Sigma), the summed variances of a sample's gradient."""
        return (self.small - self.big) / (1 / self.small_batch - 1 / self.big_batch)

    @property
    def square(self) -> Floats:
        """[step]: estimates of |G|^2, the true gradient's; some are negative."""
        difference = self.big_batch * self.big - self.small_batch * self.small
        return difference / (self.big_batch - self.small_batch)


class NoiseScale(NamedTuple):
    """An estimate, in samples."""

    value: float | None  # None where the estimate of |G|^2 is not positive
    low: float  # low, high: its 95% interval; `high` is None where there is no upper end
    high: float | None


def squares_of(epochs: Sequence[Mapping[str, Any] | None]) -> tuple[Squares, ...]:
    """What was recorded, an item an epoch; nothing where one lacks it."""
    if not epochs or any(epoch is None for epoch in epochs):
        return ()
    return tuple(
        Squares(epoch["small_batch"], epoch["big_batch"], *np.array([epoch["small"], epoch["big"]], float))
        for epoch in epochs
        if epoch is not None
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
    total = sum(one.shape[1] for one in series)
    size = max(1, -(-total // MOST_GROUPS))
    means = []
    for one in series:
        count = max(1, one.shape[1] // size)
        means += [part.mean(axis=1) for part in np.array_split(one, count, axis=1)]
    return np.stack(means, axis=1)


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
