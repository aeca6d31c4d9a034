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
from collections.abc import Sequence
from dataclasses import dataclass

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
    *("exposed_comm", "update", "wait", "unattributed"),
)
"""The parts of a step, in the order in which they are shown; they sum to its time."""

PART_OF = {phase: "exposed_comm" if phase == EXCHANGE else phase for phase in PHASES}
"""Phase -> the part that its exposed time goes to."""
assert {*PART_OF.values(), "unattributed"} == set(PARTS)

_FIRST_TO_LAST = (EXCHANGE, *(phase for phase in PHASES if phase != EXCHANGE))


@dataclass(frozen=True)
class Span:
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
    """

    step_s: float
    spans: Sequence[Span]
    start_s: float | None = None


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
    exchanges = _exchanges(step)
    spans = [*exchanges, *(span for span in step.spans if not _is_exchange(span))]
    starts, stops = (
        np.clip([getattr(span, end) for span in spans], 0.0, step.step_s) for end in ("start_s", "stop_s")
    )
    ready = np.zeros(len(exchanges)) if complete_s is None else np.clip(complete_s, 0.0, step.step_s)
    cuts = np.unique(np.concatenate([[0.0, step.step_s], starts, stops, ready]))
    widths, middles = np.diff(cuts), (cuts[1:] + cuts[:-1]) / 2
    covers = (starts[:, None] <= middles) & (middles < stops[:, None])  # [span, piece]
    on_main = np.array([span.lane == MAIN for span in spans], dtype=bool)
    on_hook = np.array([span.lane == HOOK for span in spans], dtype=bool)
    main = covers[on_main].any(axis=0)
    of_phase = {
        phase: covers & np.array([span.phase == phase for span in spans], dtype=bool)[:, None]
        for phase in {span.phase for span in spans}
    }

    def hidden_s(phase: str) -> float:
        concurrent = of_phase.get(phase, covers[:0])
        concurrent = concurrent[~on_main & ~on_hook] if len(concurrent) else concurrent
        return float(widths[concurrent.any(axis=0) & main].sum())

    owner = _owners(of_phase, on_main, main)
    # A piece that several exchanges cover is waiting only while none of them has all its ranks.
    under_way = covers[: len(exchanges)]
    going_on = (under_way & (ready[:, None] <= middles)).any(axis=0) | ~under_way.any(axis=0)
    owner[(owner == PHASES.index(EXCHANGE)) & ~going_on] = PHASES.index("wait")
    times = np.bincount(owner[owner >= 0], widths[owner >= 0], minlength=len(PHASES))
    parts_s = dict.fromkeys(PARTS, 0.0)
    for phase, seconds in zip(PHASES, times, strict=True):
        parts_s[PART_OF[phase]] = float(seconds)
    parts_s["unattributed"] = max(0.0, step.step_s - math.fsum(parts_s.values()))
    return StepBudget(step.step_s, parts_s, hidden_s(EXCHANGE), hidden_s("h2d"), after_first_s)


def _owners(
    of_phase: dict[str, NDArray[np.bool_]], on_main: NDArray[np.bool_], main: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The index in PHASES of the phase that each piece belongs to; -1 where no span covers it."""
    owner = np.full(len(main), -1, dtype=np.int64)
    for lane in (~on_main, on_main):  # main last: it goes before the other lanes
        for phase in reversed(_FIRST_TO_LAST):
            if phase in of_phase:
                owner[of_phase[phase][lane].any(axis=0)] = PHASES.index(phase)
    return owner
