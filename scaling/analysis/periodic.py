"""Periodic slowness: every k-th step takes longer (a comb in the raw iteration times).

For each period k the excess of the slowest n / k steps over the usual step is taken; steps above half of it
are slow. They are a comb if they fall on every k-th step: of the k offsets the one with most of them is
tested by the hypergeometric distribution (slow steps drawn at random would hit it so often with a probability
below a level, over all periods and offsets), and most slow steps must be on it, and most of its steps slow.

A slow first step of a block, which follows a pause in which ranks agree on how long to go on, is left out:
blocks have a period too. Where such steps are what is long, that is said (`long_firsts`). A cell has the
period that most of its launches show; several launches that agree need less evidence each, so that a cell's
false alarms stay below `LEVEL`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis.rank_times import own_times_s
from scaling.analysis.samples import Floats, IterationLaunch

SHORTEST_PERIOD, LONGEST_PERIOD = 3, 64
FEWEST_EVENTS = 4
LEVEL, LOOSEST = 1e-4, 1e-2  # false alarms: of a cell, and of one of several launches at most
ON_THE_COMB = 0.6  # part of the comb's steps that are slow, and part of the slow steps that are on the comb
SMALLEST_EXCESS = 0.25  # of the usual step: slow steps exceed it by so much at least
MOST_IN_FIRSTS = 0.5  # of what long steps take: so much of it after pauses says that they are long there
SMALLEST_PART = 0.25  # the phase that is named has so much of what slow profiled steps take longer


@dataclass(frozen=True)
class Comb:
    """Every `period`-th step is slow."""

    period: int  # in steps
    excess_s: float  # how much longer a slow step takes than a usual one, in seconds (median)
    step_s: float  # the mean step's length
    hit_ratio: float  # part of the comb's steps that are slow

    @property
    def lost_s(self) -> float:
        """The seconds that a mean step loses."""
        return self.hit_ratio * self.excess_s / self.period


@dataclass(frozen=True)
class PeriodicSlowness:
    """The comb of a cell, with the slow rank and phase in its profiled steps."""

    period: int  # period, excess_s, lost_s, step_s: see `Comb`; medians over the launches that have it
    excess_s: float
    lost_s: float
    step_s: float
    rank: int | None  # rank, phase: None where no profiled step was slow
    phase: str | None


def comb(steps_s: Floats, blocks: Sequence[int] = (0,), level: float = LEVEL) -> Comb | None:
    """The period at which steps, consecutive ones in seconds, are slow, or None. `blocks`: first ones after a
    pause; `level`: how likely a launch without a period seems to have one."""
    count = len(steps_s)
    usual_s = float(np.median(steps_s))
    is_first = np.isin(np.arange(count), blocks[1:])
    inside_s = np.sort(steps_s[~is_first])
    clearest: tuple[float, Comb] | None = None
    periods = range(SHORTEST_PERIOD, min(LONGEST_PERIOD, count // FEWEST_EVENTS) + 1)
    for period in periods:
        excess_s = float(np.median(inside_s[-(len(inside_s) // period or 1) :])) - usual_s
        if excess_s < SMALLEST_EXCESS * usual_s:
            continue
        is_slow = steps_s > usual_s + excess_s / 2
        known = np.flatnonzero(~(is_first & is_slow))
        slow = np.flatnonzero(is_slow & ~is_first)
        hits = np.bincount(slow % period, minlength=period)
        offset = int(hits.argmax())
        on_comb, places = int(hits[offset]), int((known % period == offset).sum())
        if on_comb < max(FEWEST_EVENTS, ON_THE_COMB * places) or on_comb < ON_THE_COMB * len(slow):
            continue
        chance = _chance(on_comb, len(known), places, len(slow)) * sum(periods)
        if chance < level and (clearest is None or chance < clearest[0]):
            at_offset = slow[slow % period == offset]
            own_s = float(np.median(steps_s[at_offset])) - usual_s
            clearest = chance, Comb(period, own_s, float(steps_s.mean()), on_comb / places)
    return None if clearest is None else clearest[1]


def _chance(num_hits: int, count: int, places: int, drawn: int) -> float:
    """That as many of the drawn steps fall on these places of `count` (hypergeometric, exact)."""
    # scipy.stats has it, but takes a second to import.
    ways = sum(
        math.comb(places, hits) * math.comb(count - places, drawn - hits)
        for hits in range(num_hits, min(places, drawn) + 1)
    )
    return ways / math.comb(count, drawn)


def periodic_slowness(launches: Sequence[IterationLaunch], phases: Sequence[str]) -> PeriodicSlowness | None:
    """The period that most launches of a cell show, if any; `phases`: a rank's own (`own_phases`)."""
    majority = len(launches) // 2 + 1
    level = (LEVEL / math.comb(len(launches), majority)) ** (1 / majority) if launches else LEVEL
    of_launches = [comb(launch.step_s, launch.blocks, min(level, LOOSEST)) for launch in launches]
    combs = [each for each in of_launches if each is not None]
    periods = [each.period for each in combs]
    period = max(set(periods), key=periods.count, default=0)
    same = [each for each in combs if each.period == period]
    if len(same) <= len(launches) / 2:
        return None
    excess_s, lost_s, step_s = (
        float(np.median([getattr(each, name) for each in same])) for name in ("excess_s", "lost_s", "step_s")
    )
    rank, phase = slow_place(launches, phases, excess_s) or (None, None)
    return PeriodicSlowness(period, excess_s, lost_s, step_s, rank, phase)


def long_firsts(launches: Sequence[IterationLaunch]) -> int | None:
    """The length of blocks whose first steps have most of what long steps take above the usual, or None."""
    excess_s, in_firsts_s, firsts = 0.0, 0.0, 0
    for launch in launches:
        above_s = launch.rate.cycles_s - np.median(launch.rate.cycles_s)
        above_s[above_s < SMALLEST_EXCESS * np.median(launch.rate.cycles_s)] = 0.0
        excess_s += float(above_s.sum())
        in_firsts_s += float(above_s[list(launch.blocks[1:])].sum())
        firsts += len(launch.blocks) - 1
    if firsts < FEWEST_EVENTS or in_firsts_s <= MOST_IN_FIRSTS * excess_s:
        return None
    return int(np.median([length for launch in launches for length in np.diff(launch.blocks)]))


def slow_place(
    launches: Sequence[IterationLaunch], phases: Sequence[str], excess_s: float
) -> tuple[int, str] | None:
    """The rank and phase with most of what slow profiled steps take longer, if that is no small part."""
    longer, excesses_s = [], []
    for launch in launches:
        if not launch.profiled_steps:
            continue
        own_s = own_times_s(launch, phases)
        steps_s = np.array([max(rank.step_s for rank in step.ranks) for step in launch.profiled_steps])
        slow = steps_s > np.median(steps_s) + excess_s / 2
        excesses_s.extend(steps_s[slow] - np.median(steps_s))
        longer.extend((own_s - np.median(own_s, axis=0))[slow])
    if not longer:
        return None
    middle = np.median(longer, axis=0)
    if middle.max() < SMALLEST_PART * np.median(excesses_s):
        return None
    rank, phase = np.unravel_index(int(middle.argmax()), middle.shape)
    return int(rank), phases[int(phase)]
