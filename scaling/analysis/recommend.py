"""Which setting to use: one with its interval and what being wrong costs, or "undecided".

1. Of each workload the candidates (`scaling.analysis.candidates`) are ordered by the objective. Control arms
   with several workers, failed cells and lossy aggregators without a measured accuracy are none.
2. The first is recommended if it is apart from all others: the 95% intervals do not overlap, and the
   difference is above the noise floor of the A/A pairs. Within one launch it has to be above
   ONE_LAUNCH_MARGIN too, because nothing tells how much launches differ.
3. Else it is undecided between those; `scaling.analysis.repeats` says how many more repeats would tell.
4. `efficiency >= E` is the shortest time among candidates of that parallel efficiency. One whose interval
   holds E is neither in nor out, which leaves the choice undecided if it is the choice or faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scaling.analysis.accuracy import lossy_ids
from scaling.analysis.candidates import (
    EFFICIENCY,
    HOURS,
    TIME,
    Candidate,
    Workload,
    relative_half_width,
    workloads,
)
from scaling.analysis.columns import Row, aggregator_name, to_rows
from scaling.analysis.compare import ONE_LAUNCH_MARGIN
from scaling.analysis.explain import explain_cell, limit_of
from scaling.analysis.objectives import OBJECTIVES, Objective, parse_objective
from scaling.analysis.recommend_text import cost_of_error, sentence_of
from scaling.analysis.repeats import FEWEST, launches_needed
from scaling.analysis.samples import CellResult
from scaling.measure.ratios import ONE_LAUNCH

__all__ = ["OBJECTIVES", "Choice", "Recommendation", "recommend"]

Choice = Candidate
"""A candidate that was chosen, or could have been."""


Limit = Callable[[Row], "str | None"]
"""What takes most of a cell's time, as a sentence."""


@dataclass(frozen=True)
class Rival:
    """A candidate that cannot be told apart from the choice.

    Attributes:
        candidate: itself.
        why: overlap, noise, launch (within one launch, too close), unknown (no interval) or efficiency.
        launches: that would tell, in all; None where no number of them would.
    """

    candidate: Candidate
    why: str
    launches: int | None


@dataclass(frozen=True)
class Recommendation:
    """What is recommended for a workload.

    Attributes:
        objective: as asked.
        workload: its title.
        state: decided, undecided, or none (there is no candidate).
        choice: the smallest value; also while undecided.
        runner_up: the next one.
        rivals: those that cannot be told apart from the choice; none if decided.
        more_repeats: that would tell; None if decided, or if no number would.
        limit: what takes most of the choice's time, with what to try.
        if_wrong: what it costs to be wrong.
        excluded: (name, reason) of cells that may not be chosen.
        sentence: all of it, for people.
    """

    objective: str
    workload: str
    state: str
    choice: Choice | None
    runner_up: Choice | None
    rivals: list[Choice]
    more_repeats: int | None
    limit: str | None
    if_wrong: str
    excluded: list[tuple[str, str]]
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "objective": self.objective,
            "workload": self.workload,
            "state": self.state,
            "choice": _as_dict(self.choice),
            "runner_up": _as_dict(self.runner_up),
            "rivals": [_as_dict(one) for one in self.rivals],
            "more_repeats": self.more_repeats,
            "limit": self.limit,
            "if_wrong": self.if_wrong,
            "excluded": [{"name": name, "reason": reason} for name, reason in self.excluded],
            "sentence": self.sentence,
        }


def recommend(
    table: pd.DataFrame, cells: Sequence[CellResult], objective: str = TIME, num_cores: int | None = None
) -> list[Recommendation]:
    """One recommendation a workload, in the table's order; none where no cell has what the objective needs.

    Args:
        table: what `build_table` made.
        cells: the samples it was made of.
        objective: time, time-to-accuracy, `efficiency >= 0.8`, gpu-hours or energy.
        num_cores: CPU cores of a node; None where they are unknown.

    Raises:
        ScalingError: there is no such objective.
    """
    wanted, rows = parse_objective(objective), to_rows(table)
    by_id, lossy = {cell.cell_id: cell for cell in cells}, lossy_ids(cells)

    def limit(row: Row) -> str | None:
        found = limit_of(explain_cell(row, by_id[row["cell_id"]], rows, num_cores, lossy))
        return found.line() if found else None

    found = []
    for workload in workloads(wanted.name, rows, cells):
        found.append(_recommend(wanted, workload, rows, limit))
    return found


def _recommend(wanted: Objective, workload: Workload, rows: Sequence[Row], limit: Limit) -> Recommendation:
    candidates, excluded = workload.candidates, list(workload.excluded)
    unsure: list[Rival] = []
    if wanted.smallest_efficiency is not None:
        candidates, unsure, too_low = _efficient(candidates, rows, wanted.smallest_efficiency)
        excluded += too_low
    if not candidates:
        reason = "no cell is measured yet" if not excluded else "no candidate is left"
        return _nothing(wanted, workload.title, excluded, reason)
    choice, others = candidates[0], candidates[1:]
    rivals = [rival for other in others if (rival := _rival(wanted, choice, other)) is not None]
    rivals += [rival for rival in unsure if rival.candidate.value <= choice.value]
    excluded += [
        (one.candidate.name, "efficiency perhaps below the bound, and slower")
        for one in unsure
        if one.candidate not in candidates and one.candidate.value > choice.value
    ]
    runner_up = min((one for one in others), key=lambda one: one.value, default=None)
    return _made(wanted, workload.title, choice, runner_up, rivals, excluded, limit(choice.row))


