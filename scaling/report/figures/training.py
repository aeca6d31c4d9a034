"""Training loss and accuracy over epochs, seconds and joules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from scaling.analysis.columns import Row
from scaling.analysis.groups import Group
from scaling.analysis.learning import family_key
from scaling.analysis.samples import CellResult, Training
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    WIDTH,
    Looks,
    add_tip,
    aggregator_handle,
    legend_below,
    set_title,
    title_with_recipe,
)
from scaling.report.figures.style import line_styles
from scaling.report.formats import percent
from scaling.report.titles import title_of

Against = Literal["epochs", "seconds", "joules"]

EPOCHS = (
    "Training loss (mean over the epoch's steps) and accuracy after every epoch, medians over seeds and "
    "repeats in a band from the smallest to the largest (convergence.csv; last points: the columns "
    "train_loss, train_accuracy and final_test_accuracy). Training accuracy, the thin line, is that on as "
    "many training samples as there are test samples, not augmented. A line ends or has a gap where a loss "
    "was not finite; a ring is at the end of trainings that are not over (state of convergence.csv), whose "
    "values are in no other table."
)

SECONDS = (
    "The same against the slowest rank's seconds of training without evaluation (train_s of convergence.csv; "
    "columns train_s and seconds_to_target)."
)

JOULES = (
    "The same against the energy that all GPUs took for training, without evaluation (train_j of "
    "convergence.csv; columns joules_per_sample and joules_to_target)."
)

TRAININGS: dict[Against, str] = {"epochs": EPOCHS, "seconds": SECONDS, "joules": JOULES}

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


@figure(section="training")
def training(data: FigureInput) -> Iterator[Drawn]:
    """Of each group of trainings one against epochs, seconds and joules, as far as these are known."""
    for group in data.groups_of("convergence"):
        lines = training_lines(group, data.cells)
        title = title_with_recipe(group)
        for against, caption in TRAININGS.items():
            if known := placed_lines(lines, against):
                drawing = draw_training(title, known, data.looks, against)
                name = f"loss-{against}-{group.slug}"
                yield Drawn(name, title_of(group.given), caption, drawing, "convergence.csv", group)


@dataclass(frozen=True)
class TrainingLine:
    """The trainings of one combination: medians over its seeds and repeats at every epoch.

    NaN where one was not finite, or is not known. `ranges` has the smallest and largest values of train_loss
    and test_accuracy where there are several trainings. `is_over` is False where none of them is.
    """

    aggregator: str
    world_size: int
    epochs: list[int]
    train_s: list[float]
    train_loss: list[float]
    test_accuracy: list[float]
    train_accuracy: list[float]
    train_j: list[float]
    num_trainings: int = 1
    ranges: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    is_over: bool = True


def training_lines(group: Group, cells: Mapping[str, CellResult]) -> list[TrainingLine]:
    """One line for all seeds and repeats of a combination: of those done, or else of those begun.

    They are in the table's order.

    Args:
        group: convergence cells.
        cells: the samples, by cell id.
    """
    families: dict[tuple[Any, ...], list[Row]] = {}
    for row in group.rows:
        target = cells[row["cell_id"]].cell.get("target_accuracy")  # rows without results have none
        families.setdefault(family_key({**row, "target_accuracy": target}), []).append(row)
    lines = []
    for own in families.values():
        of_own = [cells[row["cell_id"]] for row in own]
        done = [training for cell in of_own for training in cell.trainings]
        if drawn := done or [training for cell in of_own for training in cell.begun]:
            lines.append(_training_line(own[0], drawn, is_over=bool(done)))
    return lines


def _training_line(row: Row, trainings: Sequence[Training], *, is_over: bool) -> TrainingLine:
    length = min(len(training.epochs) for training in trainings)

    def values(name: str) -> np.ndarray:
        return np.array([getattr(training, name)[:length] for training in trainings])

    def medians(name: str) -> list[float]:
        return [float(value) for value in np.median(values(name), axis=0)]

    ranges = {
        name: (values(name).min(axis=0).tolist(), values(name).max(axis=0).tolist())
        for name in ("train_loss", "test_accuracy")
        if len(trainings) > 1
    }
    return TrainingLine(
        row["aggregator"],
        row["world_size"],
        [int(epoch) for epoch in trainings[0].epochs[:length]],
        train_s=medians("train_s"),
        train_loss=medians("train_loss"),
        test_accuracy=medians("test_accuracy"),
        train_accuracy=medians("train_accuracy"),
        train_j=medians("train_j"),
        num_trainings=len(trainings),
        ranges=ranges,
        is_over=is_over,
    )


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
