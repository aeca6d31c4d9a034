"""The cells of `surface-regression` as its report compares them, and the surface itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling.measure.statistics import Estimate
from scaling.report.device.common import Arm
from scaling.report.device.crossover import Crossing, crossing_of
from scaling.report.device.results import DeviceResult, Results
from scaling.report.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILLION

Grid = NDArray[np.float64]

EXTENT = 3.0


WAYS = (
    Arm("cpu", "eager", None, BLUE, "o", "device", "CPU eager"),
    Arm("cpu", "compiled", None, SKY_BLUE, "P", "device", "CPU compiled"),
    Arm("cpu", "eager", None, GREEN, "v", "loader", "CPU eager, DataLoader"),
    Arm("cuda", "eager", None, ORANGE, "s", "device", "GPU eager"),
    Arm("cuda", "compiled", None, PURPLE, "X", "device", "GPU compiled"),
    Arm("cuda", "captured", None, VERMILLION, "D", "device", "GPU captured"),
    Arm("cuda", "eager", None, BLACK, "<", "host", "GPU eager, data in host memory"),
    Arm("cuda", "eager", None, GREY, "^", "loader", "GPU eager, DataLoader"),
)


def activation(results: Results) -> str:
    """The network's; folders of before it was a parameter had tanh."""
    return str(results.parameters.get("activation", "tanh"))


def ways_of(results: Results) -> dict[Arm, list[DeviceResult]]:
    """Each that has a cell -> its cells by their number of points."""
    cells = sorted(results.cells, key=lambda cell: cell.point["points"])
    return {way: own for way in WAYS if (own := way.of(cells))}


def way_named(results: Results, device: str, step: str, data: str = "device") -> list[DeviceResult]:
    """The cells of that way; [] unless one has an epoch's time."""
    for way, cells in ways_of(results).items():
        if (way.device, way.step, way.data) == (device, step, data):
            return cells if any(cell.estimate() for cell in cells) else []
    return []


def common(
    slow: Sequence[DeviceResult], fast: Sequence[DeviceResult]
) -> dict[int, tuple[Estimate, Estimate]]:
    """Points -> an epoch's time of both ways, where both have one; ascending."""
    times, others = (
        {cell.point["points"]: estimate for cell in cells if (estimate := cell.estimate())}
        for cells in (slow, fast)
    )
    return {points: (times[points], other) for points, other in others.items() if points in times}


def break_even(slow: Sequence[DeviceResult], fast: Sequence[DeviceResult]) -> Crossing | None:
    """From how many points on `fast` takes less time for an epoch; None where too little was measured."""
    both = common(slow, fast)
    return crossing_of(both) if len(both) > 1 else None


@dataclass(frozen=True)
class Training:
    """A complete training.

    Attributes:
        way: how it was computed.
        cell: what it is of.
        seconds: of all epochs.
        made_s: seconds of compiling or capturing, which come on top; None where nothing is made.
        losses: (epoch, mean squared error before its update).
    """

    way: Arm
    cell: DeviceResult
    seconds: float
    made_s: float | None
    losses: tuple[list[float], list[float]]

    @property
    def total_s(self) -> float:
        """With compiling or capturing."""
        return self.seconds + (self.made_s or 0.0)

    @property
    def epochs(self) -> int:
        """How many."""
        return int(self.cell.fact("epochs"))

    @property
    def rms_residual(self) -> float:
        """Of the fit, at the points of the training."""
        return float(self.cell.fact("rms_residual"))

    @property
    def fit(self) -> Grid | None:
        """The network's values on a square grid; the first axis is x."""
        rows = next((row["grid"] for row in self.cell.facts("fit") if "grid" in row), None)
        return None if rows is None else np.asarray(rows, dtype=float)


def trainings(results: Results) -> list[Training]:
    """All that were carried through, in the order of the ways."""
    found = []
    for way, cells in ways_of(results).items():
        for cell in cells:
            whole = cell.estimate("train")
            if whole is None or cell.fact("rms_residual") is None:
                continue
            made = cell.estimate("capture") or cell.estimate("compile")
            found.append(Training(way, cell, whole.median, made.median if made else None, _losses(cell)))
    return found


def _losses(cell: DeviceResult) -> tuple[list[float], list[float]]:
    return next(((row["x"], row["y"]) for row in cell.facts("loss") if "x" in row), ([], []))


def surface(side: int) -> Grid:
    """The surface on a grid of `side` x `side`, the first axis being x.

    The formula is that of `scaling.experiments.surface`, which needs torch.
    """
    axis = np.linspace(-EXTENT, EXTENT, side)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    return np.asarray(
        3 * (1 - x) ** 2 * np.exp(-(x**2) - (y + 1) ** 2)
        - 10 * (x / 5 - x**3 - y**5) * np.exp(-(x**2) - y**2)
        - np.exp(-((x + 1) ** 2) - y**2) / 3
    )


def shown(found: Sequence[Training]) -> Training | None:
    """The training whose fit is shown as a picture: that with the least total time that has one."""
    return min((one for one in found if one.fit is not None), key=lambda one: one.total_s, default=None)
