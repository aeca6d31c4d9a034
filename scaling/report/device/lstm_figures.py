"""The figures of `lstm-fused`: samples a second over the batch, and accuracies beside the seeds' spread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from scaling.report.device.common import DEVICES, short
from scaling.report.device.lstm_data import (
    IMPLEMENTATIONS,
    NOISE,
    PHASES,
    PRECISIONS,
    Comparison,
    comparisons,
    ordered,
    rate,
    timed,
)
from scaling.report.device.results import Results
from scaling.report.figures.draw import Drawn
from scaling.report.figures.parts import WIDTH, add_tip, legend_below, set_title
from scaling.report.figures.style import BLACK, BLUE, GREY, ORANGE, LineStyle

COLOURS = {"elementary": ORANGE, "cell": BLUE, "fused": BLACK}
MARKERS = {"elementary": "^", "cell": "s", "fused": "o"}
NAMES = {"elementary": "elementary operations", "cell": "LSTMCell loop", "fused": "fused nn.LSTM"}

NARROWEST = 1.0
"""Of an axis of accuracies, in percentage points: where all seeds agree."""

SPEED = (
    "Samples a second over the mini-batch, a column of panels for each precision (columns batch, precision; "
    "batch over iteration_s, evaluate_seconds and predict_seconds). Both axes are logarithmic. Training: an "
    "optimizer update on samples on the device. Evaluation: forward pass, loss and right answers there. "
    "Prediction: from host memory to host memory. A line is broken where a batch has no number."
)
ACCURACY = (
    "Accuracy on held-out samples after training (columns accuracy, accuracy_sd): a small marker for each "
    "seed, a large one for their mean. The band is that of the fused implementation in float32: its mean and "
    f"{NOISE:g} standard errors of a difference of two means, from the spread over seeds, to either side; "
    "without that implementation's accuracy there is none."
)


def figures(results: Results) -> Iterator[Drawn]:
    """Speeds, then accuracies."""
    chosen = timed(results)
    if chosen and any(cell.estimate() for cell in results.all(**chosen)):
        title = f"{results.experiment}: speed on {chosen['task']}, width {chosen['width']}"
        yield Drawn(f"device-{results.slug}-speed", title, SPEED, _draw_speeds(results, chosen, title))
    if compared := comparisons(results):
        title = (
            f"{results.experiment}: accuracy after {results.parameters['steps']} steps, width "
            f"{results.parameters['accuracy_width']}, batch {results.parameters['accuracy_batch']}"
        )
        yield Drawn(f"device-{results.slug}-accuracy", title, ACCURACY, _draw_accuracies(compared, title))


def _draw_speeds(results: Results, chosen: dict[str, Any], title: str) -> Figure:
    precisions = [name for name in PRECISIONS if results.all(**chosen, precision=name)]
    figure = Figure(figsize=(WIDTH, 6.2), layout="constrained")
    set_title(figure, title)
    panels = figure.subplots(len(PHASES), len(precisions), squeeze=False, sharex=True, sharey="row")
    batches = sorted({cell.point["batch"] for cell in results.all(**chosen)})
    for row, (phase, name) in enumerate(PHASES.items()):
        for column, precision in enumerate(precisions):
            axes = panels[row][column]
            _speed_lines(axes, results, {**chosen, "precision": precision}, phase)
            _speed_axes(axes, batches)
            if row == 0:
                axes.set_title(precision, loc="left")
            if row == len(PHASES) - 1:
                axes.set_xlabel("batch")
            if column == 0:
                axes.set_ylabel(f"{name}, samples/s")
    legend_below(figure, _speed_handles(results))
    return figure


def _speed_axes(axes: Axes, batches: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(batches)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())


def _speed_lines(axes: Axes, results: Results, chosen: dict[str, Any], phase: str) -> None:
    for device, device_name in DEVICES.items():
        for way in IMPLEMENTATIONS:
            own = results.all(device, **chosen, implementation=way)
            measured = [(cell.point["batch"], rate(cell, phase) or math.nan) for cell in ordered(own)]
            rates = [value for _, value in measured]
            axes.plot(
                [batch for batch, _ in measured],
                rates,
                color=COLOURS[way],
                marker=MARKERS[way],
                markersize=4,
                linewidth=1.2,
                linestyle="-" if device == "cuda" else (0, (4, 2)),
                markerfacecolor=COLOURS[way] if device == "cuda" else "white",
            )
            for batch, value in measured:
                if math.isnan(value):
                    continue
                add_tip(axes, batch, value, f"{device_name}, {NAMES[way]}, {batch}: {value:,.0f} samples/s")


def _speed_handles(results: Results) -> list[Line2D]:
    ways = [
        Line2D([], [], color=COLOURS[way], marker=MARKERS[way], markersize=4, label=NAMES[way])
        for way in IMPLEMENTATIONS
        if results.all(implementation=way)
    ]
    looks: dict[str, tuple[LineStyle, str]] = {"cuda": ("-", BLACK), "cpu": ((0, (4, 2)), "white")}
    devices = [
        Line2D(
            [],
            [],
            color=BLACK,
            linestyle=looks[name][0],
            marker="o",
            markersize=4,
            markerfacecolor=looks[name][1],
            label=DEVICES[name],
        )
        for name in ("cuda", "cpu")
        if results.all(name)
    ]
    return [*ways, *devices]


def _draw_accuracies(compared: Sequence[Comparison], title: str) -> Figure:
    """A panel for each task and device, a line in it for each precision and implementation."""
    heights = [1.2 + len(one.accuracies) for one in compared]
    figure = Figure(figsize=(WIDTH, 1.0 + 0.2 * sum(heights)), layout="constrained")
    set_title(figure, title)
    panels = figure.subplots(len(compared), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, one in zip(panels, compared, strict=True):
        _draw_comparison(axes, one)
        axes.set_title(f"{one.task}, {DEVICES[one.device]}", loc="left")
    panels[-1].set_xlabel("accuracy on held-out samples, %")
    return figure


def _draw_comparison(axes: Axes, compared: Comparison) -> None:
    reference, noise = compared.reference, compared.noise
    if reference is not None and noise is not None:
        low, high = 100 * (reference.mean - noise), 100 * (reference.mean + noise)
        axes.axvspan(low, high, color="#e6e6e6", linewidth=0)
        axes.axvline(100 * reference.mean, color=GREY, linewidth=0.8)
    for place, one in enumerate(compared.accuracies):
        way = one.way[0]
        seeds = [100 * value for value in one.by_seed.values()]
        axes.plot(
            seeds,
            [place] * len(seeds),
            color=COLOURS[way],
            marker=MARKERS[way],
            markersize=3,
            linestyle="",
            markerfacecolor="none",
        )
        axes.plot([100 * one.mean], [place], color=COLOURS[way], marker=MARKERS[way], markersize=6)
        add_tip(axes, 100 * one.mean, place, f"{one.name}: {100 * one.mean:.2f}%")
    axes.set_yticks(range(len(compared.accuracies)), [one.name for one in compared.accuracies])
    axes.set_ylim(len(compared.accuracies) - 0.5, -0.5)
    low, high = axes.get_xlim()
    missing = max(0.0, NARROWEST - (high - low)) / 2
    axes.set_xlim(low - missing, high + missing)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
