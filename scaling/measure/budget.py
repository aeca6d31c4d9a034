"""The budget of a step: from the spans of all ranks to parts that sum to the step's time on each rank.

The idea: the step's time is cut at every start and stop, and each piece is given to one part alone.

1. A piece under a span of the lane `main` belongs to that span's phase.
2. Else it belongs to the span of another lane (`comm`, `copy`) that covers it: of several, to `communicate`,
   then to the first in the order of PHASES. What of another lane runs during a phase of `main` is hidden, and
   takes no time of the step.
3. A piece of `communicate` before the last rank has arrived at that exchange is waiting. A rank arrives at
   its k-th exchange when its k-th span of `communicate` starts; that can be compared only where all ranks
   have equally many of them, and their steps' starts are known on one clock.
4. What no span covers is unattributed.

On the lane `hook` a span of `communicate` is no exchange, but the time in which the computation stood still
while the host set one going: it is exposed where no exchange covers it, never hidden, and no arrival.

All is clipped to the step. Hidden times are the union of their pieces too: a moment counts once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling.measure.phase_names import PHASES

Floats = NDArray[np.float64]

MAIN = "main"
"""The lane of the computation; every other lane runs concurrently."""

HOOK = "hook"

EXCHANGE = "communicate"

PARTS = (
    *("input", "h2d", "forward", "backward", "encode", "decode", "d2h", "reduce", "h2d_result"),
    *("exposed_comm", "clip", "update", "wait", "unattributed"),
)
"""The parts of a step, in the order in which they are shown; they sum to its time."""

PART_OF = {phase: "exposed_comm" if phase == EXCHANGE else phase for phase in PHASES}
"""Phase -> the part that its exposed time goes to."""
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
    """What one rank recorded of a step.

    Attributes:
        step_s: its length, in seconds.
        spans: in any order.
        start_s: its start on a clock that the ranks share, in seconds; None where that is not known.
        behind_s: how far the device was behind the host at the end of forward and backward
            (`scaling.measure.phases.StepSample`); None where that was not recorded.
    """

    step_s: float
    spans: Sequence[Span]
    start_s: float | None = None
    behind_s: Mapping[str, float] | None = None


@dataclass(frozen=True)
class StepBudget:
    """Where the time of one step went on one rank, in seconds.

    Attributes:
        step_s: the step's length.
        parts_s: part -> its time, for all of PARTS; none is negative, and they sum to `step_s`.
        hidden_comm_s: `communicate` on other lanes, under spans of the lane `main`.
        hidden_h2d_s: likewise `h2d`.
        arrived_after_first_s: how much later than the first rank this one arrived at the first exchange; None
            where that cannot be said.
    """

    step_s: float
    parts_s: dict[str, float]
    hidden_comm_s: float
    hidden_h2d_s: float
    arrived_after_first_s: float | None


def arrivals_s(ranks: Sequence[RankStep]) -> Floats | None:
    """When each rank arrived at each exchange of a step, on the shared clock, in seconds: [exchange, rank].

    Returns:
        None where there is no exchange, ranks differ in how many they have, or a start is not known.
    """
    exchanges = [_exchanges(step) for step in ranks]
    if not exchanges[0] or any(len(spans) != len(exchanges[0]) for spans in exchanges):
        return None
    starts_s = []
    for step, spans in zip(ranks, exchanges, strict=True):
        if step.start_s is None:
            return None
        starts_s.append([step.start_s + span.start_s for span in spans])
    return np.array(starts_s, dtype=np.float64).T


def step_budgets(ranks: Sequence[RankStep]) -> list[StepBudget]:
    """The budgets of one step.

    Args:
        ranks: what each rank recorded of it.

    Returns:
        One budget a rank, in their order.
    """
    arrivals = arrivals_s(ranks)
    if arrivals is None:
        return [_rank_budget(step, None, None) for step in ranks]
    complete_s, first_s = arrivals.max(axis=1), arrivals.min(axis=1)[0]
    budgets = []
    for rank, step in enumerate(ranks):
        assert step.start_s is not None
        budgets.append(_rank_budget(step, complete_s - step.start_s, float(arrivals[0, rank] - first_s)))
    return budgets


def _exchanges(step: RankStep) -> list[Span]:
    """Its spans of `communicate`, in the order of their starts."""
    exchanges = [span for span in step.spans if _is_exchange(span)]
    return sorted(exchanges, key=lambda span: (span.start_s, span.stop_s))


def _is_exchange(span: Span) -> bool:
    return span.phase == EXCHANGE and span.lane != HOOK


def _rank_budget(step: RankStep, complete_s: Floats | None, after_first_s: float | None) -> StepBudget:
    """One rank's budget; `complete_s` says when all have arrived at each exchange, from its step's start."""

    def clipped(time_s: float) -> float:
        return min(max(time_s, 0.0), step.step_s)

    exchanges = _exchanges(step)
    ready_s = [0.0] * len(exchanges) if complete_s is None else [clipped(float(time)) for time in complete_s]
    spans = [
        _Clipped(clipped(span.start_s), clipped(span.stop_s), span, ready)
        for span, ready in [
            *zip(exchanges, ready_s, strict=True),
            *((span, None) for span in step.spans if not _is_exchange(span)),
        ]
    ]
    spans.sort(key=lambda span: span.precedence)
    cuts = {0.0, step.step_s, *ready_s, *(span.start_s for span in spans), *(span.stop_s for span in spans)}
    ordered = sorted(cuts)
    parts_s = dict.fromkeys(PARTS, 0.0)
    hidden_s = {EXCHANGE: 0.0, "h2d": 0.0}
    # Plain numbers: a step has about ten spans, for which arrays take several times as long.
    for start_s, stop_s in pairwise(ordered):
        middle_s, width_s = (start_s + stop_s) / 2, stop_s - start_s
        active = [span for span in spans if span.start_s <= middle_s < span.stop_s]
        if not active:
            continue
        first = active[0]
        under_way = [span.ready_s for span in active if span.ready_s is not None]
        # A piece that several exchanges cover is waiting only while none of them has all its ranks.
        is_waiting = bool(under_way) and all(ready > middle_s for ready in under_way)
        waits = first.phase == EXCHANGE and is_waiting
        parts_s["wait" if waits else PART_OF[first.phase]] += width_s
        if first.lane == MAIN:
            for phase in {span.phase for span in active if span.lane not in (MAIN, HOOK)} & hidden_s.keys():
                hidden_s[phase] += width_s
    parts_s["unattributed"] = max(0.0, step.step_s - math.fsum(parts_s.values()))
    return StepBudget(step.step_s, parts_s, hidden_s[EXCHANGE], hidden_s["h2d"], after_first_s)


class _Clipped:
    """A span within its step, and when all ranks have arrived at it; None where it is no exchange."""

    __slots__ = ("lane", "phase", "precedence", "ready_s", "start_s", "stop_s")

    def __init__(self, start_s: float, stop_s: float, span: Span, ready_s: float | None) -> None:
        self.start_s, self.stop_s, self.ready_s = start_s, stop_s, ready_s
        self.phase, self.lane = span.phase, span.lane
        self.precedence = (span.lane != MAIN, _PLACE[span.phase])
