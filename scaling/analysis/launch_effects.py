"""What launches do to cells beyond what these share: a slow one of a few, and each like the one before.

What all cells of a launch share cancels in their differences, but a disturbed launch slows its cells down
unevenly. It is recognised by all cells together: most are slower in it than in the others, and either they
scatter more about their common shift than in the others (F test), or the shift is far from the others' (t
test). Decided with it, three launches of eight aggregators are undecided in three studies of four; so it
counts for nothing. docs/decisions/0031-launch-effects.md has the simulation.

Launches that are like the one before know less than as many independent ones. Of a series of values the sum
of squared successive differences over that of squared deviations is 2 if they are independent, whatever their
variance (J. von Neumann, Annals of Mathematical Statistics 12, 1941); the mean over all series is tested.
Where it is smaller, the largest correlation counts that it does not exclude.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis.moderated import FEWEST_FOR_MEDIAN, ROUNDING, FloatArray, means

FEWEST_LAUNCHES = 3  # of two nobody knows which one is slow
MOST_CELLS = 0.75  # the part of the cells that a slow launch slows down, at least
SMALLEST_SHIFT = 0.03  # as a logarithm; less changes no decision: times within 3% are the same
SLOW_LEVEL = 0.02  # chance of finding a slow launch where none is, of both tests and all launches


def slow_launches(logs: FloatArray) -> list[int]:
    """The launches that are slow in most cells, fewer than half; logarithms of times, [cell, launch]."""
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
    variance = max(float(((apart - shared) ** 2).sum()) / degrees, ROUNDING)
    per_launch = 1 + 1 / num_others
    p_uneven = special.fdtrc(num_cells - 1, degrees, float(excess.var(ddof=1)) / per_launch / variance)
    # Two launches may agree by chance: one that scatters as the cells do is added.
    of_shared = (float(((shared - shared.mean()) ** 2).sum()) + variance) / num_others
    p_shift = special.stdtr(num_others, -float(np.median(excess)) / math.sqrt(of_shared * per_launch))
    return float(min(p_uneven, p_shift))


SERIAL_LEVEL = 0.01  # the probability that launches are called correlated where they are not
STRONGEST = 0.9  # the largest correlation that is allowed for: three launches hardly tell 0.8 from 1


@dataclass(frozen=True)
class Serial:
    """How launches are correlated with the one before: 0 where that is not shown."""

    within: float = 0.0  # of the cells by themselves
    shared: float = 0.0  # of what the cells of a launch share

    @property
    def total(self) -> float:
        """Of a cell's time."""
        return max(self.within, self.shared)


INDEPENDENT = Serial()


def serial_correlation(families: Sequence[FloatArray]) -> Serial:
    """Of launches in their order, of families [cell, launch]; a cell that lacks one is ignored."""
    complete = [logs[np.isfinite(logs).all(axis=1)] for logs in families]
    many = [logs for logs in complete if len(logs) >= FEWEST_FOR_MEDIAN]
    shared = [np.median(logs - means(logs)[:, None], axis=0) for logs in many]
    own = [logs - middle for logs, middle in zip(many, shared, strict=True)]
    return Serial(_correlation(own), _correlation([middle[None, :] for middle in shared]))


def inflation(correlation: float, num_launches: int) -> float:
    """By how much the variance of a mean over launches exceeds what their scatter says."""
    if num_launches < FEWEST_LAUNCHES or not correlation:
        return 1.0
    of_mean, of_scatter = _expected(correlation, num_launches)
    return of_mean / (of_scatter / num_launches)


def inflations(correlation: float, logs: FloatArray) -> FloatArray:
    """The same of each cell, [cell], of times [cell, launch]."""
    return np.array([inflation(correlation, int(count)) for count in np.isfinite(logs).sum(axis=1)])


def _expected(correlation: float, num_launches: int) -> tuple[float, float]:
    """The variance of the mean of n launches, and that about their mean, over a launch's variance."""
    apart = np.arange(1, num_launches)
    pairs = 2 * float(((num_launches - apart) * correlation**apart).sum())
    of_mean = (num_launches + pairs) / num_launches**2
    return of_mean, num_launches * (1 - of_mean) / (num_launches - 1)


def _correlation(series: Sequence[FloatArray]) -> float:
    """The upper limit of all series' correlation, [series, launch]; 0 if none is significant."""
    from scipy import special

    lacking, variance, known = 0.0, 0.0, list[tuple[int, int, float]]()
    for values in series:
        squares, n = ((values - means(values)[:, None]) ** 2).sum(axis=1), values.shape[1]
        moving = squares > ROUNDING
        if n >= FEWEST_LAUNCHES and moving.any():
            steps = (np.diff(values[moving], axis=1) ** 2).sum(axis=1)
            lacking += float((2 - steps / squares[moving]).sum())
            variance += len(steps) * 4 * (n - 2) / ((n + 1) * (n - 1))
            known.append((n, len(steps), float(steps.sum() / squares[moving].sum())))
    if not variance or not SERIAL_LEVEL or special.ndtr(-lacking / math.sqrt(variance)) >= SERIAL_LEVEL:
        return 0.0
    # A mean of ratios shows that there is a correlation, the ratio of sums how strong it is.
    least = sum(number * ratio for _, number, ratio in known)
    least += float(special.ndtri(SERIAL_LEVEL)) * math.sqrt(variance)
    for correlation in np.arange(1, round(STRONGEST / 0.05)) * 0.05:
        expected = [number * 2 * (1 - correlation) / _expected(correlation, n)[1] for n, number, _ in known]
        if sum(expected) <= least:
            return float(correlation)
    return STRONGEST
