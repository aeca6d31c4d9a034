"""The cells of `kernel-choices` as its report compares them: by operation, device, case and choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.report.device.common import DEVICES
from scaling.report.device.comparisons import least
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
        """The choice with the least time of a step, and those that are not shown to take longer."""
        return least(self.choices)


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


def teraflop_per_s(cell: DeviceResult) -> float | None:
    """Operations of a forward pass a second, in 10^12; of a convolution of its forward phase."""
    estimate, flop = cell.estimate("forward") or cell.estimate(), cell.fact("flop")
    return flop / estimate.median / 1e12 if flop and estimate and estimate.median else None


def name_of(cell: DeviceResult) -> str:
    """`autotuned, TF32`, `autotuned, older interface, at most 64 MiB`."""
    point = cell.point
    cap = "" if point["workspace_cap"] == NO_CAP else f", at most {point['workspace_cap']}"
    precision = "" if point["choice"] == CAPPED else f", {PRECISION_NAMES[point['precision']]}"
    return f"{CHOICES[point['choice']]}{precision}{cap}"
