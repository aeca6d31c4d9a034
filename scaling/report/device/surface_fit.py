"""The complete trainings of `surface-regression`: their times, losses and fits, and the picture of one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from scaling.analysis.study_scatter import CellTimes
from scaling.report.device.common import Variant
from scaling.report.device.declared import Drawing
from scaling.report.device.drawing import log_axes
from scaling.report.device.results import DeviceResult, Results
from scaling.report.figures.parts import WIDTH, legend_below, set_title
from scaling.report.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILLION

Grid = NDArray[np.float64]

EXTENT = 3.0


ARMS = (
    Variant("cpu", "eager", None, BLUE, "o", ("data", "device"), "CPU eager"),
    Variant("cpu", "compiled", None, SKY_BLUE, "P", ("data", "device"), "CPU compiled"),
    Variant("cpu", "eager", None, GREEN, "v", ("data", "loader"), "CPU eager, DataLoader"),
    Variant("cuda", "eager", None, ORANGE, "s", ("data", "device"), "GPU eager"),
    Variant("cuda", "compiled", None, PURPLE, "X", ("data", "device"), "GPU compiled"),
    Variant("cuda", "captured", None, VERMILLION, "D", ("data", "device"), "GPU captured"),
    Variant("cuda", "eager", None, BLACK, "<", ("data", "host"), "GPU eager, data in host memory"),
    Variant("cuda", "eager", None, GREY, "^", ("data", "loader"), "GPU eager, DataLoader"),
)


def activation(results: Results) -> str:
    """The network's; folders of before it was a parameter had tanh."""
    return str(results.parameters.get("activation", "tanh"))


def cells_by_arm(results: Results) -> dict[Variant, list[DeviceResult]]:
    """Each that has a cell -> its cells by their number of points."""
    cells = sorted(results.cells, key=lambda cell: cell.point["points"])
    return {arm: timed for arm in ARMS if (timed := arm.of(cells))}


@dataclass(frozen=True)
class FitTraining:
    """A complete training: of that cell, computed by that arm."""

    arm: Variant
    cell: DeviceResult

    @property
    def seconds(self) -> float:
        """Of all epochs."""
        return self.cell.median("train")

    @property
    def _making(self) -> str:
        return "capture" if "capture" in self.cell.phases else "compile"

    @property
    def made_s(self) -> float | None:
        """Seconds of compiling or capturing, which come on top; None where nothing is made."""
        estimate = self.cell.estimate(self._making)
        return estimate.median if estimate else None

    @property
    def total_s(self) -> float:
        """With compiling or capturing."""
        return self.seconds + (self.made_s or 0.0)

    @property
    def times(self) -> CellTimes:
        """The total seconds of each launch."""
        made = self.cell.seconds(self._making)
        totals: dict[Hashable, float] = {
            repeat: median(seconds) + median(made.get(repeat, [0.0]))
            for repeat, seconds in self.cell.seconds("train").items()
        }
        return CellTimes(self.arm.device, totals)

    @property
    def epochs(self) -> int:
        """How many."""
        return int(self.cell.fact("epochs"))

    @property
    def rms_residual(self) -> float:
        """Of the fit, at the points of the training."""
        return float(self.cell.fact("rms_residual"))

    @property
    def losses(self) -> tuple[list[float], list[float]]:
        """(epochs, the mean squared error before the update of each)."""
        return next(((row["x"], row["y"]) for row in self.cell.facts("loss") if "x" in row), ([], []))

    @property
    def fit(self) -> Grid | None:
        """The network's values on a square grid; the first axis is x."""
        rows = next((row["grid"] for row in self.cell.facts("fit") if "grid" in row), None)
        return None if rows is None else np.asarray(rows, dtype=float)


def trainings(results: Results) -> list[FitTraining]:
    """All that were finished, in the order of the arms."""
    return [
        FitTraining(arm, cell)
        for arm, cells in cells_by_arm(results).items()
        for cell in cells
        if cell.estimate("train") and cell.fact("rms_residual") is not None
    ]


def surface(side: int) -> Grid:
    """The surface on a grid of `side` x `side`, the first axis being x.

    The formula is that of `scaling.device_studies.surface_training`, which needs torch.
    """
    axis = np.linspace(-EXTENT, EXTENT, side)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    return np.asarray(
        3 * (1 - x) ** 2 * np.exp(-(x**2) - (y + 1) ** 2)
        - 10 * (x / 5 - x**3 - y**5) * np.exp(-(x**2) - y**2)
        - np.exp(-((x + 1) ** 2) - y**2) / 3
    )


def _pictured(every: Sequence[FitTraining]) -> FitTraining | None:
    """The training whose fit is shown as a picture: that with the least total time that has one."""
    with_fit = [training for training in every if training.fit is not None]
    return min(with_fit, key=lambda training: training.total_s, default=None)


PICTURE = (
    "The surface, what the network makes of it after the training, and the surface less that, over x (to the "
    "right) and y (upwards); of the training with the least time (columns rms_residual, largest_residual). "
    "Below, the mean squared error over the epochs, of every training; where ways compute the same, the "
    "lines cover each other."
)


def _fit_title(results: Results) -> str:
    best = _pictured(trainings(results))
    how = f"{best.arm.name}, {activation(results)}, {best.epochs:,} epochs" if best else "none"
    return f"surface, fit and residual ({how})"


def _fit(results: Results, title: str) -> Figure | None:
    every = trainings(results)
    best = _pictured(every)
    if best is None or best.fit is None:
        return None
    truth = surface(len(best.fit))
    residual = truth - best.fit
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    set_title(figure, title)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.0, 1.15])[:, 0]
    panels = above.subplots(1, 3, sharex=True, sharey=True)
    height, largest = float(np.abs(truth).max()), float(np.abs(residual).max())
    pictures = (("surface", truth, height), ("fit", best.fit, height), ("residual", residual, largest))
    for axes, (name, values, limit) in zip(panels, pictures, strict=True):
        _picture(axes, values, limit)
        axes.set_title(name, loc="left")
        axes.set_xlabel("x")
    panels[0].set_ylabel("y")
    axes = below.subplots()
    for training in every:
        axes.plot(*training.losses, color=training.arm.colour, linewidth=1.2)
    log_axes(axes, "epoch", "mean squared error")
    arms = dict.fromkeys(training.arm for training in every)
    legend_below(below, [Line2D([], [], color=arm.colour, label=arm.name) for arm in arms])
    return figure


def _picture(axes: Axes, values: Grid, limit: float) -> None:
    extent = (-EXTENT, EXTENT, -EXTENT, EXTENT)
    image = axes.imshow(values.T, origin="lower", extent=extent, cmap="RdBu_r", vmin=-limit, vmax=limit)
    axes.grid(visible=False)
    axes.figure.colorbar(image, ax=axes, location="bottom", shrink=0.9, aspect=14)


FIT = Drawing("fit", PICTURE, _fit_title, _fit)
