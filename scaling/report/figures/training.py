"""Training loss and accuracy over epochs, seconds and joules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scaling.analysis.columns import Row, unit_of_workers
from scaling.analysis.groups import CellGroup
from scaling.analysis.learning import family_key
from scaling.analysis.samples import CellResult, TrainingSamples
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    ANSWER_WIDTH,
    EndLabel,
    Looks,
    add_tip,
    broken,
    label_ends,
    percent_tick,
    plain_log,
    set_title,
)
from scaling.report.figures.style import MOST_COLOURED, NEARLY_ALL, ON_REQUEST, OTHER, OTHERS, line_styles
from scaling.report.figures.svg import with_tip
from scaling.report.formats import percent
from scaling.report.titles import title_of

Against = Literal["epochs", "seconds", "joules"]

EPOCHS = (
    "Medians over seeds and repeats, in a band from the smallest to the largest (convergence.csv). A line "
    "has a gap where a loss was not finite; a ring ends trainings that are not over. Grey: other "
    f"aggregators and numbers of workers{ON_REQUEST}. Accuracy near 100% is drawn as the error, on a log "
    "scale."
)

SECONDS = "The same against the slowest rank's seconds, without evaluation (train_s of convergence.csv)."
JOULES = "The same against the energy that all GPUs took for training (train_j of convergence.csv)."
TRAININGS: dict[Against, str] = {"epochs": EPOCHS, "seconds": SECONDS, "joules": JOULES}

_PLACES = {
    "epochs": ("epochs", "epoch"),
    "seconds": ("train_s", "seconds of training"),
    "joules": ("train_j", "joules of training, of all GPUs"),
}
"""What a training is drawn against -> the line's values, and the axis' label."""

BAND = 0.15  # how opaque the band from the smallest to the largest of several trainings is
LOG_LOSS_RATIO = 10  # losses that span more than this are drawn on a logarithmic axis
TIPS_A_LINE = 8  # a longer line shows its values at some of its epochs only


@figure(section="training")
def training(data: FigureInput) -> Iterator[Drawn]:
    """Of each group of trainings one against epochs, seconds and joules, as far as these are known."""
    for group in data.groups_of("convergence"):
        lines = training_lines(group, data.cells)
        for against, caption in TRAININGS.items():
            if known := _placed_lines(lines, against):
                title = data.titled(f"Training over {against}", group)
                drawing = draw_training(title, known, data.looks, against)
                name = f"loss-{against}-{group.slug}"
                yield Drawn(name, title_of(group.given), caption, drawing, "convergence.csv", group)


@dataclass(frozen=True)
class TrainingLine:
    """The trainings of one combination: medians over its seeds and repeats at every epoch.

    NaN where one was not finite, or is not known. `ranges` has the smallest and largest values of train_loss
    and test_accuracy where there are several trainings. `is_over` is False where none of them is.
    `worker`: what one is called.
    """

    aggregator: str
    world_size: int
    epochs: list[int]
    train_s: list[float]
    train_loss: list[float]
    test_accuracy: list[float]
    train_accuracy: list[float]
    train_j: list[float]
    ranges: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    is_over: bool = True
    worker: str = "worker"


def training_lines(group: CellGroup, cells: Mapping[str, CellResult]) -> list[TrainingLine]:
    """One line for all seeds and repeats of a combination: of those done, or else of those begun.

    They are in the table's order.
    """
    families: dict[tuple[Any, ...], list[Row]] = {}
    for row in group.rows:
        target = cells[row["cell_id"]].cell.get("target_accuracy")  # rows without results have none
        families.setdefault(family_key({**row, "target_accuracy": target}), []).append(row)
    lines = []
    for family in families.values():
        seeds = [cells[row["cell_id"]] for row in family]
        done = [training for cell in seeds for training in cell.trainings]
        if drawn := done or [training for cell in seeds for training in cell.begun]:
            lines.append(_training_line(family[0], drawn, is_over=bool(done)))
    return lines


def _training_line(row: Row, trainings: Sequence[TrainingSamples], *, is_over: bool) -> TrainingLine:
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
        ranges=ranges,
        is_over=is_over,
        worker=unit_of_workers(row),
    )


def _placed_lines(lines: Sequence[TrainingLine], against: Against) -> list[TrainingLine]:
    """Those whose place on that axis is known in the end."""
    return [line for line in lines if math.isfinite(getattr(line, _PLACES[against][0])[-1])]


def standing_out(lines: Sequence[TrainingLine], looks: Looks) -> list[TrainingLine]:
    """At most `MOST_COLOURED` with a colour: on the most workers first, then one alone, then others."""
    most = max((line.world_size for line in lines), default=1)
    coloured = [line for line in lines if looks[line.aggregator].colour != OTHER]
    ordered = sorted(coloured, key=lambda line: (line.world_size != most, line.world_size != 1))
    return ordered[:MOST_COLOURED]


def draw_training(title: str, lines: Sequence[TrainingLine], looks: Looks, against: Against) -> Figure:
    """Training loss above, accuracy or error below; colour: aggregator, dashes: world size.

    Of several trainings the median, in a band from the smallest to the largest.
    """
    figure = Figure(figsize=(ANSWER_WIDTH, 5.2), layout="constrained")
    loss_axes, accuracy_axes = figure.subplots(2, 1, sharex=True)
    chosen, is_error = standing_out(lines, looks), _is_drawn_as_error(lines)
    panels = [_Panel(loss_axes, "train_loss"), _Panel(accuracy_axes, "test_accuracy", is_error)]
    for line in sorted(lines, key=lambda line: line in chosen):
        colour = looks[line.aggregator].colour if line in chosen else OTHER
        for panel in panels:
            _draw_line(panel, line, colour, chosen, against)
    if _spans_decades(value for line in lines for value in line.train_loss):
        plain_log(loss_axes, "{:g}".format)
    loss_axes.set_ylabel("training loss")
    if is_error:
        plain_log(accuracy_axes, percent_tick)
        accuracy_axes.set_ylabel("test error")
    else:
        accuracy_axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: percent_tick(value)))
        accuracy_axes.set_ylabel("test accuracy")
    if against == "epochs":
        accuracy_axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    accuracy_axes.set_xlabel(_PLACES[against][1])
    for panel in panels:
        panel.axes.set_xlim(right=max(getattr(line, _PLACES[against][0])[-1] for line in lines) * 1.02)
        label_ends(panel.axes, _end_labels(panel, chosen, looks), gap=0.09, size=8)
    set_title(figure, title)
    return figure


@dataclass(frozen=True)
class _Panel:
    """One of the two plots: the line's values that it shows, as they are or as 1 - value."""

    axes: Axes
    name: str
    is_error: bool = False

    def shown(self, values: Sequence[float]) -> list[float]:
        """What is drawn of them; without any error there is no place on a log scale."""
        return [(1 - value if value < 1 else math.nan) if self.is_error else value for value in values]


