"""What the figures show, as plain values: made here from the table and the samples, drawn in `figures`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.report.columns import Row
from scaling.report.groups import Group
from scaling.report.samples import CellResult, Training


@dataclass(frozen=True)
class SpeedupLine:
    """One aggregator's speedups, in one of its variants if it has several, which `name` tells.

    `low` and `high` are NaN where there is no interval; `high` may be infinite.
    """

    aggregator: str
    name: str
    world_sizes: list[int]
    speedup: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class TrainingLine:
    """One cell's training: medians over its repeats at every epoch; NaN where one was not finite."""

    aggregator: str
    world_size: int
    epochs: list[int]
    train_s: list[float]
    train_loss: list[float]
    test_accuracy: list[float]


def speedup_lines(group: Group) -> list[SpeedupLine]:
    """One line an aggregator that has a speedup, with the iteration time's intervals at a fixed baseline."""
    lines = []
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        rows = [row for row in main_variant(group, label) if row["speedup"] is not None]
        if not rows:
            continue
        bounds = [_speedup_interval(row) for row in rows]
        lines.append(
            SpeedupLine(
                label,
                group.name(rows[0]),
                [row["world_size"] for row in rows],
                [row["speedup"] for row in rows],
                [low for low, _ in bounds],
                [high for _, high in bounds],
            )
        )
    return lines


def main_variant(group: Group, label: str) -> list[Row]:
    """The rows of one aggregator with the same bucket size and input placement: one for each world size.

    Of several placements the first that it has (`device` if there), then of several bucket sizes the one that
    is fastest at the largest world size.
    """
    own = [row for row in group.rows if row["aggregator"] == label]
    placements = dict.fromkeys(map(_placement, own))
    preferred = min(placements, key=lambda placement: placement[0] != "device")
    own = [row for row in own if _placement(row) == preferred]
    largest = max(row["world_size"] for row in own)
    fastest = min(
        (row for row in own if row["world_size"] == largest),
        key=lambda row: math.inf if row["iteration_s"] is None else row["iteration_s"],
    )
    return [row for row in own if row["bucket_mb"] == fastest["bucket_mb"]]


def _placement(row: Row) -> tuple[str, int | None]:
    return row["input_placement"], row["loader_workers"]


def _speedup_interval(row: Row) -> tuple[float, float]:
    """speedup x iteration_s is the baseline's share: a time's bound becomes the speedup's opposite bound."""
    fixed = row["speedup"] * row["iteration_s"]
    low, high = row["iteration_s_low"], row["iteration_s_high"]
    if low is None or high is None:
        return math.nan, math.nan
    # A t interval of scattered launches can reach below 0 seconds: then the speedup has no upper bound.
    return fixed / high, fixed / low if low > 0 else math.inf


def training_lines(group: Group, cells: Mapping[str, CellResult]) -> list[TrainingLine]:
    """One line a cell that has a done run, in the table's order.

    Args:
        group: convergence cells.
        cells: the samples, by cell id.
    """
    return [
        _training_line(row, cells[row["cell_id"]].trainings)
        for row in group.rows
        if cells[row["cell_id"]].trainings
    ]


def _training_line(row: Row, trainings: Sequence[Training]) -> TrainingLine:
    length = min(len(training.epochs) for training in trainings)

    def median(arrays: Sequence[np.ndarray]) -> list[float]:
        return [float(value) for value in np.median([array[:length] for array in arrays], axis=0)]

    return TrainingLine(
        row["aggregator"],
        row["world_size"],
        [int(epoch) for epoch in trainings[0].epochs[:length]],
        median([training.train_s for training in trainings]),
        median([training.train_loss for training in trainings]),
        median([training.test_accuracy for training in trainings]),
    )
