"""Which setting to use: the one with the smallest value, how sure that is, and the cost of being wrong.

1. Of each workload the candidates (`scaling.analysis.candidates`) are ordered by the objective. Control arms
   with several workers, failed cells and lossy aggregators without a measured accuracy are none.
2. The first is the choice; of ties in memory, energy or GPU hours the fastest is. Its difference from every
   other is taken launch by launch where both share them, and decides (`scaling.analysis.decisions`):
   "decided" if all others are larger, "tie" if none can be smaller by more than TIE_RATIO, else "undecided".
   With one launch nothing is decided: what was seen is told.
3. How many workers, and which aggregator, are two decisions: the first among the best of each world size, the
   second among the best of each aggregator on the choice's workers.
4. `efficiency >= E` is the shortest time among candidates of that parallel efficiency. One of which the
   interval holds E is neither in nor out, which leaves the choice undecided if it is the choice or faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from scaling.analysis.candidates import TIME, Candidate, CandidateSet, Excluded, within_memory, workloads
from scaling.analysis.columns import by_key, to_rows
from scaling.analysis.control import ControlPeers
from scaling.analysis.decisions import FEWEST, MOST_ASKED, TIE_RATIO, Difference, launches_needed, state_of
from scaling.analysis.explain import doubts_of, explain_cell, limit_of
from scaling.analysis.explain_view import Known
from scaling.analysis.findings import Finding
from scaling.analysis.objectives import (
    AGAINST_TIME,
    Objective,
    Scatters,
    parse_objective,
    scatters_and_intervals,
    trade_off,
)
from scaling.analysis.samples import CellResult

Cells = Mapping[str, CellResult]  # the study's, by id


@dataclass(frozen=True)
class Rival:
    """A candidate that is not shown to be slower than the choice, or by TIE_RATIO at most."""

    candidate: Candidate  # itself
    why: str  # tie (the choice is larger by TIE_RATIO at most), undecided, one_launch or efficiency
    is_same: bool  # whether it is shown to be the same within TIE_RATIO, either way
    # that would show a difference, in all; None where no number would, or where it would not pay
    launches: int | None
    is_noisy: bool = False  # whether the launches scatter so much that it takes more than MOST_ASKED


@dataclass(frozen=True)
class Recommendation:
    objective: str  # as asked
    workload: Mapping[str, Any]  # what is given
    state: str  # decided, tie, undecided, one_launch, or none (there is no candidate)
    choice: Candidate | None  # the smallest value; also while undecided
    runner_up: Candidate | None  # the next one
    rivals: list[Rival]  # those that are not shown to be larger than the choice; none if decided
    # that would show a difference; None if decided, if none would that is worth having, or if it takes more
    # than MOST_ASKED launches
    more_repeats: int | None
    limit: Finding | None  # what takes most of the choice's time
    cost: Finding | None  # what it costs to be wrong; None without a choice
    excluded: list[Excluded]  # cells that may not be chosen
    # workers, aggregator: the two decisions, see `_decision`; None without a choice
    workers: Mapping[str, Any] | None = None
    aggregator: Mapping[str, Any] | None = None
    is_noisy: bool = False  # it takes more than MOST_ASKED: launches scatter too much
    # cell id -> the 95% interval of its time over the choice's
    ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    doubts: Sequence[Finding] = ()  # what makes the numbers of the choice and its rivals doubtful
    ruled_out: Sequence[Candidate] = ()  # those that are shown to be larger than the choice
    remarks: Sequence[Finding] = ()  # of the study's launches
    # the settings that no other one beats in the objective and in time; None without several
    trade_off: Finding | None = None

    @property
    def finding(self) -> Finding:
        values: dict[str, Any] = {"given": self.workload, "state": self.state}
        if self.choice is None:
            return Finding("recommendation", (), {**values, "has_cells": bool(self.excluded)})
        shared = self.choice.parts
        rivals = [
            {
                "why": rival.why,
                "is_same": rival.is_same,
                "is_choice": rival.candidate is self.choice,
                "name": rival.candidate.parts[0],
                "differs_in": [part for part in rival.candidate.parts[1:] if part not in shared],
            }
            for rival in self.rivals
        ]
        values |= {
            "choice": self.choice.values(),
            "as_small": self._as_small(self.choice),
            "num_ties": len(self.rivals) + 1,
            "iteration_s": self.choice.row["iteration_s"],
            "further": list(shared[1:]),
            "rivals": rivals,
            "ruled_out": _names(self.ruled_out, shared[0]),
            **{name: getattr(self, name) for name in ("more_repeats", "is_noisy", "doubts")},
            "fewest_launches": FEWEST,
            "tie_ratio": TIE_RATIO,
            **{name: getattr(self, name) for name in ("workers", "aggregator", "cost", "limit")},
        }
        shown = [self.choice, *(rival.candidate for rival in self.rivals)]
        return Finding("recommendation", tuple(candidate.cell_id for candidate in shown), values)

    def _as_small(self, choice: Candidate) -> list[dict[str, Any]] | None:
        """Others that are shown to be the same, of which time chose, each with its shortest step."""
        is_same = self.state == "tie" and all(rival.is_same for rival in self.rivals)
        if self.objective not in AGAINST_TIME or not is_same:
            return None
        shortest: dict[str, float] = {}
        for rival in self.rivals:
            name, step_s = rival.candidate.parts[0], rival.candidate.row["iteration_s"]
            shortest[name] = min(step_s, shortest.get(name, step_s))
        return [{"name": name, "s": step_s} for name, step_s in shortest.items() if name != choice.parts[0]]


def recommend(
    table: pd.DataFrame,
    cells: Sequence[CellResult],
    objective: str = TIME,
    num_cores: int | None = None,
    max_memory_bytes: int | None = None,
    known: Known | None = None,
) -> list[Recommendation]:
    """One recommendation per workload, in the table's order. `objective`: as users write it, or else
    ScalingError; `num_cores`: of a node; `max_memory_bytes`: that a candidate may take on a GPU; `known`: of
    the same table, where somebody has it already."""
    wanted, study = parse_objective(objective), known or Known.of(to_rows(table), cells, num_cores)
    sets = workloads(wanted.name, study.rows, cells)
    if max_memory_bytes is not None:
        sets = [within_memory(candidates, max_memory_bytes) for candidates in sets]
    scatters, chosen_from = scatters_and_intervals(wanted.name, sets, study.scatter)
    return [_recommend(wanted, workload, study, scatters) for workload in chosen_from]


def _names(candidates: Sequence[Candidate], taken: str) -> list[str]:
    """Of each as little as tells it from the others and from the choice, whose short name is `taken`."""
    used = Counter([taken, *(candidate.parts[0] for candidate in candidates)])
    return [one.name if used[one.parts[0]] > 1 else one.parts[0] for one in candidates]


def _recommend(wanted: Objective, workload: CandidateSet, study: Known, scatters: Scatters) -> Recommendation:
    candidates, excluded = workload.candidates, list(workload.excluded)
    unsure: list[Rival] = []
    if wanted.smallest_efficiency is not None:
        bound = wanted.smallest_efficiency
        candidates, unsure, too_low = _efficient(candidates, study.cells, scatters, bound)
        excluded += too_low
    if not candidates:
        return Recommendation(wanted.text, workload.given, "none", None, None, [], None, None, None, excluded)
    first = candidates[0]
    are_ties = [scatters.difference(first, other).is_same() for other in candidates]
    choice, *others = wanted.with_ties_by_time(candidates, are_ties)
    differences = [scatters.difference(choice, other) for other in others]
    state: str = state_of(differences)
    rivals = [
        _rival(other, difference, min(choice.num_launches, other.num_launches))
        for other, difference in zip(others, differences, strict=True)
        if not difference.is_larger or difference.is_same()
    ]
    if state == "best" and rivals:  # they are larger, but not by so much that it matters
        state = "tie"
    state, faster, slower = _with_unsure(state, choice, candidates, unsure)
    rivals_and_unsure = [*rivals, *faster]
    open_ids = {rival.candidate.cell_id for rival in rivals_and_unsure}
    ids = {candidate.cell_id for candidate in candidates}
    return Recommendation(
        wanted.text,
        workload.given,
        "decided" if state in ("alone", "best") else state,
        choice,
        others[0] if others else None,
        rivals_and_unsure,
        _more_repeats(choice, rivals_and_unsure),
        limit_of(explain_cell(choice.row, study)),
        _cost_of_error(others, differences, are_rivals=bool(rivals)),
        [*excluded, *slower],
        _decision(choice, others, scatters, lambda candidate: candidate.row["world_size"]),
        _decision(
            choice,
            [candidate for candidate in others if candidate.row["world_size"] == choice.row["world_size"]],
            scatters,
            lambda candidate: candidate.row["aggregator"],
        ),
        any(rival.is_noisy for rival in rivals_and_unsure),
        {
            other.cell_id: difference.interval
            for other, difference in zip(others, differences, strict=True)
            if difference.interval is not None
        },
        doubts=doubts_of(choice, [rival.candidate for rival in rivals_and_unsure], study),
        ruled_out=[other for other in others if other.cell_id not in open_ids],
        remarks=[one for one in scatters.of_times.remarks if not one.cells or ids & set(one.cells)],
        trade_off=trade_off(wanted.name, candidates),
    )


def _with_unsure(
    state: str, choice: Candidate, candidates: Sequence[Candidate], unsure: Sequence[Rival]
) -> tuple[str, list[Rival], list[Excluded]]:
    """The state with those of unknown efficiency that would be the choice or faster, and the others."""
    # One launch shows neither that it is below the bound, nor that it is slower.
    faster = [rival for rival in unsure if rival.why == "one_launch" or rival.candidate.value <= choice.value]
    if faster and state != "one_launch":
        state = "one_launch" if any(rival.why == "one_launch" for rival in faster) else "undecided"
    known = {candidate.cell_id for candidate in (*candidates, *(rival.candidate for rival in faster))}
    slower = [
        Excluded(rival.candidate.name, rival.candidate.name, Finding("efficiency_perhaps_below"))
        for rival in unsure
        if rival.candidate.cell_id not in known
    ]
    return state, faster, slower


def _decision(
    choice: Candidate, others: Sequence[Candidate], scatters: Scatters, key: Callable[[Candidate], Any]
) -> Mapping[str, Any]:
    """How many workers, or which aggregator: the choice's, its `state` among the best candidates of each, the
    `rivals` that are not shown to be worse, and the others. `others` are in the order of their values."""
    differing = [other for other in others if key(other) != key(choice)]
    best = {name: same[0] for name, same in by_key(differing, key).items()}
    differences = {name: scatters.difference(choice, other) for name, other in best.items()}
    rivals = [name for name, one in differences.items() if not one.is_larger or one.is_same()]
    state: str = state_of([*differences.values()])
    if state == "best" and rivals:
        state = "tie"
    left = [name for name in best if name not in rivals]
    return {"state": state, "choice": key(choice), "rivals": rivals, "others": left}


def _rival(other: Candidate, difference: Difference, num_launches: int) -> Rival:
    if difference.error is None:
        return Rival(other, "one_launch", False, FEWEST)
    lowest = difference.log_ratio - (difference.half_width() or 0.0)
    if lowest > -math.log1p(TIE_RATIO) or difference.is_same():
        return Rival(other, "tie", difference.is_same(), None)
    if difference.log_ratio <= math.log1p(TIE_RATIO):  # so small a difference is not worth more repeats
        return Rival(other, "undecided", False, None)
    needed = launches_needed(difference.log_ratio, difference.error * math.sqrt(num_launches))
    if needed is None or needed > MOST_ASKED:
        return Rival(other, "undecided", False, None, is_noisy=True)
    return Rival(other, "undecided", False, needed)


def _cost_of_error(
    others: Sequence[Candidate], differences: Sequence[Difference], *, are_rivals: bool
) -> Finding:
    """The largest loss if another candidate is the true best; if excluded, the cost of the runner-up."""
    if not others:
        return Finding("cost_of_error", (), {"case": "alone"})
    intervals = [difference.interval for difference in differences]
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(intervals):
        return Finding("cost_of_error", (), {"case": "one_launch"})
    if are_rivals:
        cost_ratio = max(0.0, 1 / min(low for low, _ in known) - 1)
        return Finding("cost_of_error", (), {"case": "intervals", "cost_ratio": cost_ratio})
    (low, high), runner_up = known[0], others[0]
    values = {"runner_up": runner_up.name, "cost_ratio": differences[0].ratio - 1}
    values |= {"low_ratio": low - 1, "high_ratio": high - 1}
    return Finding("cost_of_error", (runner_up.cell_id,), {"case": "runner_up", **values})


def _more_repeats(choice: Candidate, rivals: Sequence[Rival]) -> int | None:
    """The largest number of repeats that any rival needs; None if repeats cannot distinguish any."""
    missing = [
        max(1, rival.launches - min(choice.num_launches, rival.candidate.num_launches))
        for rival in rivals
        if rival.launches is not None
    ]
    return max(missing, default=None)


def _efficient(
    candidates: Sequence[Candidate], cells: Cells, scatters: Scatters, smallest: float
) -> tuple[list[Candidate], list[Rival], list[Excluded]]:
    """The candidates that reach the efficiency, those that may, and those that do not."""
    reaching, unsure, excluded = [], [], []
    peers = ControlPeers(cells.values())
    for candidate in candidates:
        efficiency = candidate.row["parallel_efficiency"]
        baseline = peers.baseline_of(cells[candidate.cell_id])
        if efficiency is None or baseline is None:
            excluded.append(Excluded(candidate.name, candidate.name, Finding("no_efficiency")))
            continue
        gap = math.log(efficiency / smallest)
        if efficiency >= smallest:
            reaching.append(candidate)
        difference = scatters.of_times.difference(baseline.cell_id, candidate.cell_id)
        half = 0.0 if candidate.row["world_size"] == 1 else difference.half_width()
        if half is None or abs(gap) <= half:
            launches = min(candidate.num_launches, scatters.of_times.num_launches(baseline.cell_id))
            needed = (
                FEWEST
                if difference.error is None
                else launches_needed(gap, difference.error * math.sqrt(launches))
            )
            is_noisy = needed is None or needed > MOST_ASKED
            why = "one_launch" if half is None else "efficiency"
            unsure.append(Rival(candidate, why, False, None if is_noisy else needed, is_noisy))
        elif efficiency < smallest:
            reason = Finding("efficiency_below", (candidate.cell_id,), {"smallest_ratio": smallest})
            name = f"{candidate.name}: {efficiency:.2f}"
            excluded.append(Excluded(name, name, reason))
    return reaching, unsure, excluded
