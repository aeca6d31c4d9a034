"""What is said of samples: the median or the mean, and an interval that respects how they came about.

Iterations of one launch share its placement, clocks and connections, so they are not independent; launches
are. Hence the interval's method depends on the number of launches:

- 2 or more: Student's t interval on the logarithms of the launches' values, which never reaches below zero
  (a bootstrap by launch covers 89 to 92% of ten launches, and less of fewer);
- 1: order statistics of that launch's samples for a median, batches of consecutive samples for a mean; both
  speak of this launch only.

Cells of a study know more together: theirs are `scaling.analysis.study_scatter`'s.

Reference: R. Y. Hyndman, Y. Fan, "Sample quantiles in statistical packages", The American Statistician 50
(1996).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

CONFIDENCE = 0.95

FEWEST = 6
BATCHES = 10

ONE_LAUNCH = "within this launch only"
"""The interval's method where there is one launch."""


@dataclass(frozen=True)
class Estimate:
    """A median with its interval, in the samples' unit. `low`: lower end of the 95% interval; None where
    there are too few samples for one; `method`: how the interval was made, for people."""

    median: float
    low: float | None
    high: float | None
    method: str
    num_samples: int
    num_launches: int


def median_of(values: Sequence[float]) -> float:
    """The median of finite values; numpy's takes ten times as long where they are few."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def estimate_median(launches: Sequence[Sequence[float]]) -> Estimate:
    """The median of all samples, with the interval that the number of launches allows. Raises ValueError:
    there is no sample at all."""
    groups = [np.asarray(launch, dtype=float) for launch in launches if len(launch)]
    if not groups:
        raise ValueError("no samples: a median needs one at least")
    pooled = np.concatenate(groups)
    low: float | None
    high: float | None
    if len(groups) > 1:
        low, high = interval_of_launches([float(np.median(group)) for group in groups])
        method = "t interval of the launches' medians"
    else:
        low, high = interval_within_launch(pooled)
        method = ONE_LAUNCH
    return Estimate(float(np.median(pooled)), low, high, method, len(pooled), len(groups))


def interval_of_launches(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95% t interval of two or more launches' values, on the log scale; (None, None) where one is not
    positive: then it is no time."""
    if min(values) <= 0:
        return None, None
    logs = np.log(values)
    middle, half = float(logs.mean()), half_width(logs)
    return math.exp(max(middle - half, -700.0)), math.exp(min(middle + half, 700.0))


def interval_of_mean(samples: FloatArray) -> tuple[float | None, float | None]:
    """The 95% interval of the mean of a launch's consecutive samples, by the means of `BATCHES` batches (of
    two samples at least): what follows upon each other may be correlated.

    Returns:
        Its ends, in the samples' unit; (None, None) with fewer than six samples, or a mean that is no time.
    """
    mean = float(samples.mean())
    if len(samples) < FEWEST or mean <= 0:
        return None, None
    batches = np.array_split(samples, min(BATCHES, len(samples) // 2))
    ratio = math.exp(min(half_width(np.array([batch.mean() for batch in batches])) / mean, 700.0))
    return mean / ratio, mean * ratio


def half_width(values: FloatArray, groups: int = 1) -> float:
    from scipy import special  # scipy.stats has the same by name, but takes seconds to import

    quantile = special.stdtrit(len(values) - groups, (1 + CONFIDENCE) / 2)
    return float(quantile * values.std(ddof=groups) / np.sqrt(len(values)))


def interval_within_launch(samples: Sequence[float] | FloatArray) -> tuple[float | None, float | None]:
    """The 95% interval of the median by order statistics; it speaks of these samples' own launch only.

    The k-th smallest and k-th largest, k as large as the binomial law of the median allows.

    Returns:
        Its ends, in the samples' unit; (None, None) with fewer than six samples.
    """
    from scipy import special

    ordered = np.sort(np.asarray(samples, dtype=float))
    k = int(np.ceil(special.bdtrik((1 - CONFIDENCE) / 2, len(ordered), 0.5))) if len(ordered) else 0
    if k < 1:  # fewer than FEWEST samples: even their range covers less than 95%
        return None, None
    return float(ordered[k - 1]), float(ordered[-k])
