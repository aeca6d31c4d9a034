"""Plot data -> matplotlib figures. Nothing is written here, and pyplot's global state is not used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from scaling.analysis.formats import percent, workers
from scaling.report.figure_data import SpeedupLine, TrainingLine
from scaling.report.figures.parts import (
    WIDTH,
    Looks,
    add_tip,
    aggregator_handle,
    legend_below,
    plain_ticks,
    set_title,
)
from scaling.report.figures.style import Look, line_styles

Against = Literal["epochs", "seconds", "joules"]

_PLACES = {
    "epochs": ("epochs", "epoch"),
    "seconds": ("train_s", "seconds of training, without evaluation"),
    "joules": ("train_j", "joules of training, of all GPUs, without evaluation"),
}
"""What a training is drawn against -> the line's values, and the axis' label."""

FAINT = 0.45
BAND = 0.15
"""How opaque training accuracy is, and the band from the smallest to the largest of several trainings."""

LOG_LOSS_RATIO = 10
"""Losses that span more than this are drawn on a logarithmic axis."""
MARKERS_A_LINE = 8
"""A longer line is marked at some of its epochs only."""
WIDEST_SHIFT_OCTAVES = 0.04
"""How far points of one world size are set apart, either way; more would mislead beside the ideal line."""


def draw_speedup(title: str, lines: Sequence[SpeedupLine], looks: Looks) -> Figure:
    """Speedup above, efficiency below, over powers of two, with the ideal line and the intervals."""
    figure = Figure(figsize=(WIDTH, 6.6), layout="constrained")
    speedup_axes, efficiency_axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    sizes = sorted({size for line in lines for size in line.world_sizes})
    speedup_axes.set_xscale("log", base=2)
    speedup_axes.set_yscale("log", base=2)
    (ideal,) = speedup_axes.plot(sizes, sizes, **_IDEAL)
    efficiency_axes.plot(sizes, [1.0] * len(sizes), **_IDEAL)
    values = [value for line in lines for value in line.speedup]
    limits = min([*values, *sizes]) / 1.35, max([*values, *sizes]) * 1.35
    highest = 1.08 * max([1.0, *(value for line in lines for value in line.efficiency)])
    for index, line in enumerate(lines):
        # Beside one another: at the same place the intervals would hide each other.
        shift = 2 ** (WIDEST_SHIFT_OCTAVES * (2 * index / max(1, len(lines) - 1) - 1))
        places = [size * shift for size in line.world_sizes]
        look = looks[line.aggregator]
        _draw_line(speedup_axes, places, (line.speedup, line.low, line.high), look, limits)
        low, high = (
            [bound / size for bound, size in zip(own, line.world_sizes, strict=True)]
            for own in (line.low, line.high)
        )
        _draw_line(efficiency_axes, places, (line.efficiency, low, high), look, (0.0, highest))
        for place, point in zip(places, line.points(), strict=True):
            add_tip(speedup_axes, place, point.speedup, point.text)
            add_tip(efficiency_axes, place, point.efficiency, point.text)
    speedup_axes.set_ylim(*limits)
    efficiency_axes.set_ylim(0, highest)
    plain_ticks(speedup_axes, sizes)
    efficiency_axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    efficiency_axes.set_xlabel("workers (world size)")
    speedup_axes.set_ylabel("speedup over one worker")
    efficiency_axes.set_ylabel("parallel efficiency")
    set_title(figure, title)
    handles = [aggregator_handle(line.aggregator, looks, line.name) for line in lines]
    legend_below(figure, [*handles, ideal], "aggregator")
    return figure


_IDEAL: Any = {"color": "#999999", "linestyle": (0, (2, 2)), "linewidth": 1.2, "label": "ideal"}


def _draw_line(
    axes: Axes,
    places: Sequence[float],
    values: tuple[Sequence[float], Sequence[float], Sequence[float]],
    look: Look,
    limits: tuple[float, float],
) -> None:
    """Values with the ends of their intervals, cut off outside the limits."""
    medians, lows, highs = values
    axes.plot(places, medians, color=look.colour, marker=look.marker)
    for place, low, high in zip(places, lows, highs, strict=True):
        if math.isnan(low):
            continue
        # Drawn from end to end, not as distances from the median, which may lie outside a t interval.
        shown = [max(low, limits[0] / 2), min(high, limits[1] * 2)]
        axes.plot([place, place], shown, color=look.colour, linewidth=0.9)
        axes.plot([place, place], shown, color=look.colour, marker="_", linestyle="", markersize=6)


def placed_lines(lines: Sequence[TrainingLine], against: Against) -> list[TrainingLine]:
    """Those whose place on that axis is known in the end."""
    return [line for line in lines if math.isfinite(getattr(line, _PLACES[against][0])[-1])]


def draw_training(title: str, lines: Sequence[TrainingLine], looks: Looks, against: Against) -> Figure:
    """Training loss above, accuracy below; colour and marker: aggregator, dashes: world size.

    Of several trainings the median, in a band from the smallest to the largest. Training accuracy is thin.
    """
    figure = Figure(figsize=(WIDTH, 6.2), layout="constrained")
    loss_axes, accuracy_axes = figure.subplots(2, 1, sharex=True)
    styles = line_styles(line.world_size for line in lines)
    for index, line in enumerate(lines):
        places = getattr(line, _PLACES[against][0])
        look = looks[line.aggregator]
        style = styles[line.world_size]
        accuracy_axes.plot(
            places, line.train_accuracy, color=look.colour, linestyle=style, linewidth=0.7, alpha=FAINT
        )
        for axes, name in ((loss_axes, "train_loss"), (accuracy_axes, "test_accuracy")):
            if name in line.ranges:
                axes.fill_between(places, *line.ranges[name], color=look.colour, alpha=BAND, linewidth=0)
            axes.plot(
                places,
                getattr(line, name),
                color=look.colour,
                marker=look.marker,
                linestyle=style,
                markevery=_marked(index, len(places)),
                markersize=3.5,
                linewidth=1.0,
            )
            if not line.is_over:
                axes.plot(places[-1], getattr(line, name)[-1], color=look.colour, **_NOT_OVER)
        _training_tips(loss_axes, accuracy_axes, line, against, _marked(index, len(places)))
    if _spans_decades(value for line in lines for value in line.train_loss):
        loss_axes.set_yscale("log")
        loss_axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        loss_axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        loss_axes.yaxis.set_minor_locator(NullLocator())
    loss_axes.set_ylabel("training loss")
    accuracy_axes.set_ylabel("test accuracy (thin: training)")
    accuracy_axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    if against == "epochs":
        accuracy_axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    accuracy_axes.set_xlabel(_PLACES[against][1])
    set_title(figure, title)
    _training_legends(figure, lines, looks)
    return figure


_NOT_OVER: Any = {"marker": "o", "markersize": 7, "markerfacecolor": "white", "linestyle": ""}
"""The end of a line whose trainings will go on."""


def _training_tips(
    loss_axes: Axes, accuracy_axes: Axes, line: TrainingLine, against: Against, marked: tuple[int, int]
) -> None:
    """At the epochs that have a marker, and the last."""
    places = getattr(line, _PLACES[against][0])
    first, distance = marked
    for at in sorted({*range(first, len(places), distance), len(places) - 1}):
        loss, accuracy = line.train_loss[at], line.test_accuracy[at]
        text = (
            f"{line.aggregator} on {workers(line.world_size)}, epoch {line.epochs[at]}, "
            f"{_seconds(line.train_s[at])}training loss {loss:.4g}, test accuracy {percent(accuracy, 2)}"
        )
        for axes, value in ((loss_axes, loss), (accuracy_axes, accuracy)):
            if math.isfinite(value) and math.isfinite(places[at]):
                add_tip(axes, places[at], value, text)


def _seconds(train_s: float) -> str:
    """`12.3 s: `; empty where they are not known."""
    return f"{train_s:.4g} s: " if math.isfinite(train_s) else ""


def _marked(index: int, num_epochs: int) -> tuple[int, int]:
    """First marked epoch, distance to the next: neighbours differ, so that markers do not pile up."""
    distance = max(1, num_epochs // MARKERS_A_LINE)
    return index % distance, distance


def _training_legends(figure: Figure, lines: Sequence[TrainingLine], looks: Looks) -> None:
    styles = line_styles(line.world_size for line in lines)
    labels = dict.fromkeys(line.aggregator for line in lines)
    dashes = [
        Line2D([], [], color="#444444", linestyle=style, label=workers(size))
        for size, style in styles.items()
    ]
    ends = [Line2D([], [], color="#444444", label="not over yet", **_NOT_OVER)]
    handles = [*(aggregator_handle(label, looks) for label in labels), *dashes]
    handles += ends if any(not line.is_over for line in lines) else []
    legend_below(figure, handles, "aggregator", handlelength=3)


def _spans_decades(values: Iterable[float]) -> bool:
    positive = [value for value in values if math.isfinite(value) and value > 0]
    return bool(positive) and max(positive) > LOG_LOSS_RATIO * min(positive)
