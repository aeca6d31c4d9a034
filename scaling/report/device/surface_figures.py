"""The cells of `surface-regression` as its report compares them, the surface itself, and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from scaling.report.device.common import Arm
from scaling.report.device.crossover import Crossing, crossing_of
from scaling.report.device.declared import Drawing, Lines
from scaling.report.device.drawing import Panel, log_axes
from scaling.report.device.results import DeviceResult, Results, paired
from scaling.report.figures.parts import WIDTH, legend_below, set_title
from scaling.report.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILLION

Grid = NDArray[np.float64]

EXTENT = 3.0


WAYS = (
    Arm("cpu", "eager", None, BLUE, "o", ("data", "device"), "CPU eager"),
    Arm("cpu", "compiled", None, SKY_BLUE, "P", ("data", "device"), "CPU compiled"),
    Arm("cpu", "eager", None, GREEN, "v", ("data", "loader"), "CPU eager, DataLoader"),
    Arm("cuda", "eager", None, ORANGE, "s", ("data", "device"), "GPU eager"),
    Arm("cuda", "compiled", None, PURPLE, "X", ("data", "device"), "GPU compiled"),
    Arm("cuda", "captured", None, VERMILLION, "D", ("data", "device"), "GPU captured"),
    Arm("cuda", "eager", None, BLACK, "<", ("data", "host"), "GPU eager, data in host memory"),
    Arm("cuda", "eager", None, GREY, "^", ("data", "loader"), "GPU eager, DataLoader"),
)


def activation(results: Results) -> str:
    """The network's; folders of before it was a parameter had tanh."""
    return str(results.parameters.get("activation", "tanh"))


def ways_of(results: Results) -> dict[Arm, list[DeviceResult]]:
    """Each that has a cell -> its cells by their number of points."""
    cells = sorted(results.cells, key=lambda cell: cell.point["points"])
    return {way: timed for way in WAYS if (timed := way.of(cells))}


def way_named(results: Results, device: str, step: str, data: str = "device") -> list[DeviceResult]:
    """The cells of that way; [] unless one has an epoch's time."""
    for way, cells in ways_of(results).items():
        if (way.device, way.step, way.part) == (device, step, ("data", data)):
            return cells if any(cell.estimate() for cell in cells) else []
    return []


def break_even(slow: Sequence[DeviceResult], fast: Sequence[DeviceResult]) -> Crossing | None:
    """From how many points on `fast` takes less time for an epoch; None where too little was measured."""
    both = paired(slow, fast, "points")
    return crossing_of(both) if len(both) > 1 else None


@dataclass(frozen=True)
class FitTraining:
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


def trainings(results: Results) -> list[FitTraining]:
    """All that were carried through, in the order of the ways."""
    every = []
    for way, cells in ways_of(results).items():
        for cell in cells:
            whole = cell.estimate("train")
            if whole is None or cell.fact("rms_residual") is None:
                continue
            made = cell.estimate("capture") or cell.estimate("compile")
            every.append(FitTraining(way, cell, whole.median, made.median if made else None, _losses(cell)))
    return every


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


def shown(every: Sequence[FitTraining]) -> FitTraining | None:
    """The training whose fit is shown as a picture: that with the least total time that has one."""
    return min(
        (training for training in every if training.fit is not None),
        key=lambda training: training.total_s,
        default=None,
    )


EPOCHS = (
    "Milliseconds of an epoch, which is one update on all points, over the number of points (columns points "
    "and iteration_s, with its 95% interval as a bar; step, data). Both axes are logarithmic. On the GPU a "
    "line is flat as long as launching kernels, not computing, decides. A line is broken where a number of "
    "points has no time."
)
PICTURE = (
    "The surface, what the network makes of it after the training, and the surface less that, over x (to the "
    "right) and y (upwards); of the training with the least time (columns rms_residual, largest_residual). "
    "Below, the mean squared error over the epochs, of every training; where ways compute the same, the "
    "lines cover each other."
)


def _timed(results: Results) -> list[Arm]:
    return [arm for arm, cells in ways_of(results).items() if any(cell.estimate() for cell in cells)]


def _fit_title(results: Results) -> str:
    best = shown(trainings(results))
    how = f"{best.way.name}, {activation(results)}, {best.epochs:,} epochs" if best else "none"
    return f"surface, fit and residual ({how})"


def _fit(results: Results, title: str) -> Figure | None:
    every = trainings(results)
    best = shown(every)
    return None if best is None or best.fit is None else _draw_fit(every, best.fit, title)


def _draw_fit(every: Sequence[FitTraining], fit: Grid, title: str) -> Figure:
    truth = surface(len(fit))
    residual = truth - fit
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    set_title(figure, title)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.0, 1.15])[:, 0]
    panels = above.subplots(1, 3, sharex=True, sharey=True)
    height, largest = float(np.abs(truth).max()), float(np.abs(residual).max())
    pictures = (("surface", truth, height), ("fit", fit, height), ("residual", residual, largest))
    for axes, (name, values, limit) in zip(panels, pictures, strict=True):
        _picture(axes, values, limit)
        axes.set_title(name, loc="left")
        axes.set_xlabel("x")
    panels[0].set_ylabel("y")
    axes = below.subplots()
    for training in every:
        axes.plot(*training.losses, color=training.way.colour, linewidth=1.2)
    log_axes(axes, "epoch", "mean squared error")
    ways = dict.fromkeys(training.way for training in every)
    legend_below(below, [Line2D([], [], color=way.colour, label=way.name) for way in ways])
    return figure


def _picture(axes: Axes, values: Grid, limit: float) -> None:
    image = axes.imshow(
        values.T,
        origin="lower",
        extent=(-EXTENT, EXTENT, -EXTENT, EXTENT),
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
    )
    axes.grid(visible=False)
    axes.figure.colorbar(image, ax=axes, location="bottom", shrink=0.9, aspect=14)


PLOTS = (
    Lines(
        "epochs", EPOCHS, lambda _: "an epoch of the 2-20-5-1 network",
        lambda results: [Panel(results.cells, "points")],
        y="ms an epoch", hues=_timed, columns=lambda _: 1, row_height=3.9,
    ),
    Drawing("fit", PICTURE, _fit_title, _fit),
)  # fmt: skip
