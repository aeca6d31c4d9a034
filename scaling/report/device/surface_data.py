"""The cells of `surface-regression` as its report compares them, and the surface itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling.measure.statistics import Estimate
from scaling.report.device.common import Line, estimate_line
from scaling.report.device.crossover import Crossing, crossing, ratio_of
from scaling.report.device.results import DeviceResult, Results
from scaling.report.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILLION

Grid = NDArray[np.float64]

EXTENT = 3.0


@dataclass(frozen=True)
class Way:
    """A device, how its step is run, and where its data is.

    Attributes:
        device, step, data: as cells have them.
        name: for people.
        colour, marker: in every figure.
    """

    device: str
    step: str
    data: str
    name: str
    colour: str
    marker: str

    def cells(self, results: Results) -> list[DeviceResult]:
        """Those computed so, by their number of points."""
        own = results.all(self.device, step=self.step, data=self.data)
        return sorted(own, key=lambda cell: cell.point["points"])


WAYS = (
    Way("cpu", "eager", "device", "CPU eager", BLUE, "o"),
    Way("cpu", "compiled", "device", "CPU compiled", SKY_BLUE, "P"),
    Way("cpu", "eager", "loader", "CPU eager, DataLoader", GREEN, "v"),
    Way("cuda", "eager", "device", "GPU eager", ORANGE, "s"),
    Way("cuda", "compiled", "device", "GPU compiled", PURPLE, "X"),
    Way("cuda", "captured", "device", "GPU captured", VERMILLION, "D"),
    Way("cuda", "eager", "host", "GPU eager, data in host memory", BLACK, "<"),
    Way("cuda", "eager", "loader", "GPU eager, DataLoader", "#7f7f7f", "^"),
)


def activation(results: Results) -> str:
    """The network's; folders of before it was a parameter had tanh."""
    return str(results.parameters.get("activation", "tanh"))


def ways_of(results: Results) -> list[Way]:
    """Those that have a cell."""
    return [way for way in WAYS if way.cells(results)]


def way_named(results: Results, device: str, step: str, data: str = "device") -> Way | None:
    """That way, if it has a cell with an epoch's time."""
    for way in ways_of(results):
        if (way.device, way.step, way.data) == (device, step, data):
            return way if any(cell.estimate() for cell in way.cells(results)) else None
    return None


def epoch_line(results: Results, way: Way) -> Line:
    """Milliseconds of an epoch over the points."""
    pairs = [(cell.point["points"], cell.estimate()) for cell in way.cells(results)]
    return estimate_line(way.name, way.colour, way.marker, pairs)


def common(results: Results, slow: Way, fast: Way) -> dict[int, tuple[Estimate, Estimate]]:
    """Points -> an epoch's time of both ways, where both have one; ascending."""
    times = {cell.point["points"]: one for cell in slow.cells(results) if (one := cell.estimate())}
    return {
        points: (times[points], one)
        for cell in fast.cells(results)
        if (points := cell.point["points"]) in times and (one := cell.estimate())
    }


def break_even(results: Results, slow: Way, fast: Way) -> Crossing | None:
    """From how many points on `fast` takes less time for an epoch; None where too little was measured."""
    both = common(results, slow, fast)
    ratios = [ratio_of(points, *estimates) for points, estimates in both.items()]
    return crossing(ratios) if len(ratios) > 1 else None


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

    way: Way
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
    for way in ways_of(results):
        for cell in way.cells(results):
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