def _made(
    wanted: Objective,
    title: str,
    choice: Candidate,
    runner_up: Candidate | None,
    rivals: Sequence[Rival],
    excluded: list[tuple[str, str]],
    limit: str | None,
) -> Recommendation:
    more = _more_repeats(choice, rivals)
    if_wrong = cost_of_error(choice, runner_up, [(one.candidate, one.why) for one in rivals])
    return Recommendation(
        wanted.text,
        title,
        "undecided" if rivals else "decided",
        choice,
        runner_up,
        [one.candidate for one in rivals],
        more,
        limit,
        if_wrong,
        excluded,
        sentence_of(title, choice, [(one.candidate, one.why) for one in rivals], more, if_wrong, limit),
    )


def _nothing(wanted: Objective, title: str, excluded: list[tuple[str, str]], reason: str) -> Recommendation:
    sentence = f"{title}: nothing to recommend, {reason}."
    return Recommendation(wanted.text, title, "none", None, None, [], None, None, "", excluded, sentence)


def _rival(wanted: Objective, choice: Candidate, other: Candidate) -> Rival | None:
    """Why two cannot be told apart; None if they can."""
    difference = other.value - choice.value
    if None in (choice.low, choice.high, other.low, other.high):
        return Rival(other, "unknown", max(FEWEST, _needed(difference, choice, other) or FEWEST))
    if wanted.name in (TIME, HOURS, EFFICIENCY) and _within_noise(choice, other):
        return Rival(other, "noise", None)
    assert choice.high is not None
    assert other.low is not None
    if other.low <= choice.high:
        one_launch = ONE_LAUNCH in (choice.method, other.method)
        return Rival(other, "overlap", FEWEST if one_launch else _needed(difference, choice, other))
    if ONE_LAUNCH in (choice.method, other.method) and difference <= ONE_LAUNCH_MARGIN * choice.value:
        return Rival(other, "launch", FEWEST)
    return None


def _within_noise(choice: Candidate, other: Candidate) -> bool:
    """Whether they differ by no more than two measurements of the very same do."""
    floors = [one.row["noise_floor"] for one in (choice, other) if one.row["noise_floor"] is not None]
    allowed = max(floors, default=0.0) * (choice.value + other.value) / 2
    return bool(floors) and other.value - choice.value <= allowed


def _needed(difference: float, choice: Candidate, other: Candidate) -> int | None:
    if choice.spread is None or other.spread is None:
        return FEWEST
    return launches_needed(difference, [choice.spread, other.spread])


def _more_repeats(choice: Candidate, rivals: Sequence[Rival]) -> int | None:
    """The most that any rival asks for; None if there is none that repeats could tell apart."""
    missing = [
        max(1, one.launches - min(len(choice.launches), len(one.candidate.launches)))
        for one in rivals
        if one.launches is not None
    ]
    return max(missing, default=None)


def _efficient(
    candidates: Sequence[Candidate], rows: Sequence[Row], smallest: float
) -> tuple[list[Candidate], list[Rival], list[tuple[str, str]]]:
    """Those that keep the efficiency, those of which that is not sure, and those that do not.

    One that keeps it, but not surely, is in both of the first lists.
    """
    kept, unsure, excluded = [], [], []
    for one in candidates:
        efficiency = one.row["parallel_efficiency"]
        if efficiency is None:
            excluded.append((one.name, "no efficiency: one worker without exchange was not measured"))
            continue
        gap = abs(efficiency - smallest) / efficiency
        half = 0.0 if one.row["world_size"] == 1 else _efficiency_half_width(one, rows)
        if efficiency >= smallest:
            kept.append(one)
        if gap <= half:
            spread = None if one.spread is None else one.spread / one.value
            launches = FEWEST if spread is None else launches_needed(gap, [spread])
            unsure.append(Rival(one, "efficiency", launches))
        elif efficiency < smallest:
            excluded.append((f"{one.name}: {efficiency:.2f}", f"efficiency below {smallest:g}"))
    return kept, unsure, excluded


def _efficiency_half_width(candidate: Candidate, rows: Sequence[Row]) -> float:
    """Relative: of its own time and of one worker's, which are independent."""
    row = candidate.row
    same = (
        *("kind", "model", "dataset", "step", "device", "precision", "threads"),
        *("input_placement", "memory_format", "augmentation"),
    )
    singles = [
        other
        for other in rows
        if other["world_size"] == 1
        and aggregator_name(other["aggregator"]) == "none"
        and other["iteration_s_low"] is not None
        and all(other[name] == row[name] for name in same)
    ]
    of_single = [
        (one["iteration_s_high"] - one["iteration_s_low"]) / 2 / one["iteration_s"] for one in singles
    ]
    return math.hypot(relative_half_width(candidate), max(of_single, default=math.inf))


def _as_dict(choice: Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    return {
        "name": choice.name,
        "cell_id": choice.row["cell_id"],
        "aggregator": choice.row["aggregator"],
        "world_size": choice.row["world_size"],
        "value": choice.value,
        "low": choice.low,
        "high": choice.high,
        "unit": choice.unit,
        "method": choice.method,
        "launches": len(choice.launches),
    }
