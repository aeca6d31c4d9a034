"""What a launch does to all of its cells beyond what they share: a slow launch of a few.

What all cells of a launch share cancels in their differences, but a disturbed launch slows its cells down
unevenly. It is recognised by all cells together: most are slower in it than in the others, and either they
scatter more about their common shift than in the others (F test), or the shift is far from the others' (t
test). Decided with it, three launches of eight aggregators are undecided in three studies of four; so it
counts for nothing. docs/decisions/0031-launch-effects.md has the simulation.
"""

from __future__ import annotations

import math

import numpy as np

from scaling.analysis.moderated import FEWEST_FOR_MEDIAN, FloatArray, means

FEWEST_LAUNCHES = 3
"""Of two nobody knows which one is slow."""

MOST_CELLS = 0.75
"""The part of the cells that a slow launch slows down, at least."""

SMALLEST_SHIFT = 0.03
"""A launch that is slower by less, as a logarithm, changes no decision: times within 3% are the same."""

SLOW_LEVEL = 0.02
"""The probability of finding a slow launch where none is, of either test and all launches together."""


def slow_launches(logs: FloatArray) -> list[int]:
    """The columns of launches that are slow in most cells, always fewer than half.

    Args:
        logs: of the times of a launch's cells, [cell, launch]; cells with NaN are ignored.
    """
    logs = logs[np.isfinite(logs).all(axis=1)]
    num_cells, num_launches = logs.shape
    if num_cells < FEWEST_FOR_MEDIAN or num_launches < FEWEST_LAUNCHES:
        return []
    by_shift = np.argsort(np.median(logs - means(logs)[:, None], axis=0))
    for num_slow in range((num_launches - 1) // 2, 0, -1):
        others, slow = logs[:, by_shift[:-num_slow]], by_shift[-num_slow:]
        if max(_p_slow(others, logs[:, launch]) for launch in slow) * num_launches < SLOW_LEVEL:
            return sorted(map(int, slow))
    return []


def _p_slow(others: FloatArray, launch: FloatArray) -> float:
    """The smaller p value of both tests; 1 where most cells are not slower in this launch."""
    from scipy import special

    (num_cells, num_others), middles = others.shape, others.mean(axis=1)
    excess = launch - middles
    if (excess > 0).mean() < MOST_CELLS or np.median(excess) < SMALLEST_SHIFT:
        return 1.0
    apart = others - middles[:, None]
    shared = np.median(apart, axis=0)
    degrees = (num_cells - 1) * (num_others - 1)
    variance = max(float(((apart - shared) ** 2).sum()) / degrees, 1e-18)
    per_launch = 1 + 1 / num_others
    p_uneven = special.fdtrc(num_cells - 1, degrees, float(excess.var(ddof=1)) / per_launch / variance)
    # Two launches may agree by chance: one that scatters as the cells do is added.
    of_shared = (float(((shared - shared.mean()) ** 2).sum()) + variance) / num_others
    p_shift = special.stdtr(num_others, -float(np.median(excess)) / math.sqrt(of_shared * per_launch))
    return float(min(p_uneven, p_shift))
