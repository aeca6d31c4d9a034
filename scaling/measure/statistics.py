"""What is said of samples: the median or the mean, and an interval that respects how they came about.

Iterations of one launch are not independent; launches are. Hence the interval of two or more launches is
Student's t on the logarithms of their values (a bootstrap by launch covers 89 to 92% of ten launches, and
less of fewer); of one it is by order statistics, or batches of samples for a mean, of this launch only.

Measuring stops at the first interval that is narrow enough, which makes it a little too sure: with log-normal
times of 1% to 10% spread, a goal of 1% and 20 samples at least, 93% to 96% of the intervals that were stopped
at hold the true median (2,000 runs each).

Warm-up is over when the one-sided Mann-Whitney U test, which asks nothing of how times are distributed, no
longer finds the last iterations getting faster: U is the number of pairs (one of the earlier half of the
window, one of the later) of which the earlier is slower, a tie counting a half. Its critical value is exact
at 5%: for two halves of five it is 21 of 25 (12 of 252 orders, 4.8%). So steady times are taken for warm-up
in one test of twenty, which costs an iteration or two.

References: R. Y. Hyndman, Y. Fan, "Sample quantiles in statistical packages", The American Statistician 50
(1996); H. B. Mann, D. R. Whitney, The Annals of Mathematical Statistics 18 (1947).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

CONFIDENCE = 0.95

FEWEST = 6
BATCHES = 10

ONE_LAUNCH = "within this launch only"  # the interval's method where there is one launch


@dataclass(frozen=True)
class Estimate:
    """`low`: of the 95% interval, in the samples' unit; None with too few; `method`: for people."""

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
    """With the interval that the number of launches allows. ValueError: there is no sample at all."""
    groups = [np.asarray(launch, dtype=float) for launch in launches if len(launch)]
    if not groups:
        raise ValueError("no samples: a median needs one at least")
    pooled, method = np.concatenate(groups), ONE_LAUNCH
    ends = interval_within_launch(pooled)
    if len(groups) > 1:
        ends = interval_of_launches([float(np.median(group)) for group in groups])
        method = "t interval of the launches' medians"
    return Estimate(float(np.median(pooled)), *ends, method, len(pooled), len(groups))


def interval_of_launches(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95% t interval on the log scale; (None, None) where a value is not positive: then it is no time."""
    if min(values) <= 0:
        return None, None
    logs = np.log(values)
    middle, half = float(logs.mean()), half_width(logs)
    return math.exp(max(middle - half, -700.0)), math.exp(min(middle + half, 700.0))


def interval_of_mean(samples: FloatArray) -> tuple[float | None, float | None]:
    """The 95% interval of the mean of consecutive samples, by the means of `BATCHES` batches: what follows
    upon each other may be correlated. (None, None) with fewer than six samples, or a mean that is no time."""
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
    """The 95% interval of the median by order statistics; it speaks of these samples' own launch only. (None,
    None) with fewer than six samples."""
    from scipy import special

    ordered = np.sort(np.asarray(samples, dtype=float))
    k = int(np.ceil(special.bdtrik((1 - CONFIDENCE) / 2, len(ordered), 0.5))) if len(ordered) else 0
    if k < 1:  # fewer than FEWEST samples: even their range covers less than 95%
        return None, None
    return float(ordered[k - 1]), float(ordered[-k])


MIN_SAMPLES = 20
LOOK_EVERY = 10  # samples between two looks: for callers


def relative_half_width(times: Sequence[float]) -> float:
    """Half the width of the median's 95% interval, as a part of the median; inf with fewer than six times."""
    low, high = interval_within_launch(times)
    if low is None or high is None:
        return math.inf
    median = median_of(times)
    return (high - low) / 2 / median if median > 0 else math.inf


def enough(times: Sequence[float], goal: float = 0.01, min_samples: int = MIN_SAMPLES) -> bool:
    """Whether half the interval is at most `goal` of the median. ValueError: the goal is not positive."""
    if not goal > 0:
        raise ValueError(f"goal {goal} is not positive; 0.01 asks for an interval of 1% to either side")
    return len(times) >= min_samples and relative_half_width(times) <= goal


LEVEL = 0.05  # probability at most, of taking steady times for warm-up

SMALLEST_WINDOW = 6
"""Of two halves of three, one order of the 20 is significant at 5%; of anything smaller none is."""


def is_warm(times: Sequence[float], window: int = 10) -> bool:
    """Whether the last `window` times are no longer getting faster; False with fewer times. ValueError: the
    window is too small for any order of times to be significant (6 at least)."""
    if window < SMALLEST_WINDOW:
        raise ValueError(
            f"window {window} is too small for a test at {LEVEL:.0%}; {SMALLEST_WINDOW} at least"
        )
    if len(times) < window:
        return False
    last = np.asarray(times[-window:], dtype=float)
    earlier, later = last[: window // 2, None], last[None, window // 2 :]
    statistic = float(np.sum(earlier > later) + 0.5 * np.sum(earlier == later))
    return statistic < critical_value(earlier.size, later.size)


@lru_cache
def critical_value(num_earlier: int, num_later: int) -> int:
    """The least U that is significant: P(U >= it) <= 5% where all orders are as likely."""
    orders = _orders_by_statistic(num_earlier, num_later)
    from_above = np.cumsum(orders[::-1]) / orders.sum()
    # U takes the values 0 to num_earlier * num_later.
    return len(orders) - int(np.searchsorted(from_above, LEVEL, side="right"))


def _orders_by_statistic(num_earlier: int, num_later: int) -> NDArray[np.float64]:
    """How many orders of the times have U = 0, 1, 2, ...: the paper's recurrence, without ties."""
    rows = [np.ones(1) for _ in range(num_later + 1)]  # of an empty earlier half: U is 0
    for earlier in range(1, num_earlier + 1):
        new = [np.ones(1)]
        for later in range(1, num_later + 1):
            orders = np.zeros(earlier * later + 1)
            orders[later:] += rows[later]
            orders[: len(new[-1])] += new[-1]
            new.append(orders)
        rows = new
    return rows[num_later]
