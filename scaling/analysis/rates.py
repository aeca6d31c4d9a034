"""The time of a step of one launch as a rate: wall clock over steps of the measured window.

A median step is no rate: what every seventh step, a collector of garbage or a slow loader adds is not in it.
The window is that of the unprofiled steps. It has blocks; between two of them the ranks compare notes
(`scaling.training.timing`), and that pause is left out. So a block lasts from its first step's start to the
end of its last one, and the launch as long as its slowest rank's blocks together. Ranks that begin a block
before the last one wait for it in their first step, by up to 35 ms at the start of the window: this too is
the tool's, and the first step of a block counts as long as on the rank where it was shortest.

Records since version 7 say how long the blocks are. Those of before follow from the rule by which they were
made: each block lasted `_BLOCK_S` by the median of the steps before it, and had `_FEWEST` steps at least.
Only the first one's length is not known, and is taken to be the one that puts most gaps between blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WALL_CLOCK = "wall clock"
MEAN_OF_STEPS = "mean of steps"
"""How a launch's time of a step was made; the mean where starts of steps were not recorded: what passes
between two steps is not in it."""

MEDIAN_OF_STEPS = "median of steps"  # of device studies, which compare typical steps
_BLOCK_S, _FEWEST, _FEWEST_IN_FIRST = 0.1, 10, 3  # of the blocks until version 6
_CLEAR_GAP = 0.02  # of a step: a gap between two steps that is so much longer than usual is clearly a pause


@dataclass(frozen=True)
class Rate:
    # on the slowest rank, from each step's start to that of the next one, of a block's last step to its end:
    # [step], in seconds
    cycles_s: Floats
    form: str  # WALL_CLOCK or MEAN_OF_STEPS
    pauses_s: float  # between blocks and for ranks that begin one later, on that rank; they are left out

    @property
    def iteration_s(self) -> float:
        return float(self.cycles_s.mean())


def rate_of(steps_s: Floats, starts_s: Floats | None, blocks: Sequence[int]) -> Rate:
    """The time of a step of one launch, from the steps' lengths in seconds, [rank, step], and when they
    began, if known; `blocks`: indices of the blocks' first steps."""
    if starts_s is None:
        return Rate(steps_s.max(axis=0), MEAN_OF_STEPS, 0.0)
    cycles_s = np.append(np.diff(starts_s, axis=1), steps_s[:, -1:], axis=1)
    last = np.array(blocks[1:], dtype=np.intp) - 1
    pauses_s = cycles_s[:, last] - steps_s[:, last]
    cycles_s[:, last] = steps_s[:, last]
    first = list(blocks)
    waits_s = cycles_s[:, first] - cycles_s[:, first].min(axis=0)
    cycles_s[:, first] -= waits_s
    slowest = int(cycles_s.sum(axis=1).argmax())
    return Rate(cycles_s[slowest], WALL_CLOCK, float(pauses_s[slowest].sum() + waits_s[slowest].sum()))


def blocks_of_lengths(lengths: Sequence[int], num_steps: int) -> tuple[int, ...]:
    return tuple(int(start) for start in np.cumsum([0, *lengths[:-1]]) if start < num_steps)


def blocks_by_rule(steps_s: Floats, starts_s: Floats | None) -> tuple[int, ...]:
    """The first steps of blocks in a record of before version 7 with a precision goal; see `rate_of`."""
    slowest_s = steps_s.max(axis=0)
    count = len(slowest_s)
    if starts_s is None or count <= _FEWEST_IN_FIRST:
        return (0,)
    gaps_s = np.append(0.0, np.diff(starts_s[0]) - steps_s[0, :-1])
    longest = max(_FEWEST, int(_BLOCK_S / max(float(slowest_s.min()), 1e-9)))
    medians_s = {}

    def following(first: int) -> list[int]:
        starts, at = [0], first
        while at < count:
            starts.append(at)
            if at not in medians_s:
                medians_s[at] = float(np.median(slowest_s[:at]))
            at += max(_FEWEST, int(_BLOCK_S / max(medians_s[at], 1e-9)))
        return starts

    clear_s = float(np.median(gaps_s) + _CLEAR_GAP * np.median(slowest_s))

    def fit(starts: Sequence[int]) -> tuple[int, float]:
        own_s = gaps_s[list(starts[1:])]
        return int((own_s > clear_s).sum()), float(own_s.sum())

    choices = [tuple(following(first)) for first in range(_FEWEST_IN_FIRST, min(longest, count - 1) + 1)]
    return max(choices, key=fit)
