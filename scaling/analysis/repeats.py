"""How many more repeats would tell two settings apart.

Two are distinguished where their 95% intervals do not overlap. With n launches a half width is
t(0.975; n - 1) s / sqrt(n), where s is the standard deviation of the launches' medians. If the difference d
and both deviations stay as they are, the smallest n with

    t(0.975; n - 1) (s_1 + s_2) / sqrt(n) < d

would do, and k = n - (launches so far) are missing. That is an estimate from few launches, not a promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaling.measure.statistics import CONFIDENCE

FEWEST = 3
"""Launches from which an interval over launches says something: of two it is twelve deviations wide."""

MOST = 200
"""More launches than this nobody starts to tell two settings apart."""


def launches_needed(difference: float, spreads: Sequence[float]) -> int | None:
    """The smallest number of launches whose intervals would not overlap; None if it is more than MOST.

    Args:
        difference: of the two medians, at least 0.
        spreads: standard deviations over launches, in the same unit; of one setting, against a fixed bound.
    """
    from scipy import special

    total = sum(spreads)
    for number in range(FEWEST, MOST + 1):
        quantile = float(special.stdtrit(number - 1, (1 + CONFIDENCE) / 2))
        if quantile * total / math.sqrt(number) < difference:
            return number
    return None