def _is_drawn_as_error(lines: Sequence[TrainingLine]) -> bool:
    """Whether any ends at an accuracy so near 1 that lines would be the same."""
    ends = [line.test_accuracy[-1] for line in lines]
    return any(NEARLY_ALL <= end <= 1 for end in ends)


def _draw_line(
    panel: _Panel, line: TrainingLine, colour: str, chosen: Sequence[TrainingLine], against: Against
) -> None:
    places = getattr(line, _PLACES[against][0])
    series = _name(line, chosen) if line in chosen else OTHERS
    style = line_styles(other.world_size for other in chosen)[line.world_size] if line in chosen else "-"
    if panel.name in line.ranges and line in chosen:
        low, high = (panel.shown(ends) for ends in line.ranges[panel.name])
        band = panel.axes.fill_between(places, low, high, color=colour, alpha=BAND, linewidth=0)
        with_tip(band, "", series)
    values = panel.shown(getattr(line, panel.name))
    is_point = len(values) == 1
    (drawn,) = panel.axes.plot(
        places, values, color=colour, linestyle=style, linewidth=1.2, marker="o" if is_point else ""
    )
    with_tip(drawn, "", series)
    if not line.is_over:
        (ring,) = panel.axes.plot(places[-1], values[-1], color=colour, **_NOT_OVER)
        with_tip(ring, "not over yet", series)
    distance = max(1, len(places) // TIPS_A_LINE)
    for at in sorted({*range(0, len(places), distance), len(places) - 1}):
        if math.isfinite(values[at]) and math.isfinite(places[at]):
            add_tip(panel.axes, places[at], values[at], _tip(line, at), series)


def _name(line: TrainingLine, chosen: Sequence[TrainingLine]) -> str:
    is_same = len({other.world_size for other in chosen}) == 1
    return line.aggregator if is_same else f"{line.aggregator}, {workers(line.world_size, line.worker)}"


def _end_labels(panel: _Panel, chosen: Sequence[TrainingLine], looks: Looks) -> list[EndLabel]:
    labels = []
    for line in chosen:
        known = [value for value in panel.shown(getattr(line, panel.name)) if math.isfinite(value)]
        if known:
            name = _name(line, chosen)
            labels.append(EndLabel(known[-1], broken(name), looks[line.aggregator].colour, name))
    return labels


_NOT_OVER: Any = {"marker": "o", "markersize": 7, "markerfacecolor": "white", "linestyle": ""}
"""The end of a line whose trainings will go on."""


def _tip(line: TrainingLine, at: int) -> str:
    return (
        f"{line.aggregator} on {workers(line.world_size, line.worker)}, epoch {line.epochs[at]}, "
        f"{_seconds(line.train_s[at])}training loss {line.train_loss[at]:.4g}, "
        f"test accuracy {percent(line.test_accuracy[at], 2)}"
    )


def _seconds(train_s: float) -> str:
    """`12.3 s: `; empty where they are not known."""
    return f"{train_s:.4g} s: " if math.isfinite(train_s) else ""


def _spans_decades(values: Iterable[float]) -> bool:
    positive = [value for value in values if math.isfinite(value) and value > 0]
    return bool(positive) and max(positive) > LOG_LOSS_RATIO * min(positive)
