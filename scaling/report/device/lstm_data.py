"""The cells of `lstm-fused` as its report compares them: speeds by phase, accuracies by seed."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.report.device.common import DEVICES
from scaling.report.device.results import DeviceResult, Results

PHASES = {"step": "training", "evaluate": "evaluation", "predict": "prediction"}
IMPLEMENTATIONS = ("elementary", "cell", "fused")
PRECISIONS = ("float64", "float32", "float16")
REFERENCE = ("fused", "float32")

DIFFERING = {"implementation": (True, False), "precision": (False, True), "combination": (True, True)}
"""What differs from the reference: whether the implementation does, and the precision."""

NOISE = 3.0
"""Accuracies that differ by no more standard errors of a difference of means are within the seeds' noise.

Of the eight other combinations of a task one lies beyond by chance in about one study of twenty: Student's t
with the 18 degrees of freedom of nine combinations of three seeds, at 5% shared by eight comparisons.
"""


@dataclass(frozen=True)
class Accuracy:
    """What the trainings of a cell reached.

    Attributes:
        cell: its implementation, precision, task and device.
        by_seed: seed -> accuracy.
    """

    cell: DeviceResult
    by_seed: dict[int, float]

    @property
    def way(self) -> tuple[str, str]:
        """Implementation and precision."""
        return self.cell.point["implementation"], self.cell.point["precision"]

    @property
    def name(self) -> str:
        """`fused, float32`."""
        return ", ".join(self.way)

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(list(self.by_seed.values())))

    @property
    def sd(self) -> float | None:
        """Over the seeds; None with one."""
        return float(np.std(list(self.by_seed.values()), ddof=1)) if len(self.by_seed) > 1 else None

    def difference(self, other: Accuracy) -> float | None:
        """Mean over the seeds that both have, of this one's accuracy less the other's."""
        both = [seed for seed in self.by_seed if seed in other.by_seed]
        return float(np.mean([self.by_seed[s] - other.by_seed[s] for s in both])) if both else None


@dataclass(frozen=True)
class Comparison:
    """All accuracies of one task on one device.

    Attributes:
        task, device: as cells have them.
        accuracies: those that were measured, elementary before fused, float64 before float16.
        left_out: cells of the task's batch whose accuracy was not measured.
        unmeasured: those that are still to be run.
    """

    task: str
    device: str
    accuracies: list[Accuracy]
    left_out: list[DeviceResult]
    unmeasured: list[DeviceResult]

    @property
    def reference(self) -> Accuracy | None:
        """The fused implementation in float32."""
        return next((one for one in self.accuracies if one.way == REFERENCE), None)

    @property
    def seed_sd(self) -> float | None:
        """The seeds' spread: the root of the mean variance over all combinations; None with one seed."""
        variances = [one.sd**2 for one in self.accuracies if one.sd is not None]
        return math.sqrt(float(np.mean(variances))) if variances else None

    @property
    def noise(self) -> float | None:
        """What two means over the seeds differ by, had each its own seeds; a held-out sample at least."""
        sd = self.seed_sd
        if sd is None:
            return None
        fewest = min(len(one.by_seed) for one in self.accuracies)
        samples = [float(count) for one in self.accuracies if (count := one.cell.fact("test_samples"))]
        return max(NOISE * sd * math.sqrt(2 / fewest), *(1 / count for count in samples), 0.0)

    def differences(self, kind: str) -> list[tuple[Accuracy, float]]:
        """Differences from the reference of those that differ from it in that, and in nothing else.

        Args:
            kind: `implementation`, `precision`, or `combination` of both.
        """
        return [*self._differences(DIFFERING[kind])]

    def _differences(self, differing: tuple[bool, bool]) -> Iterator[tuple[Accuracy, float]]:
        reference = self.reference
        for one in self.accuracies:
            if reference and tuple(map(operator.ne, one.way, reference.way)) == differing:
                difference = one.difference(reference)
                if difference is not None:
                    yield one, difference


def comparisons(results: Results) -> list[Comparison]:
    """One for each task and device with an accuracy, in the order of the tasks."""
    found = []
    for task in tasks(results):
        for device in DEVICES:
            cells = ordered(results.all(device, task=task))
            scored = [one for cell in cells if (one := _accuracy(cell)) is not None]
            without = [cell for cell in cells if cell.fact("accuracy_left_out") is not None]
            trained = {
                "width": results.parameters["accuracy_width"],
                "batch": results.parameters["accuracy_batch"],
            }
            planned = [cell for cell in results.all(device, task=task, **trained) if not cell.is_over]
            if scored:
                found.append(Comparison(task, device, scored, without, ordered(planned)))
    return found


def _accuracy(cell: DeviceResult) -> Accuracy | None:
    """Of the first launch: others train with the same seeds."""
    for row in cell.facts("accuracy_by_seed"):
        return Accuracy(cell, dict(zip(row["x"], row["y"], strict=True)))
    return None


def tasks(results: Results) -> list[str]:
    """Those that have a cell: the synthetic one first."""
    found = {cell.point["task"] for cell in results.cells}
    return sorted(found, key=lambda name: (name.endswith("-rows"), name))


def ordered(cells: Sequence[DeviceResult]) -> list[DeviceResult]:
    """By task, width, batch, precision and implementation."""

    def place(cell: DeviceResult) -> tuple[bool, int, int, int, int]:
        point = cell.point
        return (
            point["task"].endswith("-rows"),
            point["width"],
            point["batch"],
            PRECISIONS.index(point["precision"]),
            IMPLEMENTATIONS.index(point["implementation"]),
        )

    return sorted(cells, key=place)


def rate(cell: DeviceResult | None, phase: str) -> float | None:
    """Samples a second of a phase; None where it was not measured."""
    estimate = cell.estimate(phase) if cell else None
    return cell.point["batch"] / estimate.median if cell and estimate and estimate.median > 0 else None


def timed(results: Results) -> dict[str, Any]:
    """Task and width of the cells whose speed is shown over the batches; {} where there are none."""
    width = results.parameters["width"]
    real = [cell.point["task"] for cell in results.all(width=width) if cell.point["task"].endswith("-rows")]
    return {"task": real[0], "width": width} if real else {}
