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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scaling.analysis.accuracy import lossy_ids
from scaling.analysis.candidates import (
    EFFICIENCY,
    HOURS,
    TIME,
    Candidate,
    Excluded,
    Workload,
    relative_half_width,
    workloads,
)
from scaling.analysis.columns import Row, to_rows
from scaling.analysis.compare import ONE_LAUNCH_MARGIN
from scaling.analysis.control import is_baseline_of
from scaling.analysis.explain import explain_cell, limit_of
from scaling.analysis.explain_doubts import LARGE_FLOOR
from scaling.analysis.findings import Finding
from scaling.analysis.intervals import within_noise
from scaling.analysis.objectives import OBJECTIVES, Objective, parse_objective
from scaling.analysis.repeats import FEWEST, launches_needed
from scaling.analysis.samples import CellResult
from scaling.measure.statistics import ONE_LAUNCH

__all__ = ["OBJECTIVES", "Choice", "Recommendation", "recommend"]

Choice = Candidate
"""A candidate that was chosen, or could have been."""


Limit = Callable[[Row], "Finding | None"]
"""What takes most of a cell's time."""

Cells = Mapping[str, CellResult]
"""The study's, by id."""


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
        limit: what takes most of the choice's time.
        cost: what it costs to be wrong; None without a choice.
        excluded: cells that may not be chosen.
    """

    objective: str
    workload: str
    state: str
    choice: Choice | None
    runner_up: Choice | None
    rivals: list[Rival]
    more_repeats: int | None
    limit: Finding | None
    cost: Finding | None
    excluded: list[Excluded]

    @property
    def finding(self) -> Finding:
        """All of it."""
        values: dict[str, Any] = {"title": self.workload, "state": self.state}
        if self.choice is None:
            return Finding("recommendation", (), {**values, "has_cells": bool(self.excluded)})
        shared = self.choice.parts
        rivals = [
            {
                "why": rival.why,
                "is_choice": rival.candidate is self.choice,
                "name": rival.candidate.parts[0],
                "differs_in": [part for part in rival.candidate.parts[1:] if part not in shared],
            }
            for rival in self.rivals
        ]
        floor = _largest_floor(self.choice, self.rivals)
        values |= {
            "choice": self.choice.values(),
            "rivals": rivals,
            "more_repeats": self.more_repeats,
            "fewest_launches": FEWEST,
            "noise_floor": floor,
            "is_noisy": floor > LARGE_FLOOR,
            "cost": self.cost,
            "limit": self.limit,
        }
        named = [self.choice, *(rival.candidate for rival in self.rivals)]
        return Finding("recommendation", tuple(one.row["cell_id"] for one in named), values)


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

    def limit(row: Row) -> Finding | None:
        return limit_of(explain_cell(row, by_id[row["cell_id"]], rows, num_cores, lossy))

    asked = workloads(wanted.name, rows, cells)
    return [_recommend(wanted, workload, rows, by_id, limit) for workload in asked]


def _recommend(
    wanted: Objective, workload: Workload, rows: Sequence[Row], cells: Cells, limit: Limit
) -> Recommendation:
    candidates, excluded = workload.candidates, list(workload.excluded)
    unsure: list[Rival] = []
    if wanted.smallest_efficiency is not None:
        candidates, unsure, too_low = _efficient(candidates, rows, cells, wanted.smallest_efficiency)
        excluded += too_low
    if not candidates:
        return Recommendation(wanted.text, workload.title, "none", None, None, [], None, None, None, excluded)
    choice, others = candidates[0], candidates[1:]
    rivals = [rival for other in others if (rival := _rival(wanted, choice, other)) is not None]
    rivals += [rival for rival in unsure if rival.candidate.value <= choice.value]
    excluded += [
        Excluded(one.candidate.name, one.candidate.name, Finding("efficiency_perhaps_below"))
        for one in unsure
        if one.candidate not in candidates and one.candidate.value > choice.value
    ]
    runner_up = min(others, key=lambda one: one.value, default=None)
    return Recommendation(
        wanted.text,
        workload.title,
        "undecided" if rivals else "decided",
        choice,
        runner_up,
        rivals,
        _more_repeats(choice, rivals),
        limit(choice.row),
        _cost_of_error(choice, runner_up, rivals),
        excluded,
    )


def _cost_of_error(choice: Candidate, runner_up: Candidate | None, rivals: Sequence[Rival]) -> Finding:
    """What is lost at most if another is the best in truth; if none can be, what the runner-up costs.

    Where the noise floor is what keeps them from being told apart, no bound below it is stated: two
    measurements of the very same were as far apart, which the intervals of one launch do not show.
    """
    if rivals:
        case, cost = _cost_of_rivals(choice, rivals)
        return Finding("cost_of_error", (), {"case": case, "cost_ratio": cost})
    if runner_up is None:
        return Finding("cost_of_error", (), {"case": "alone"})
    values = {"runner_up": runner_up.name, "cost_ratio": runner_up.value / choice.value - 1}
    if choice.low and choice.high and runner_up.low is not None and runner_up.high is not None:
        values["low_ratio"] = runner_up.low / choice.high - 1
        values["high_ratio"] = runner_up.high / choice.low - 1
    return Finding("cost_of_error", (runner_up.row["cell_id"],), {"case": "runner_up", **values})


def _cost_of_rivals(choice: Candidate, rivals: Sequence[Rival]) -> tuple[str, float | None]:
    """What the bound on the cost rests on, and the bound as a ratio."""
    lows = [rival.candidate.low for rival in rivals if rival.candidate.low is not None]
    if choice.high is None or len(lows) < len(rivals):
        return "no_interval", None
    if min(lows) <= 0:
        return "down_to_zero", None
    worst, floor = choice.high / min(lows) - 1, _largest_floor(choice, rivals)
    if any(rival.why == "noise" for rival in rivals) and worst < floor:
        return "noise_floor", floor
    if choice.method == ONE_LAUNCH:
        return ("one_launch_best", None) if worst <= 0 else ("one_launch", worst)
    return "intervals", max(0.0, worst)


def _largest_floor(choice: Candidate, rivals: Sequence[Rival]) -> float:
    """The largest noise floor of them; 0 where none was measured."""
    return max(one.row["noise_floor"] or 0.0 for one in (choice, *(rival.candidate for rival in rivals)))


def _rival(wanted: Objective, choice: Candidate, other: Candidate) -> Rival | None:
    """Why two cannot be told apart; None if they can."""
    difference = other.value - choice.value
    if None in (choice.low, choice.high, other.low, other.high):
        return Rival(other, "unknown", max(FEWEST, _needed(difference, choice, other) or FEWEST))
    if wanted.name in (TIME, HOURS, EFFICIENCY) and _is_within_noise(choice, other):
        return Rival(other, "noise", None)
    assert choice.high is not None
    assert other.low is not None
    if other.low <= choice.high:
        one_launch = ONE_LAUNCH in (choice.method, other.method)
        return Rival(other, "overlap", FEWEST if one_launch else _needed(difference, choice, other))
    if ONE_LAUNCH in (choice.method, other.method) and difference <= ONE_LAUNCH_MARGIN * choice.value:
        return Rival(other, "launch", FEWEST)
    return None


def _is_within_noise(choice: Candidate, other: Candidate) -> bool:
    return within_noise(choice.value, other.value, choice.row["noise_floor"], other.row["noise_floor"])


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
    candidates: Sequence[Candidate], rows: Sequence[Row], cells: Cells, smallest: float
) -> tuple[list[Candidate], list[Rival], list[Excluded]]:
    """Those that keep the efficiency, those of which that is not sure, and those that do not.

    One that keeps it, but not surely, is in both of the first lists.
    """
    kept, unsure, excluded = [], [], []
    for one in candidates:
        efficiency = one.row["parallel_efficiency"]
        if efficiency is None:
            excluded.append(Excluded(one.name, one.name, Finding("no_efficiency")))
            continue
        gap = abs(efficiency - smallest) / efficiency
        half = 0.0 if one.row["world_size"] == 1 else _efficiency_half_width(one, rows, cells)
        if efficiency >= smallest:
            kept.append(one)
        if gap <= half:
            spread = None if one.spread is None else one.spread / one.value
            launches = FEWEST if spread is None else launches_needed(gap, [spread])
            unsure.append(Rival(one, "efficiency", launches))
        elif efficiency < smallest:
            reason = Finding("efficiency_below", (one.row["cell_id"],), {"smallest_ratio": smallest})
            name = f"{one.name}: {efficiency:.2f}"
            excluded.append(Excluded(name, name, reason))
    return kept, unsure, excluded


def _efficiency_half_width(candidate: Candidate, rows: Sequence[Row], cells: Cells) -> float:
    """Relative: of its own time and of one worker's, which are independent."""
    cell = cells[candidate.row["cell_id"]].cell
    singles = [
        other
        for other in rows
        if other["iteration_s_low"] is not None and is_baseline_of(cells[other["cell_id"]].cell, cell)
    ]
    of_single = [
        (one["iteration_s_high"] - one["iteration_s_low"]) / 2 / one["iteration_s"] for one in singles
    ]
    return math.hypot(relative_half_width(candidate), max(of_single, default=math.inf))
