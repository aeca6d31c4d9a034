"""When warm-up is over: a test for "still getting faster" on the last iterations.

The first iterations of a training are slower: libraries choose algorithms, memory is allocated, clocks rise.
The end is found by the one-sided Mann-Whitney U test, which asks nothing of how times are distributed:

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

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
"""Probability at most, of taking steady times for warm-up."""

SMALLEST_WINDOW = 6
"""Of two halves of three, one order of the 20 is significant at 5%; of anything smaller none is."""


def is_warm(times: Sequence[float], window: int = 10) -> bool:
    """Whether the last `window` times are no longer getting faster; False with fewer times.

    Args:
        times: of all iterations so far, in order, in any unit.
        window: of the last iterations that are looked at; 6 at least.

    Raises:
        ValueError: the window is too small for any order of times to be significant.
    """
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
    """The least U that is significant: P(U >= it) <= 5% where all orders are as likely.

    Args:
        num_earlier, num_later: times in either half, 3 at least.
    """
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
