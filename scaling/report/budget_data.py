"""What the figures of the budget show, as plain values: bars, arrivals, and responses to an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis.columns import PART_COLUMNS, Row
from scaling.analysis.groups import Group, placement_name
from scaling.analysis.samples import CellResult, Floats, IterationLaunch
from scaling.report.figure_data import main_variant

MOST_STEPS = 100
"""More of a launch's split steps are not drawn."""


@dataclass(frozen=True)
class BudgetBar:
    """One cell's budget and its measured iteration, in milliseconds; None where there is no interval.

    Attributes:
        aggregator: its label.
        name: the same with what sets the cell apart in its group.
        world_size: workers.
        parts_ms: part -> time, of those that the cell has; they sum to the split iteration.
        hidden_ms: communication under the computation, which is no part of the sum.
        iteration_ms, low_ms, high_ms: unsplit, and its 95% interval.
    """

    aggregator: str
    name: str
    world_size: int
    parts_ms: dict[str, float]
    hidden_ms: float
    iteration_ms: float
    low_ms: float | None
    high_ms: float | None


@dataclass(frozen=True)
class Arrivals:
    """One cell's arrivals at the first exchange: `late_ms` [rank, step] after the first rank's."""

    aggregator: str
    iterations: list[int]
    late_ms: Floats


@dataclass(frozen=True)
class Response:
    """One aggregator's iteration over the values of an axis, in ms; `low_ms`, `high_ms` may hold None."""

    aggregator: str
    values: list[float]
    iteration_ms: list[float]
    low_ms: list[float | None]
    high_ms: list[float | None]


@dataclass(frozen=True)
class Placed:
    """One aggregator's iteration with the input at one place, in milliseconds."""

    aggregator: str
    placement: str
    iteration_ms: float
    low_ms: float | None
    high_ms: float | None


def budget_bars(group: Group) -> list[BudgetBar]:
    """One bar a cell that has split steps, in the table's order; parts that it never had have no entry."""
    return [_bar(group, row) for row in group.rows if row["profiled_iteration_s"] is not None]


def _bar(group: Group, row: Row) -> BudgetBar:
    parts = {part: row[column] for part, column in PART_COLUMNS.items()}
    return BudgetBar(
        row["aggregator"],
        group.name(row),
        row["world_size"],
        {part: 1000 * seconds for part, seconds in parts.items() if seconds is not None},
        1000 * (row["hidden_comm_s"] or 0.0),
        1000 * row["iteration_s"],
        _milliseconds(row["iteration_s_low"]),
        _milliseconds(row["iteration_s_high"]),
    )


def arrivals(group: Group, cells: Mapping[str, CellResult]) -> list[Arrivals]:
    """One an aggregator whose arrivals at the largest world size are known: those of its first launch.

    Args:
        group: iteration cells.
        cells: the samples, by cell id.
    """
    found = []
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        for row in main_variant(group, label):
            if row["world_size"] == max(group.world_sizes) > 1:
                launches = [_arrivals(group.name(row), launch) for launch in cells[row["cell_id"]].launches]
                found += [own for own in launches if own is not None][:1]
    return found


def _arrivals(name: str, launch: IterationLaunch) -> Arrivals | None:
    steps = [
        (step.iteration, [rank.arrived_after_first_s for rank in ranks])
        for step, ranks in zip(launch.split_steps, launch.budgets, strict=True)
    ]
    known = [(number, late_s) for number, late_s in steps if None not in late_s][:MOST_STEPS]
    if not known:
        return None
    late_ms = 1000 * np.array([late_s for _, late_s in known], dtype=np.float64).T
    return Arrivals(name, [number for number, _ in known], late_ms)


def bucket_responses(group: Group) -> list[Response]:
    """A line an aggregator with several bucket sizes at the largest world size; none if there is no such."""
    responses = []
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        main = main_variant(group, label)[0]
        rows = [row for row in _measured(group, label) if row["input_placement"] == main["input_placement"]]
        rows = sorted((row for row in rows if row["bucket_mb"] is not None), key=lambda row: row["bucket_mb"])
        if len(rows) > 1:
            responses.append(
                Response(
                    label,
                    [row["bucket_mb"] for row in rows],
                    [1000 * row["iteration_s"] for row in rows],
                    [_milliseconds(row["iteration_s_low"]) for row in rows],
                    [_milliseconds(row["iteration_s_high"]) for row in rows],
                )
            )
    return responses


def placed(group: Group) -> list[Placed]:
    """A bar an aggregator and input placement at the largest world size; none if there is one place alone."""
    if not group.differs("input_placement"):
        return []
    bars = []
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        bucket_mb = main_variant(group, label)[0]["bucket_mb"]
        for row in _measured(group, label):
            if row["bucket_mb"] == bucket_mb:
                bars.append(_placed(row, several_workers=group.differs("loader_workers")))
    return bars


def _placed(row: Row, *, several_workers: bool) -> Placed:
    return Placed(
        row["aggregator"],
        placement_name(row, several_workers=several_workers),
        1000 * row["iteration_s"],
        _milliseconds(row["iteration_s_low"]),
        _milliseconds(row["iteration_s_high"]),
    )


def _measured(group: Group, label: str) -> Sequence[Row]:
    """An aggregator's rows at the group's largest world size that have a time."""
    largest = max(group.world_sizes)
    own = [row for row in group.rows if row["aggregator"] == label and row["world_size"] == largest]
    return [row for row in own if row["iteration_s"] is not None]


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
