"""Is a GPU worth it for a surface and a small network? Epochs over points, trainings, and the fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scaling.measure.statistics import Estimate
from scaling.report.device.common import (
    draw_lines,
    handles,
    interval_cell,
    left_out_table,
    log_axes,
    missing_remark,
    one_launch,
    remarks,
    statistic,
    time_cell,
    times_of,
)
from scaling.report.device.crossover import Crossing, crossing_text
from scaling.report.device.results import Results
from scaling.report.device.surface_data import (
    EXTENT,
    Grid,
    Training,
    break_even,
    common,
    epoch_line,
    shown,
    surface,
    trainings,
    way_named,
    ways_of,
)
from scaling.report.drawing_parts import WIDTH, legend_below, set_title
from scaling.report.figures import Drawn
from scaling.report.formats import MISSING, listed, number
from scaling.report.page_tables import PageTable

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
    lines = [line for way in ways_of(results) if not (line := epoch_line(results, way)).is_empty]
    if lines:
        title = f"{results.experiment}: an epoch of the 2-20-5-1 network"
        figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
        set_title(figure, title)
        axes = figure.subplots()
        draw_lines(axes, lines, "ms")
        log_axes(axes, "points", "ms an epoch")
        legend_below(figure, handles(lines))
        yield Drawn(f"device-{results.slug}-epochs", title, EPOCHS, figure)
    found = trainings(results)
    best = shown(found)
    if best is not None and best.fit is not None:
        title = f"{results.experiment}: surface, fit and residual ({best.way.name}, {best.epochs:,} epochs)"
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


def tables(results: Results) -> Iterator[PageTable]:
    """Epochs, trainings, and what was left out."""
    yield _epoch_table(results)
    if found := trainings(results):
        yield _training_table(results, found)
    yield from left_out_table(results, ("points", "step", "data"))


def _epoch_table(results: Results) -> PageTable:
    rows, ids = [], []
    for way in ways_of(results):
        for cell in way.cells(results):
            estimate = cell.estimate()
            rate = number(cell.samples_per_s, 3)
            measured = [time_cell(estimate), interval_cell(estimate), rate]
            rows.append([way.name, f"{cell.point['points']:,}", *measured])
            ids.append([cell.cell_id])
    return PageTable(
        f"{results.experiment}: an epoch over the number of points",
        statistic(results),
        ["on", "points", "ms an epoch", "95% interval, ms", "points/s"],
        rows,
        remarks(results),
        cells=ids,
        section="devices",
    )


def _training_table(results: Results, found: Sequence[Training]) -> PageTable:
    height = next((value for one in found if (value := one.cell.fact("rms_height"))), None)
    rows = [
        [
            one.way.name,
            f"{one.cell.point['points']:,}",
            f"{one.epochs:,}",
            MISSING if one.made_s is None else number(one.made_s),
            number(one.seconds),
            number(one.total_s),
            number(one.rms_residual),
            number(one.cell.fact("largest_residual")),
        ]
        for one in found
    ]
    return PageTable(
        f"{results.experiment}: a complete training, Adam {results.parameters['learning_rate']:g}",
        "Seconds of one training (median over launches). Residuals are the surface's heights less the "
        f"network's; the heights' own root mean square about their mean is {number(height)}.",
        [
            *("on", "points", "epochs", "compile or capture, s", "all epochs, s", "together, s"),
            *("rms residual", "largest"),
        ],
        rows,
        cells=[[one.cell.cell_id] for one in found],
        section="devices",
    )


def sentences(results: Results) -> Iterator[str]:
    """The DataLoader, compiling and capturing, the fit; last, whether the GPU is worth it."""
    yield from _loader_sentences(results)
    found = trainings(results)
    yield from _made_sentences(found)
    if found:
        residuals = sorted(one.rms_residual for one in found)
        height = number(found[0].cell.fact("rms_height"))
        between = number(residuals[0])
        if residuals[0] != residuals[-1]:
            between = f"between {between} and {number(residuals[-1])}"
        yield (
            f"{results.experiment}: after {found[0].epochs:,} epochs the root mean square of the residual is "
            f"{between}, on a surface whose heights deviate by {height}.{_swing(found)}"
        )
    if "cuda" in results.missing or not results.all("cuda"):
        told = " ".join(_training(one) for one in found)
        missing = " ".join(missing_remark(results)) or "The study did not ask for a GPU."
        yield f"Is a GPU worth it for the surface? That is not answered here. {missing} {told}".rstrip()
    else:
        yield _answer(results, found)


def _swing(found: Sequence[Training]) -> str:
    """What the residual does in the last half of the epochs, of every way alike."""
    late = [
        math.sqrt(loss)
        for one in found
        for epoch, loss in zip(*one.losses, strict=True)
        if 2 * epoch >= one.epochs
    ]
    if len(late) < 2:
        return ""
    return (
        f" Over the last half of the epochs it moves between {number(min(late))} and {number(max(late))}: "
        "a smaller difference of two ways tells where the last epoch fell, not which way fits better."
    )


def _training(one: Training) -> str:
    return f"{one.way.name}: {number(one.seconds)} s for {one.epochs:,} epochs."


def _loader_sentences(results: Results) -> Iterator[str]:
    told = []
    for device, name in (("cpu", "CPU"), ("cuda", "GPU")):
        near, loader = (way_named(results, device, "eager", place) for place in ("device", "loader"))
        if near is None or loader is None:
            continue
        both = common(results, near, loader)
        if both:
            ratios = [f"{times_of(other, own)} at {at:,} points" for at, (own, other) in both.items()]
            told.append(f"on the {name} {listed(ratios)}")
    if told:
        yield (
            "How much longer an epoch takes whose batch a DataLoader puts together point by point than one "
            f"whose data lies on the device: {'; '.join(told)}{one_launch(results)}."
        )


def _made_sentences(found: Sequence[Training]) -> Iterator[str]:
    """After how many epochs compiling or capturing has paid for itself."""
    eager = {one.way.device: one for one in found if one.way.step == "eager"}
    for one in found:
        base = eager.get(one.way.device)
        if one.made_s is None or base is None:
            continue
        gained = base.seconds / base.epochs - one.seconds / one.epochs
        verb = "Capturing" if one.way.step == "captured" else "Compiling"
        device = one.way.name.split()[0]
        paid = (
            f"is paid for after {number(one.made_s / gained, 2)} epochs"
            if gained > 0
            else "is not paid for in this training, as its epochs were not shorter than eager ones"
        )
        yield f"{verb} on the {device} takes {number(one.made_s)} s once and {paid}."


def _answer(results: Results, found: Sequence[Training]) -> str:
    cpu = way_named(results, "cpu", "eager")
    told = []
    for step in ("eager", "captured"):
        gpu = way_named(results, "cuda", step)
        if cpu and gpu:
            told.append(f"{step} {_faster(common(results, cpu, gpu), break_even(results, cpu, gpu))}")
    by_way = {one.way.name: one for one in found}
    whole = [
        f"{number(one.total_s)} s on {name}{' (with capturing)' if one.made_s and 'cap' in name else ''}"
        for name in ("CPU eager", "GPU eager", "GPU captured")
        if (one := by_way.get(name))
    ]
    training = f" A complete training takes {listed(whole)}." if whole else ""
    ways = {way.name: way for way in ways_of(results)}
    names = ("CPU eager", "GPU eager", "GPU captured")
    without = [
        f"{name} at {listed([f'{count:,}' for count in points])}"
        for name in names
        if name in ways
        and (points := [cell.point["points"] for cell in ways[name].cells(results) if not cell.is_over])
    ]
    missing = f" Not measured yet, in numbers of points: {'; '.join(without)}." if without else ""
    return (
        "Is a GPU worth it for the surface? By the time of an epoch it is faster than the CPU, in numbers of "
        f"points: {'; '.join(told) or 'not measured on both'}{one_launch(results)}.{training}{missing}"
    )


def _faster(both: dict[int, tuple[Estimate, Estimate]], found: Crossing | None) -> str:
    """The break-even point, or at which one number of points the GPU is ahead or behind."""
    if len(both) != 1:
        return crossing_text(found)
    ((points, (cpu, gpu)),) = both.items()
    ahead = f"{times_of(cpu, gpu)} as fast as the CPU at {points:,}, the only number measured on both"
    return f"not answered ({ahead})"
