"""The budget of a step: from the spans of all ranks to parts that sum to the step's time on each rank.

The step's time is cut at every start and stop, and each piece is given to one part alone: to the span of the
lane `main`; else to that of another lane, of several to `communicate`, then to the first in PHASES; else it
is unattributed. What runs elsewhere during a phase of `main` is hidden, and takes no time.

A piece of `communicate` before the last rank has arrived at that exchange is waiting. A rank arrives at its
k-th exchange when its k-th span of `communicate` starts: compared where all ranks have equally many and their
steps' starts are known on one clock.

On the lane `hook` a span of `communicate` is time in which the computation stood still while the host set an
exchange going: exposed where no exchange covers it, never hidden, and no arrival.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PHASES = (
    *("input", "h2d", "forward", "backward", "encode", "d2h", "communicate", "reduce", "decode"),
    *("clip", "update", "h2d_result", "wait"),
)


Floats = NDArray[np.float64]

MAIN = "main"  # the lane of the computation; every other lane runs concurrently

HOOK = "hook"

EXCHANGE = "communicate"

PARTS = (
    *("input", "h2d", "forward", "backward", "encode", "decode", "d2h", "reduce", "h2d_result"),
    *("exposed_comm", "clip", "update", "wait", "unattributed"),
)

PART_OF = {phase: "exposed_comm" if phase == EXCHANGE else phase for phase in PHASES}
assert {*PART_OF.values(), "unattributed"} == set(PARTS)

_PLACE = {
    phase: place for place, phase in enumerate((EXCHANGE, *(phase for phase in PHASES if phase != EXCHANGE)))
}
"""Phase -> its place in the order by which a piece is given to one of several that cover it."""


class Span(NamedTuple):
    """A phase on a lane, in seconds from the step's start."""

    phase: str
    lane: str
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class RankStep:
    """`start_s`: on a clock that the ranks share, in seconds; None where that is not known; `behind_s`: as of
    `scaling.measure.phases.StepSample`."""

    step_s: float
    spans: Sequence[Span]
    start_s: float | None = None
    behind_s: Mapping[str, float] | None = None


@dataclass(frozen=True)
class StepBudget:
    """In seconds, on one rank. `complete_s`: when all ranks have arrived at each exchange, from the step's
    start; `arrived_after_first_s`: at the first exchange; None: not known."""

    step: RankStep
    complete_s: list[float] | None = None
    arrived_after_first_s: float | None = None

    @property
    def step_s(self) -> float:
        return self.step.step_s

    @property
    def parts_s(self) -> dict[str, float]:
        """Part -> its time, for all of PARTS; none is negative, and they sum to `step_s`."""
        return self._times_s[0]

    @property
    def hidden_comm_s(self) -> float:
        """`communicate` on other lanes, under spans of the lane `main`."""
        return self._times_s[1][EXCHANGE]

    @property
    def hidden_h2d_s(self) -> float:
        return self._times_s[1]["h2d"]

    @cached_property
    def _times_s(self) -> tuple[dict[str, float], dict[str, float]]:
        return _parts_and_hidden(self.step, self.complete_s)


def arrivals_s(ranks: Sequence[RankStep]) -> Floats | None:
    """When each rank arrived at each exchange of a step, on the shared clock, in seconds: [exchange, rank];
    None where there is no exchange, ranks differ in how many they have, or a start is not known."""
    starts_s = _arrivals_s(ranks)
    return None if starts_s is None else np.array(starts_s, dtype=np.float64).T


def _arrivals_s(ranks: Sequence[RankStep]) -> list[list[float]] | None:
    known = [(step, step.start_s) for step in ranks if step.start_s is not None]
    starts_s = [[start_s + span.start_s for span in _exchanges(step)] for step, start_s in known]
    is_whole = len(known) == len(ranks) and len(set(map(len, starts_s))) == 1
    return starts_s if is_whole and starts_s[0] else None


def step_budgets(ranks: Sequence[RankStep]) -> list[StepBudget]:
    """The budgets of one step, of which the ranks recorded this: one a rank, in their order."""
    arrivals = _arrivals_s(ranks)
    if arrivals is None:
        return [StepBudget(step) for step in ranks]
    complete_s, first_s = list(map(max, zip(*arrivals, strict=True))), min(own_s[0] for own_s in arrivals)
    budgets = []
    for step, own_s in zip(ranks, arrivals, strict=True):
        assert step.start_s is not None
        budgets.append(StepBudget(step, [all_s - step.start_s for all_s in complete_s], own_s[0] - first_s))
    return budgets


def _exchanges(step: RankStep) -> list[Span]:
    exchanges = [span for span in step.spans if _is_exchange(span)]
    return sorted(exchanges, key=lambda span: (span.start_s, span.stop_s))


def _is_exchange(span: Span) -> bool:
    return span.phase == EXCHANGE and span.lane != HOOK


def _parts_and_hidden(
    step: RankStep, complete_s: Sequence[float] | None
) -> tuple[dict[str, float], dict[str, float]]:
    length_s, exchanges = step.step_s, _exchanges(step)
    times_s = [0.0] * len(exchanges) if complete_s is None else complete_s
    ready_s = [_clipped(time_s, length_s) for time_s in times_s]
    exchanges_and_others = [
        *zip(exchanges, ready_s, strict=True),
        *((span, None) for span in step.spans if not _is_exchange(span)),
    ]
    # Plain numbers: a step has about ten spans, for which arrays take several times as long.
    spans = [
        (
            span.lane != MAIN,
            _PLACE[span.phase],
            place,
            _clipped(span.start_s, length_s),
            _clipped(span.stop_s, length_s),
            span.phase,
            span.lane,
            ready,
        )
        for place, (span, ready) in enumerate(exchanges_and_others)
    ]
    spans.sort()  # in the order of precedence
    cuts = {0.0, length_s, *ready_s}.union(*(span[3:5] for span in spans))
    parts_s = dict.fromkeys(PARTS, 0.0)
    hidden_s = {EXCHANGE: 0.0, "h2d": 0.0}
    for start_s, stop_s in pairwise(sorted(cuts)):
        middle_s, width_s = (start_s + stop_s) / 2, stop_s - start_s
        active = [span[5:] for span in spans if span[3] <= middle_s < span[4]]
        if not active:
            continue
        phase, lane, _ = active[0]
        part = PART_OF[phase]
        if phase == EXCHANGE:
            under_way = [ready for *_, ready in active if ready is not None]
            # A piece that several exchanges cover is waiting only while none of them has all its ranks.
            if under_way and min(under_way) > middle_s:
                part = "wait"
        parts_s[part] += width_s
        if lane == MAIN and len(active) > 1:
            for hidden in {phase for phase, lane, _ in active if lane not in (MAIN, HOOK)} & hidden_s.keys():
                hidden_s[hidden] += width_s
    parts_s["unattributed"] = max(0.0, length_s - math.fsum(parts_s.values()))
    return parts_s, hidden_s


def _clipped(time_s: float, length_s: float) -> float:
    return 0.0 if time_s < 0 else min(time_s, length_s)
