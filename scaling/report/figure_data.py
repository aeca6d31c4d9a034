"""What the figures show, as plain values: made here from the table and the samples, drawn in `figures`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scaling.analysis.columns import Row
from scaling.analysis.formats import percent, workers
from scaling.analysis.groups import Group
from scaling.analysis.learning import family_key
from scaling.analysis.samples import CellResult, Training


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

    @property
    def efficiency(self) -> list[float]:
        """Speedup over workers."""
        return [speedup / size for speedup, size in zip(self.speedup, self.world_sizes, strict=True)]

    def points(self) -> list[SpeedupPoint]:
        """Its values, with the text that tells them."""
        values = zip(self.world_sizes, self.speedup, self.low, self.high, self.efficiency, strict=True)
        return [
            SpeedupPoint(
                speedup,
                efficiency,
                f"{self.name}, {workers(size)}: speedup {speedup:.3g}{_ends(low, high)}, "
                f"efficiency {percent(efficiency)}",
            )
            for size, speedup, low, high, efficiency in values
        ]


@dataclass(frozen=True)
class SpeedupPoint:
    """One of a line's points, and what is shown of it."""

    speedup: float
    efficiency: float
    text: str


def _ends(low: float, high: float) -> str:
    return "" if math.isnan(low) else f" (95% interval {low:.3g} to {high:.3g})"


@dataclass(frozen=True)
class TrainingLine:
    """The trainings of one combination: medians over its seeds and repeats at every epoch.

    NaN where one was not finite, or is not known. `ranges` has the smallest and largest values of train_loss
    and test_accuracy where there are several trainings. `is_over` is False where none of them is.
    """

    aggregator: str
    world_size: int
    epochs: list[int]
    train_s: list[float]
    train_loss: list[float]
    test_accuracy: list[float]
    train_accuracy: list[float]
    train_j: list[float]
    num_trainings: int = 1
    ranges: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    is_over: bool = True


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
    """One line for all seeds and repeats of a combination: of those done, or else of those begun.

    They are in the table's order.

    Args:
        group: convergence cells.
        cells: the samples, by cell id.
    """
    families: dict[tuple[Any, ...], list[Row]] = {}
    for row in group.rows:
        target = cells[row["cell_id"]].cell.get("target_accuracy")  # rows without results have none
        families.setdefault(family_key({**row, "target_accuracy": target}), []).append(row)
    lines = []
    for own in families.values():
        of_own = [cells[row["cell_id"]] for row in own]
        done = [training for cell in of_own for training in cell.trainings]
        if drawn := done or [training for cell in of_own for training in cell.begun]:
            lines.append(_training_line(own[0], drawn, is_over=bool(done)))
    return lines


def _training_line(row: Row, trainings: Sequence[Training], *, is_over: bool) -> TrainingLine:
    length = min(len(training.epochs) for training in trainings)

    def values(name: str) -> np.ndarray:
        return np.array([getattr(training, name)[:length] for training in trainings])

    def medians(name: str) -> list[float]:
        return [float(value) for value in np.median(values(name), axis=0)]

    ranges = {
        name: (values(name).min(axis=0).tolist(), values(name).max(axis=0).tolist())
        for name in ("train_loss", "test_accuracy")
        if len(trainings) > 1
    }
    return TrainingLine(
        row["aggregator"],
        row["world_size"],
        [int(epoch) for epoch in trainings[0].epochs[:length]],
        train_s=medians("train_s"),
        train_loss=medians("train_loss"),
        test_accuracy=medians("test_accuracy"),
        train_accuracy=medians("train_accuracy"),
        train_j=medians("train_j"),
        num_trainings=len(trainings),
        ranges=ranges,
        is_over=is_over,
    )
