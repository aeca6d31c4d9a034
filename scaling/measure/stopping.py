"""When warm-up is over, and when to stop measuring.

Measuring stops once the median is known well enough. The 95% interval of the median within this launch
(`scaling.measure.statistics`) narrows as samples come in; enough are there when half of its width is a small
enough part of the median. Stopping at the first interval that happens to be narrow makes it a little too
sure. With log-normal times of 1% to 10% spread, a goal of 1% and 20 samples at least, 93% to 96% of the
intervals that were stopped at hold the true median, whether one looks after every sample or after every tenth
(2,000 runs each).

Warm-up is over when a test on the last iterations no longer finds them getting faster. The first iterations
of a training are slower: libraries choose algorithms, memory is allocated, clocks rise. The end is found by
the one-sided Mann-Whitney U test, which asks nothing of how times are distributed:

1. take the times of the last `window` iterations, and cut them into an earlier and a later half;
2. U is the number of pairs (one of the earlier half, one of the later) of which the earlier is slower, a tie
   counting a half;
3. where times are in random order, U is at least a critical value with a probability of at most 5%: at or
   above it the earlier half is significantly slower, and warm-up goes on.

The critical value is exact, from U's distribution over all orders: for two halves of five it is 21 of 25
(12 of 252 orders, 4.8%). So steady times are taken for warm-up in one test of twenty, which costs an
iteration or two; a drift that hides in the noise of `window` iterations is not seen.

Reference: H. B. Mann, D. R. Whitney, "On a test of whether one of two random variables is stochastically
larger than the other", The Annals of Mathematical Statistics 18 (1947).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scaling.measure.statistics import interval_within_launch, median_of

MIN_SAMPLES = 20
LOOK_EVERY = 10
"""Samples between two looks: for callers."""


def relative_half_width(times: Sequence[float]) -> float:
    """Half the width of the median's 95% interval, as a part of the median.

    Returns:
        inf where there is no interval: with fewer than six times.
    """
    low, high = interval_within_launch(times)
    if low is None or high is None:
        return math.inf
    median = median_of(times)
    return (high - low) / 2 / median if median > 0 else math.inf


def enough(times: Sequence[float], goal: float = 0.01, min_samples: int = MIN_SAMPLES) -> bool:
    """Whether the median of these times is known to within `goal` of itself.

    A look takes tens of microseconds, the first one also scipy's import; sorting makes it grow with `times`.
    `times`: of one launch after its warm-up, positive, in any unit; `goal`: half the interval's width, as a
    part of the median; 0.01 is 1%. Raises ValueError: the goal is not positive.
    """
    if not goal > 0:
        raise ValueError(f"goal {goal} is not positive; 0.01 asks for an interval of 1% to either side")
    return len(times) >= min_samples and relative_half_width(times) <= goal


LEVEL = 0.05
"""Probability at most, of taking steady times for warm-up."""

SMALLEST_WINDOW = 6
"""Of two halves of three, one order of the 20 is significant at 5%; of anything smaller none is."""


def is_warm(times: Sequence[float], window: int = 10) -> bool:
    """Whether the last `window` times are no longer getting faster; False with fewer times. `window`: of the
    last iterations that are looked at; 6 at least. Raises ValueError: the window is too small for any order
    of times to be significant."""
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
    """How many orders of the times have U = 0, 1, 2, ...: the paper's recurrence, without ties.

    The slowest of all times is of the earlier half, and slower than all `num_later`, or it is of the later
    half and counts nothing; what remains is the same for one time less.
    """
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
