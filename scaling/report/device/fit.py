"""What `surface-regression` has of its own: complete trainings, when compiling is paid for, and the fit."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from statistics import median

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.study_scatter import CellTimes, study_scatter
from scaling.report.device.comparisons import finding, rounded
from scaling.report.device.drawing import log_axes, looks_of
from scaling.report.device.results import DeviceResult, DeviceResults
from scaling.report.figures.base import Drawn
from scaling.report.figures.parts import legend_below, new_figure
from scaling.report.formats import listed, milliseconds, number
from scaling.report.tables import Table, without_empty_columns

Grid = NDArray[np.float64]
EXTENT = 3.0
OLDER = "tanh"  # the activation of studies that do not name one
VERBS = {"capture": "capturing", "compile": "compiling"}


def made_s(cell: DeviceResult) -> float:
    return sum(cell.median(phase) for phase in VERBS if phase in cell.phases)


def total_s(cell: DeviceResult) -> float:
    return cell.median("train") + made_s(cell)


def verb(cell: DeviceResult) -> str:
    return next((said for phase, said in VERBS.items() if phase in cell.phases), "")


def trainings(results: DeviceResults) -> dict[str, DeviceResult]:
    return {
        arm.name: cell
        for arm in results.arms
        for cell in results.where(arm.where)
        if cell.estimate("train") and cell.fact("rms_residual") is not None
    }


def surface(side: int) -> Grid:
    """[side, side], x first: `surface_training` has the same, which needs torch."""
    axis = np.linspace(-EXTENT, EXTENT, side)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    return np.asarray(
        3 * (1 - x) ** 2 * np.exp(-(x**2) - (y + 1) ** 2)
        - 10 * (x / 5 - x**3 - y**5) * np.exp(-(x**2) - y**2)
        - np.exp(-((x + 1) ** 2) - y**2) / 3
    )


CAPTION = (
    "The surface, what the network makes of it after the training, and the surface less that, over x (to the "
    "right) and y (upwards); of the training with the least time (columns rms_residual, largest_residual). "
    "Below, the mean squared error over the epochs, of every training; where ways compute the same, the "
    "lines cover each other."
)


def figures(results: DeviceResults) -> Iterator[Drawn]:
    every = trainings(results)
    with_fit = [name for name, cell in every.items() if cell.fact("fit", "grid")]
    if not with_fit:
        return
    best = min(with_fit, key=lambda name: total_s(every[name]))
    fit: Grid = np.asarray(every[best].fact("fit", "grid"), dtype=float)
    how = f"{best}, {results.parameters.get('activation', OLDER)}, {every[best].fact('epochs'):,} epochs"
    title = f"{results.experiment}: surface, fit and residual ({how})"
    figure = new_figure(title, 5.2)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.0, 1.15])[:, 0]
    panels = above.subplots(1, 3, sharex=True, sharey=True)
    truth = surface(len(fit))
    shown = {"surface": truth, "fit": fit, "residual": truth - fit}
    for axes, (name, values) in zip(panels, shown.items(), strict=True):
        limit = float(np.abs(truth if name == "fit" else values).max())
        extent = (-EXTENT, EXTENT, -EXTENT, EXTENT)
        image = axes.imshow(values.T, origin="lower", extent=extent, cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes.grid(visible=False)
        above.colorbar(image, ax=axes, location="bottom", shrink=0.9, aspect=14)
        axes.set_title(name, loc="left")
        axes.set_xlabel("x")
    panels[0].set_ylabel("y")
    axes = below.subplots()
    for look in looks_of(results.arms):
        if cell := every.get(look["label"]):
            losses = cell.fact("loss", "x") or [], cell.fact("loss", "y") or []
            axes.plot(*losses, **{**look, "marker": "", "linewidth": 1.2})
    log_axes(axes, "epoch", "mean squared error")
    legend_below(below, axes.get_lines())
    yield Drawn(f"device-{results.slug}-fit", title, CAPTION, figure)


def findings(results: DeviceResults) -> Iterator[str]:
    trained = trainings(results)
    eager = {cell.device: cell for cell in trained.values() if cell.point["step"] == "eager"}
    for name, cell in trained.items():
        if made_s(cell) and cell.device in eager:
            made = f"{verb(cell).capitalize()} on the {name.split()[0]} takes {number(made_s(cell))} s once; "
            yield from finding(results, made, [_paid(cell, eager[cell.device])])
    if trained:
        cells = [*trained.values()]
        residuals = sorted({number(cell.fact("rms_residual")) for cell in cells}, key=float)
        between = residuals[0] if len(residuals) == 1 else f"between {residuals[0]} and {residuals[-1]}"
        epochs, height = cells[0].fact("epochs"), number(cells[0].fact("rms_height"))
        text = (
            f"{results.experiment}: after {epochs:,} epochs the root mean square of the residual with "
            f"{results.parameters.get('activation', OLDER)} is {between}, on a surface of heights "
            f"that deviate by {height}."
        )
        curves = [(cell.fact("loss", "x") or [], cell.fact("loss", "y") or []) for cell in cells]
        losses = [pair for curve in curves for pair in zip(*curve, strict=True)]
        late = sorted(math.sqrt(loss) for epoch, loss in losses if 2 * epoch >= epochs)
        if len(late) > 1:
            text += (
                f" Over the last half of the epochs it moves between {number(late[0])} and "
                f"{number(late[-1])}: a smaller difference of two ways tells where the last epoch fell, not "
                "which way fits better."
            )
        yield text


def _paid(cell: DeviceResult, eager: DeviceResult) -> str:
    difference = cell.difference(eager)
    if difference is None:
        return "whether it is paid for is not known, as an epoch by itself was not timed"
    trained_ms = [1e3 * one.median("train") / one.fact("epochs") for one in (cell, eager)]
    # The launches show it, or a single one was seen so.
    is_shorter = difference.log_ratio > 0 if difference.error is None else difference.is_larger
    if is_shorter != (trained_ms[0] < trained_ms[1]):
        return (
            "whether it is ever paid for is open: an epoch by itself took "
            f"{milliseconds(cell.median())} ms instead of {milliseconds(eager.median())} ms, one of the "
            f"complete training {number(trained_ms[0])} ms instead of {number(trained_ms[1])} ms"
        )
    if not is_shorter:
        return "it is not paid for in this training, as its epochs were not shorter than eager ones"
    ratios = (difference.ratio, *reversed(difference.interval or ()))
    epochs, *bounds = (rounded(made_s(cell) / cell.median() / (ratio - 1)) for ratio in ratios)
    return f"it is paid for after {epochs} epochs{f' [{bounds[0]}, {bounds[1]}]' if bounds else ''}"


def short(results: DeviceResults) -> str:
    every = trainings(results)
    shortest = [
        min(same, key=lambda name: total_s(every[name]))
        for device in ("cuda", "cpu")
        if (same := [name for name, cell in every.items() if cell.device == device])
    ]
    if len(shortest) < 2:
        return ""
    totals: dict[Hashable, CellTimes] = {}
    for name, cell in every.items():
        each = [cell.seconds(phase) for phase in ("train", *VERBS)]
        launches = {one: math.fsum(median(made[one]) for made in each if one in made) for one in each[0]}
        totals[name] = CellTimes(cell.device, launches)
    gpu, cpu = shortest
    difference, verdict = study_scatter(totals).difference(gpu, cpu), ""
    if difference.error is not None:
        verdict = "Yes: " if difference.is_larger else "No: "
        if not difference.is_significant:
            verdict = f"{'Either' if difference.is_same() else 'Undecided'}: "
    times = " and ".join(f"{number(total_s(every[name]))} s on {name}" for name in shortest)
    return f"{verdict}a complete training takes {times}."


def answer_table(results: DeviceResults) -> Table | None:
    headings = ["on", "training, s", "of it compiling or capturing, s", "residual"]
    rows = [
        [name, number(total_s(cell)), number(made_s(cell) or None), number(cell.fact("rms_residual"))]
        for name, cell in trainings(results).items()
    ]
    what = "Medians of whole trainings; residual: the root of its mean square after the last epoch."
    return without_empty_columns(Table("A complete training", what, headings, rows)) if rows else None


def answer(results: DeviceResults) -> Iterator[str]:
    whole = []
    for name, cell in trainings(results).items():
        made = f" ({number(made_s(cell))} s of it {verb(cell)})" if made_s(cell) else ""
        whole.append(f"{number(total_s(cell))} s on {name}{made}")
    yield from finding(results, "A complete training takes ", [listed(whole)] if whole else [])
