"""Plot data -> matplotlib figures. Nothing is written here, and pyplot's global state is not used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from scaling.report.drawing_parts import OUTSIDE, WIDTH, Looks, aggregator_handle, plain_ticks, set_title
from scaling.report.figure_data import SpeedupLine, TrainingLine
from scaling.report.figure_style import Look, line_styles
from scaling.report.formats import workers

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
    """Speedup over the world size, both axes in powers of two, with the ideal line and the intervals."""
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    axes = figure.add_subplot()
    sizes = sorted({size for line in lines for size in line.world_sizes})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    (ideal,) = axes.plot(sizes, sizes, color="#999999", linestyle=(0, (2, 2)), linewidth=1.2, label="ideal")
    values = [value for line in lines for value in line.speedup]
    bottom, top = min([*values, *sizes]) / 1.35, max([*values, *sizes]) * 1.35
    for index, line in enumerate(lines):
        # Beside one another: at the same place the intervals would hide each other.
        shift = 2 ** (WIDEST_SHIFT_OCTAVES * (2 * index / max(1, len(lines) - 1) - 1))
        _draw_speedup_line(axes, line, looks[line.aggregator], shift, (bottom, top))
    axes.set_ylim(bottom, top)
    plain_ticks(axes, sizes)
    axes.set_xlabel("workers (world size)")
    axes.set_ylabel("speedup (throughput / that of one worker)")
    set_title(figure, title)
    handles = [aggregator_handle(line.aggregator, looks, line.name) for line in lines]
    figure.legend(**OUTSIDE, handles=[*handles, ideal], title="aggregator")
    return figure


def _draw_speedup_line(
    axes: Axes, line: SpeedupLine, look: Look, shift: float, limits: tuple[float, float]
) -> None:
    places = [size * shift for size in line.world_sizes]
    axes.plot(places, line.speedup, color=look.colour, marker=look.marker)
    for place, low, high in zip(places, line.low, line.high, strict=True):
        if math.isnan(low):
            continue
        # Drawn from end to end, not as distances from the median, which may lie outside a t interval.
        shown = [max(low, limits[0] / 2), min(high, limits[1] * 2)]
        axes.plot([place, place], shown, color=look.colour, linewidth=0.9)
        axes.plot([place, place], shown, color=look.colour, marker="_", linestyle="", markersize=6)


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


def _marked(index: int, num_epochs: int) -> tuple[int, int]:
    """First marked epoch, distance to the next: neighbours differ, so that markers do not pile up."""
    distance = max(1, num_epochs // MARKERS_A_LINE)
    return index % distance, distance


def _training_legends(figure: Figure, lines: Sequence[TrainingLine], looks: Looks) -> None:
    styles = line_styles(line.world_size for line in lines)
    labels = dict.fromkeys(line.aggregator for line in lines)
    heading = [Line2D([], [], linestyle="", label="")]
    dashes = [
        Line2D([], [], color="#444444", linestyle=style, label=workers(size))
        for size, style in styles.items()
    ]
    handles = [*(aggregator_handle(label, looks) for label in labels), *heading, *dashes]
    figure.legend(**OUTSIDE, handles=handles, title="aggregator", handlelength=3)


def _spans_decades(values: Iterable[float]) -> bool:
    positive = [value for value in values if math.isfinite(value) and value > 0]
    return bool(positive) and max(positive) > LOG_LOSS_RATIO * min(positive)
