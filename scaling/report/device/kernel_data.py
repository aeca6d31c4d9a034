"""The cells of `kernel-choices` as its report compares them: by operation, device, case and choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.report.device import crossover
from scaling.report.device.common import DEVICES
from scaling.report.device.results import DeviceResult, Results, grouped

MATMUL, CONVOLUTION = "matmul", "convolution"
PRECISION_NAMES = {"float32": "float32", "tf32": "TF32", "bfloat16": "bfloat16"}
CHOICES = {
    "transposed": "W as it is stored",
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
class KernelCase:
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

    def find(self, choice: str, precision: str = "float32") -> DeviceResult | None:
        """The cell of a choice without a limit of the workspace, if it has a time."""
        cells = grouped(self.cells, "choice", "precision", "workspace_cap").get(
            (choice, precision, NO_CAP), []
        )
        return next((cell for cell in cells if cell.estimate()), None)

    @property
    def choices(self) -> list[DeviceResult]:
        """What `fastest` weighs: the cells in float32, without those of the older interface."""
        return [c for c in self.cells if c.point["precision"] == "float32" and c.point["choice"] != CAPPED]

    def unmeasured(self) -> list[DeviceResult]:
        """The choices that are not measured yet."""
        return [cell for cell in self.choices if not cell.is_over]

    def fastest(self) -> list[DeviceResult]:
        """The choice with the least time of a step, and those whose interval overlaps with its own."""
        timed = sorted((c for c in self.choices if c.estimate()), key=lambda cell: median(cell) or 0.0)
        return [cell for cell in timed if cell is timed[0] or overlap(timed[0], cell)]


def cases(results: Results, operation: str) -> list[KernelCase]:
    """All of an operation: the GPU's first, larger products before smaller ones."""
    groups = grouped(results.all(operation=operation), "device", "case", "batch")
    order = sorted(groups, key=lambda key: (key[0] != "cuda", -key[2], key[1]))
    return [
        KernelCase(device, operation, name, batch, ordered(groups[device, name, batch]))
        for device, name, batch in order
    ]


def ordered(cells: Sequence[DeviceResult]) -> list[DeviceResult]:
    """By choice, cap and precision."""

    def place(cell: DeviceResult) -> tuple[int, float, int]:
        cap = cell.point["workspace_cap"]
        limit = float("inf") if cap == NO_CAP else float(cap.split()[0])
        choice = list(CHOICES).index(cell.point["choice"])
        return choice, -limit, list(PRECISION_NAMES).index(cell.point["precision"])

    return sorted(cells, key=place)


def median(cell: DeviceResult | None, phase: str = "step") -> float | None:
    """Of a phase's seconds; None where it was not measured."""
    estimate = cell.estimate(phase) if cell else None
    return estimate.median if estimate else None


def overlap(cell: DeviceResult, other: DeviceResult) -> bool:
    """Whether the intervals of their step times overlap; without one, equal medians."""
    first, second = cell.estimate(), other.estimate()
    return first is not None and second is not None and crossover.overlap(first, second)


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
