"""The trials of `decision_trials.Pairs` on matrices of times alone, ten times as fast, for thousands of them.

Same functions below `scaling compare`, without cells, rows and texts.
tests/benchmarks/test_decision_quality.py holds that both say the same.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from decision_models import BASE_S, Array, Noise, campaign, cell_factors
from decision_trials import NUM_PAIRS, true_time_s

from scaling.analysis.compare import FAMILY_LEVEL
from scaling.analysis.decisions import Campaigns, Design, adjusted, campaigns, goes_along
from scaling.analysis.launch_effects import serial_correlation, slow_launches
from scaling.analysis.study_scatter import TIMER_S, CellTimes, StudyScatter, offset_variance, study_scatter

NUM_CELLS = 9


@dataclass(frozen=True)
class Drawn:
    """One side of a pair.

    Attributes:
        logs: of the launches' times of a step that count, [cell, launch]; A/A replicates at the end.
        scatter: of the study.
    """

    logs: Array
    scatter: StudyScatter


def drawn(noise: Noise, launches: int, *seed: int, num_pairs: int = NUM_PAIRS) -> tuple[Drawn, Drawn, Array]:
    """Both sides of the pair that the seed draws, and how much each cell scatters."""
    generator = np.random.default_rng(seed)
    factors = cell_factors(generator, noise, NUM_CELLS)
    sides = []
    for _ in "ab":
        logs = campaign(generator, noise, factors, launches, num_pairs)
        times = np.log(BASE_S * np.exp(logs).mean(axis=2))
        times = np.delete(times, slow_launches(times), axis=1)
        cells: dict[Hashable, CellTimes] = {
            index: CellTimes("", dict(enumerate(np.exp(row)))) for index, row in enumerate(times)
        }
        pairs = [(index, NUM_CELLS + index) for index in range(num_pairs)]
        sides.append(Drawn(times, study_scatter(cells, pairs, in_order=True)))
    return sides[0], sides[1], factors


def compared(a: Drawn, b: Drawn, slower: float = 0.0) -> Campaigns:
    """What is said of the cells of both, the first one of b slower by that as a logarithm."""
    variance, degrees = offset_variance([*a.scatter.pairs, *b.scatter.pairs])
    serial = serial_correlation([*a.scatter.logs, *b.scatter.logs])
    of_a, of_b = a.logs[:NUM_CELLS], b.logs[:NUM_CELLS].copy()
    of_b[0] += slower
    smallest = (TIMER_S / np.exp(of_a.mean(axis=1))) ** 2
    return campaigns(of_a, of_b, smallest, Design(offset=(2 * variance, degrees), serial=serial))


def called(said: Campaigns) -> list[bool]:
    """Of each cell whether it is called slower or faster."""
    p_values = adjusted([one.p_value or 0.0 for one in said.tested])
    pairs = zip(p_values, said.ratios, said.tested, strict=True)
    return [p_value < FAMILY_LEVEL and goes_along(ratio, tested) for p_value, ratio, tested in pairs]


def held(noise: Noise, side: Drawn, factors: Array) -> float:
    """The part of the cells of which the interval holds the true time."""
    inside = []
    for cell, factor in enumerate(factors):
        ends, true_s = side.scatter.interval(cell), true_time_s(noise, float(factor))
        inside.append(ends is not None and ends[0] <= true_s <= ends[1])
    return float(np.mean(inside))


def ratios_held(said: Campaigns) -> float:
    """The part of the cells of which the interval of the ratio holds 1."""
    ends = [one.interval or (math.inf, 0.0) for one in said.ratios]
    return float(np.mean([low <= 1 <= high for low, high in ends]))
