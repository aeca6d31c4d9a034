"""What `surface-regression` has of its own: complete trainings, when compiling is paid for, and the fit.

A training's total is the sum of two phases, and the fit is a picture: no other study has either.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from scaling.analysis.study_scatter import CellTimes, study_scatter
from scaling.device_studies.declaration import Variant
from scaling.report.device.comparisons import finding, is_longer, rounded
from scaling.report.device.drawing import hues, log_axes
from scaling.report.device.results import DeviceResult, Results
from scaling.report.figures.base import Drawn
from scaling.report.figures.parts import legend_below, new_figure
from scaling.report.formats import listed, milliseconds, number

Grid = NDArray[np.float64]
EXTENT = 3.0


@dataclass(frozen=True)
class FitTraining:
    arm: Variant
    cell: DeviceResult

    @property
    def seconds(self) -> float:
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
        return self.seconds + (self.made_s or 0.0)

    @property
    def times(self) -> CellTimes:
        made = self.cell.seconds(self._making)
        totals: dict[Hashable, float] = {
            repeat: median(seconds) + median(made.get(repeat, [0.0]))
            for repeat, seconds in self.cell.seconds("train").items()
        }
        return CellTimes(self.cell.device, totals)

    @property
    def epochs(self) -> int:
        return int(self.cell.fact("epochs"))

    @property
    def losses(self) -> tuple[list[float], list[float]]:
        """(epochs, the mean squared error before the update of each)."""
        return next(((row["x"], row["y"]) for row in self.cell.facts("loss") if "x" in row), ([], []))

    @property
    def fit(self) -> Grid | None:
        rows = next((row["grid"] for row in self.cell.facts("fit") if "grid" in row), None)
        return None if rows is None else np.asarray(rows, dtype=float)

    @property
    def verb(self) -> str:
        return "capturing" if self._making == "capture" else "compiling"


def trainings(results: Results) -> list[FitTraining]:
    return [
        FitTraining(arm, cell)
        for arm in results.arms
        for cell in results.where(arm.where)
        if cell.estimate("train") and cell.fact("rms_residual") is not None
    ]


def surface(side: int) -> Grid:
    """The surface on a grid of `side` x `side`, the first axis being x. The formula is that of
    `scaling.device_studies.surface_training`, which needs torch."""
    axis = np.linspace(-EXTENT, EXTENT, side)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    return np.asarray(
        3 * (1 - x) ** 2 * np.exp(-(x**2) - (y + 1) ** 2)
        - 10 * (x / 5 - x**3 - y**5) * np.exp(-(x**2) - y**2)
        - np.exp(-((x + 1) ** 2) - y**2) / 3
    )


def activation(results: Results) -> str:
    return str(results.parameters.get("activation", "tanh"))


CAPTION = (
    "The surface, what the network makes of it after the training, and the surface less that, over x (to the "
    "right) and y (upwards); of the training with the least time (columns rms_residual, largest_residual). "
    "Below, the mean squared error over the epochs, of every training; where ways compute the same, the "
    "lines cover each other."
)


def figures(results: Results) -> Iterator[Drawn]:
    every = trainings(results)
    with_fit = [(training, fit) for training in every if (fit := training.fit) is not None]
    if not with_fit:
        return
    best, fit = min(with_fit, key=lambda pair: pair[0].total_s)
    how = f"{best.arm.name}, {activation(results)}, {best.epochs:,} epochs"
    title = f"{results.experiment}: surface, fit and residual ({how})"
    figure = new_figure(title, 5.2)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.0, 1.15])[:, 0]
    panels = above.subplots(1, 3, sharex=True, sharey=True)
    truth = surface(len(fit))
    for axes, (name, values) in zip(
        panels, (("surface", truth), ("fit", fit), ("residual", truth - fit)), strict=True
    ):
        limit = float(np.abs(truth if name == "fit" else values).max())
        extent = (-EXTENT, EXTENT, -EXTENT, EXTENT)
        image = axes.imshow(values.T, origin="lower", extent=extent, cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes.grid(visible=False)
        above.colorbar(image, ax=axes, location="bottom", shrink=0.9, aspect=14)
        axes.set_title(name, loc="left")
        axes.set_xlabel("x")
    panels[0].set_ylabel("y")
    axes = below.subplots()
    looks = dict(zip(results.arms, hues(results.arms), strict=True))
    trained = [looks[training.arm] for training in every]
    for training, hue in zip(every, trained, strict=True):
        axes.plot(*training.losses, color=hue.colour, linestyle=hue.dashes, linewidth=1.2)
    log_axes(axes, "epoch", "mean squared error")
    legend_below(
        below, [Line2D([], [], color=hue.colour, linestyle=hue.dashes, label=hue.name) for hue in trained]
    )
    yield Drawn(f"device-{results.slug}-fit", title, CAPTION, figure)


def findings(results: Results) -> Iterator[str]:
    trained = trainings(results)
    eager = {one.cell.device: one for one in trained if one.cell.point["step"] == "eager"}
    for training in trained:
        base = eager.get(training.cell.device)
        if training.made_s is not None and base is not None:
            where = f"{training.verb.capitalize()} on the {training.arm.name.split()[0]}"
            before = f"{where} takes {number(training.made_s)} s once; "
            yield from finding(results, before, [_paid(training, base)])
    if trained:
        residuals = sorted({number(training.cell.fact("rms_residual")) for training in trained}, key=float)
        between = residuals[0] if len(residuals) == 1 else f"between {residuals[0]} and {residuals[-1]}"
        height = number(trained[0].cell.fact("rms_height"))
        text = (
            f"{results.experiment}: after {trained[0].epochs:,} epochs the root mean square of the residual "
            f"with {activation(results)} is {between}, on a surface of heights that deviate by {height}."
        )
        points = [(one, *point) for one in trained for point in zip(*one.losses, strict=True)]
        late = [math.sqrt(loss) for training, epoch, loss in points if 2 * epoch >= training.epochs]
        if len(late) > 1:
            ends = f"{number(min(late))} and {number(max(late))}"
            text += (
                f" Over the last half of the epochs it moves between {ends}: a smaller difference of two "
                "ways tells where the last epoch fell, not which way fits better."
            )
        yield text


def _paid(training: FitTraining, base: FitTraining) -> str:
    """From the times of an epoch by itself; the complete trainings have to agree."""
    difference = training.cell.difference(base.cell)
    if difference is None:
        return "whether it is paid for is not known, as an epoch by itself was not timed"
    own_s, eager_s = training.cell.median(), base.cell.median()
    trained_ms = [1e3 * each.seconds / each.epochs for each in (training, base)]
    is_shorter = is_longer(difference)
    if is_shorter != (trained_ms[0] < trained_ms[1]):
        return (
            "whether it is ever paid for is open: an epoch by itself took "
            f"{milliseconds(own_s)} ms instead of {milliseconds(eager_s)} ms, one of the "
            f"complete training {number(trained_ms[0])} ms instead of {number(trained_ms[1])} ms"
        )
    if not is_shorter:
        return "it is not paid for in this training, as its epochs were not shorter than eager ones"
    ratios = (difference.ratio, *reversed(difference.interval or ()))
    epochs, *bounds = (rounded((training.made_s or 0.0) / own_s / (ratio - 1)) for ratio in ratios)
    return f"it is paid for after {epochs} epochs{f' [{bounds[0]}, {bounds[1]}]' if bounds else ''}"


def short(results: Results) -> str:
    every = trainings(results)
    shortest = [
        min(same, key=lambda training: training.total_s)
        for device in ("cuda", "cpu")
        if (same := [training for training in every if training.cell.device == device])
    ]
    if len(shortest) < 2:
        return ""
    gpu, cpu = (training.cell.cell_id for training in shortest)
    scatter = study_scatter({training.cell.cell_id: training.times for training in every})
    times = " and ".join(f"{number(training.total_s)} s on {training.arm.name}" for training in shortest)
    difference, verdict = scatter.difference(gpu, cpu), ""
    if difference.error is not None:
        verdict = "Yes: " if difference.is_larger else "No: "
        if not difference.is_significant:
            verdict = f"{'Either' if difference.is_same() else 'Undecided'}: "
    return f"{verdict}a complete training takes {times}."


def answer(results: Results) -> Iterator[str]:
    whole = []
    for training in trainings(results):
        made = f" ({number(training.made_s)} s of it {training.verb})" if training.made_s else ""
        whole.append(f"{number(training.total_s)} s on {training.arm.name}{made}")
    yield from finding(results, "A complete training takes ", [listed(whole)] if whole else [])
