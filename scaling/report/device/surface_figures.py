"""The figures of `surface-regression`: epochs over points, and surface, fit and residual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scaling.report.device.drawing import Panel, draw_panels, log_axes
from scaling.report.device.results import Results
from scaling.report.device.surface_data import (
    EXTENT,
    Grid,
    Training,
    activation,
    shown,
    surface,
    trainings,
    ways_of,
)
from scaling.report.figures.base import Drawn
from scaling.report.figures.parts import WIDTH, legend_below, set_title

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
    "lines lie on each other."
)


def figures(results: Results) -> Iterator[Drawn]:
    """Epochs over points, then surface, fit and residual."""
    timed = {way: own for way, own in ways_of(results).items() if any(cell.estimate() for cell in own)}
    if timed:
        title = f"{results.experiment}: an epoch of the 2-20-5-1 network"
        panels = [Panel(results.cells, "points")]
        figure = draw_panels(title, panels, [*timed], 4.8, columns=1, y="ms an epoch")
        yield Drawn(f"device-{results.slug}-epochs", title, EPOCHS, figure)
    found = trainings(results)
    best = shown(found)
    if best is not None and best.fit is not None:
        how = f"{best.way.name}, {activation(results)}, {best.epochs:,} epochs"
        title = f"{results.experiment}: surface, fit and residual ({how})"
        yield Drawn(f"device-{results.slug}-fit", title, PICTURE, _draw_fit(found, best.fit, title))


def _draw_fit(found: Sequence[Training], fit: Grid, title: str) -> Figure:
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
    for one in found:
        axes.plot(*one.losses, color=one.way.colour, linewidth=1.2)
    log_axes(axes, "epoch", "mean squared error")
    ways = dict.fromkeys(one.way for one in found)
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
