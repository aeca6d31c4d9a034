"""What is said of a set of samples: the median, and an interval for it that respects how they came about.

Iterations of one launch share its placement, clocks and connections, so they are not independent; launches
are. Hence the interval's method depends on the number of launches:

- 2 or more: Student's t interval on the logarithms of the launches' medians, which never reaches below zero
  (a bootstrap by launch covers 89 to 92% of ten launches, and less of fewer);
- 1: order statistics of that launch's samples, which speaks of this launch only.

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

ONE_LAUNCH = "within this launch only"
"""The interval's method where there is one launch."""


@dataclass(frozen=True)
class Estimate:
    """A median with its interval, in the samples' unit.

    Attributes:
        median: of all samples.
        low: lower end of the 95% interval; None where there are too few samples for one.
        high: upper end; None likewise.
        method: how the interval was made, for people.
        num_samples: samples over all launches.
        num_launches: launches they come from.
    """

    median: float
    low: float | None
    high: float | None
    method: str
    num_samples: int
    num_launches: int


def estimate_median(launches: Sequence[Sequence[float]]) -> Estimate:
    """The median of all samples, with the interval that the number of launches allows.

    Args:
        launches: the samples of each launch; empty ones are left out.

    Raises:
        ValueError: there is no sample at all.
    """
    groups = [np.asarray(launch, dtype=float) for launch in launches if len(launch)]
    if not groups:
        raise ValueError("no samples: a median needs one at least")
    pooled = np.concatenate(groups)
    low: float | None
    high: float | None
    if len(groups) > 1:
        low, high = _t_interval(groups)
        method = "t interval of the launches' medians"
    else:
        low, high = interval_within_launch(pooled)
        method = ONE_LAUNCH
    return Estimate(float(np.median(pooled)), low, high, method, len(pooled), len(groups))


def _t_interval(groups: Sequence[FloatArray]) -> tuple[float | None, float | None]:
    """(None, None) where a median is not positive: then it is no time."""
    from scipy import special  # scipy.stats has the same by name, but takes seconds to import

    medians = np.array([np.median(group) for group in groups])
    if (medians <= 0).any():
        return None, None
    logs = np.log(medians)
    quantile = special.stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2)
    half_width = float(quantile * logs.std(ddof=1) / np.sqrt(len(logs)))
    middle = float(logs.mean())
    return math.exp(max(middle - half_width, -700.0)), math.exp(min(middle + half_width, 700.0))


def interval_within_launch(samples: Sequence[float] | FloatArray) -> tuple[float | None, float | None]:
    """The 95% interval of the median by order statistics; it speaks of these samples' own launch only.

    The k-th smallest and k-th largest, k as large as the binomial law of the median allows.

    Returns:
        Its ends, in the samples' unit; (None, None) with fewer than six samples.
    """
    from scipy import special

    ordered = np.sort(np.asarray(samples, dtype=float))
    k = int(np.ceil(special.bdtrik((1 - CONFIDENCE) / 2, len(ordered), 0.5))) if len(ordered) else 0
    if k < 1:  # fewer than six samples: even their range covers less than 95%
        return None, None
    return float(ordered[k - 1]), float(ordered[-k])
