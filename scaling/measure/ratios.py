"""Whether two sets of launches differ: the ratio of their medians, with an interval and a test.

Launches are the independent units (see `scaling.measure.statistics`), and times scatter in proportion to
their length, so everything is done with logarithms of the launches' medians.

1. With 2 or more launches on both sides the test is Welch's: d = mean log b - mean log a, its standard error
   s = sqrt(var_a / n_a + var_b / n_b), Student's t with Welch's and Satterthwaite's degrees of freedom.
2. The 95% interval of the ratio is exp(d +- t s); from 10 launches on both sides it is a percentile
   bootstrap by launch instead. A bootstrap of so few blocks has no tails as far out as a correction for many
   comparisons asks for: the test remains Welch's.
3. With one launch on either side nothing is known of the scatter between launches: the interval is that of
   the two medians' order statistics and speaks of these launches only; there is no p value.

Many comparisons are corrected by Holm's step-down method: the probability of calling any two equal ones
different is at most the level, whatever the comparisons have to do with each other.

References: B. L. Welch, "The generalization of Student's problem", Biometrika 34 (1947); F. E. Satterthwaite,
Biometrics Bulletin 2 (1946); S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian
Journal of Statistics 6 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling.measure.statistics import (
    BOOTSTRAP_RESAMPLES,
    CONFIDENCE,
    LAUNCHES_FOR_BOOTSTRAP,
    ONE_LAUNCH,
    interval_within_launch,
)

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Ratio:
    """How many times as large b's median is as a's.

    Attributes:
        ratio: b / a; more than 1 where b is larger.
        low, high: ends of the 95% interval; None where there are too few samples for one.
        p_value: of Welch's test for equal ones, two-sided; None with one launch on either side.
        method: how the interval was made, for people.
        standard_error: of log(ratio); None with one launch on either side.
        degrees: of freedom; None likewise.
    """

    ratio: float
    low: float | None
    high: float | None
    p_value: float | None
    method: str
    standard_error: float | None
    degrees: float | None

    def detectable(self, level: float) -> float | None:
        """The smallest ratio above 1 that a test at this level would have found with this scatter; None with
        one launch."""
        if self.standard_error is None or self.degrees is None:
            return None
        exponent = _t_quantile(self.degrees, 1 - level / 2) * self.standard_error
        return math.exp(min(exponent, 50.0))


def estimate_ratio(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Ratio:
    """Compares two measurements, each a list of launches' samples.

    Args:
        a, b: the samples of each launch, all positive; empty launches are left out.

    Raises:
        ValueError: one has no sample, or one that is not positive.
    """
    groups = [[np.asarray(launch, dtype=float) for launch in side if len(launch)] for side in (a, b)]
    if not all(groups):
        raise ValueError("no samples: a ratio needs one at least on both sides")
    if any((launch <= 0).any() for side in groups for launch in side):
        raise ValueError("a sample is not positive: times, and what is compared with them, are")
    if min(map(len, groups)) == 1:
        return _within_launches(*groups)
    logs = [np.array([math.log(float(np.median(launch))) for launch in side]) for side in groups]
    difference, error, degrees = _welch(*logs)
    p_value = _two_sided(difference, error, degrees)
    if min(map(len, groups)) >= LAUNCHES_FOR_BOOTSTRAP:
        ratio = _pooled_median(groups[1]) / _pooled_median(groups[0])
        low, high = _bootstrap(*groups)
        return Ratio(ratio, low, high, p_value, "bootstrap by launch", error, degrees)
    half = _t_quantile(degrees, (1 + CONFIDENCE) / 2) * error
    low, high = _exp(difference - half), _exp(difference + half)
    method = "t interval of the launches' medians"
    return Ratio(math.exp(difference), low, high, p_value, method, error, degrees)


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Holm's: each p value such that those below a level are found at that family-wise level."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    result, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        result[index] = largest
    return result


def _within_launches(a: Sequence[FloatArray], b: Sequence[FloatArray]) -> Ratio:
    pooled = [np.concatenate(side) for side in (a, b)]
    ratio = float(np.median(pooled[1]) / np.median(pooled[0]))
    (low_a, high_a), (low_b, high_b) = (interval_within_launch(side) for side in pooled)
    if low_a is None or high_a is None or low_b is None or high_b is None:
        return Ratio(ratio, None, None, None, ONE_LAUNCH, None, None)
    # Relative half widths add as squares: the two medians are independent.
    half = math.hypot(math.log(high_a / low_a), math.log(high_b / low_b)) / 2
    return Ratio(ratio, ratio * math.exp(-half), ratio * math.exp(half), None, ONE_LAUNCH, None, None)


def _welch(a: FloatArray, b: FloatArray) -> tuple[float, float, float]:
    """The difference of means, its standard error, the degrees of freedom."""
    parts = [float(side.var(ddof=1)) / len(side) for side in (a, b)]
    total = sum(parts)
    below = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (a, b), strict=True))
    degrees = total**2 / below if below > 0 else float(len(a) + len(b) - 2)
    return float(b.mean() - a.mean()), math.sqrt(total), degrees


def _two_sided(difference: float, error: float, degrees: float) -> float:
    from scipy import special  # scipy.stats has the same by name, but takes seconds to import

    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * special.stdtr(degrees, -abs(difference) / error))


def _t_quantile(degrees: float, probability: float) -> float:
    from scipy import special

    return float(special.stdtrit(degrees, probability))


def _bootstrap(a: Sequence[FloatArray], b: Sequence[FloatArray]) -> tuple[float, float]:
    generator = np.random.default_rng(0)  # the same results folders give the same comparison
    ratios = []
    for _ in range(BOOTSTRAP_RESAMPLES):
        drawn = [[side[index] for index in generator.integers(len(side), size=len(side))] for side in (a, b)]
        ratios.append(_pooled_median(drawn[1]) / _pooled_median(drawn[0]))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)


def _pooled_median(launches: Sequence[FloatArray]) -> float:
    return float(np.median(np.concatenate(list(launches))))


def _exp(exponent: float) -> float:
    """With two launches an interval may reach beyond what a float holds."""
    return math.exp(max(-700.0, min(700.0, exponent)))
