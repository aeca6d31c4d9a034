"""The cells of `kernel-choices` as its report compares them: by operation, device, case and choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.report.device import crossover
from scaling.report.device.common import DEVICES
from scaling.report.device.results import DeviceResult, Results

MATMUL, CONVOLUTION = "matmul", "convolution"
PRECISIONS = ("float32", "tf32", "bfloat16")
PRECISION_NAMES = {"float32": "float32", "tf32": "TF32", "bfloat16": "bfloat16"}
CHOICES = {
    "transposed": "W as it lies",
    "transpose-first": "W transposed first",
    "already-transposed": "W transposed before",
    "library": "the library's guess",
    "autotuned": "autotuned",
    "native": "native",
    "fft": "Fourier transforms",
    "older-interface": "autotuned, older interface",
}
CAPPED = "older-interface"
NO_CAP = "none"


@dataclass(frozen=True)
class Case:
    """One operation of one size on one device.

    Attributes:
        device, operation, name, batch: as cells have them.
        cells: all choices and precisions.
    """

    device: str
    operation: str
    name: str
    batch: int
    cells: list[DeviceResult]

    @property
    def title(self) -> str:
        """`GPU: x W^T, batch 1,024, W 2048x26752`, `CPU: ResNet 3x3, batch 4`."""
        what = f"x W^T, batch {self.batch:,}, W {self.name}"
        if self.operation == CONVOLUTION:
            what = f"{self.name}, batch {self.batch:,}"
        return f"{DEVICES[self.device]}: {what}"

    def find(self, choice: str, precision: str = "float32", cap: str = NO_CAP) -> DeviceResult | None:
        """The cell of a choice, if it has a time."""
        for cell in self.cells:
            point = cell.point
            if (point["choice"], point["precision"], point["workspace_cap"]) == (choice, precision, cap):
                return cell if cell.estimate() else None
        return None

    def seconds(self, choice: str, precision: str = "float32", cap: str = NO_CAP) -> float | None:
        """The median time of a step; None where it was not measured."""
        cell = self.find(choice, precision, cap)
        return median(cell) if cell else None

    def unmeasured(self, precision: str = "float32") -> list[DeviceResult]:
        """The choices that `fastest` would weigh, and that are not measured yet."""
        return [cell for cell in self._choices(precision) if not cell.is_over]

    def _choices(self, precision: str) -> list[DeviceResult]:
        return [
            cell
            for cell in self.cells
            if cell.point["precision"] == precision and cell.point["choice"] != CAPPED
        ]

    def fastest(self, precision: str = "float32") -> list[DeviceResult]:
        """The choice with the least time of a step, and those whose interval overlaps with its own."""
        own = [cell for cell in self._choices(precision) if cell.estimate()]
        own.sort(key=lambda cell: median(cell) or 0.0)
        return [cell for cell in own if cell is own[0] or overlap(own[0], cell)]


def cases(results: Results, operation: str) -> list[Case]:
    """All of an operation: the GPU's first, larger products before smaller ones."""
    found: dict[tuple[str, str, int], list[DeviceResult]] = {}
    for cell in results.all(operation=operation):
        found.setdefault((cell.device, cell.point["case"], cell.point["batch"]), []).append(cell)
    order = sorted(found, key=lambda key: (key[0] != "cuda", -key[2], key[1]))
    return [
        Case(device, operation, name, batch, ordered(found[device, name, batch]))
        for device, name, batch in order
    ]


def ordered(cells: Sequence[DeviceResult]) -> list[DeviceResult]:
    """By choice, cap and precision."""

    def place(cell: DeviceResult) -> tuple[int, float, int]:
        cap = cell.point["workspace_cap"]
        limit = float("inf") if cap == NO_CAP else float(cap.split()[0])
        choice = list(CHOICES).index(cell.point["choice"])
        return choice, -limit, PRECISIONS.index(cell.point["precision"])

    return sorted(cells, key=place)


def median(cell: DeviceResult, phase: str = "step") -> float | None:
    """Of a phase's seconds."""
    estimate = cell.estimate(phase)
    return estimate.median if estimate else None


def overlap(one: DeviceResult, other: DeviceResult) -> bool:
    """Whether the intervals of their step times overlap; without one, equal medians."""
    first, second = one.estimate(), other.estimate()
    assert first is not None
    assert second is not None
    return crossover.overlap(first, second)


def teraflop_per_s(cell: DeviceResult) -> float | None:
    """Operations of a forward pass a second, in 10^12; of a convolution of its forward phase."""
    seconds = median(cell, "forward") or median(cell)
    flop = cell.fact("flop")
    return flop / seconds / 1e12 if flop and seconds else None


def name_of(cell: DeviceResult) -> str:
    """`autotuned, TF32`, `autotuned, older interface, at most 64 MiB`."""
    point = cell.point
    cap = "" if point["workspace_cap"] == NO_CAP else f", at most {point['workspace_cap']}"
    precision = "" if point["choice"] == CAPPED else f", {PRECISION_NAMES[point['precision']]}"
    return f"{CHOICES[point['choice']]}{precision}{cap}"
