"""Trainings: loss and accuracy over epochs, seconds and joules; seconds to a target.

These are of trainings as bars, and of timed steps by number of workers, a line a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scaling.analysis.columns import Row, by_key, shares_gpus, unit_of_workers, workers_of
from scaling.analysis.critical_batch import LearningPlan, learning_plans
from scaling.analysis.findings import Finding
from scaling.analysis.groups import CellGroup
from scaling.analysis.learning import family_key, over_seeds
from scaling.analysis.samples import CellResult, TrainingSamples
from scaling.axes import workers
from scaling.report.figures import parts
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.svg import with_tip
from scaling.report.formats import number, percent
from scaling.report.text import text_of, title_of

Against = Literal["epochs", "seconds", "joules"]

EPOCHS = (
    "Medians over seeds and repeats, in a band from the smallest to the largest (convergence.csv). A line "
    "has a gap where a loss was not finite; a ring ends trainings that are not over. Grey: other "
    f"aggregators and numbers of workers{parts.ON_REQUEST}. Accuracy near 100% is drawn as the error, on a "
    "log scale."
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
            if known := [one for one in lines if math.isfinite(getattr(one, _PLACES[against][0])[-1])]:
                title = data.titled(f"Training over {against}", group)
                drawing = draw_training(title, known, data.looks, against)
                name = f"loss-{against}-{group.slug}"
                yield Drawn(name, title_of(group.given), caption, drawing, "convergence.csv", group)


@dataclass(frozen=True)
class TrainingLine:
    """The trainings of one combination: medians over its seeds and repeats at every epoch, or NaN."""

    aggregator: str
    world_size: int
    epochs: list[int]
    train_s: list[float]
    train_loss: list[float]
    test_accuracy: list[float]
    train_accuracy: list[float]
    train_j: list[float]
    # of several, smallest and largest values of train_loss and test_accuracy
    ranges: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    is_over: bool = True  # whether any of them is
    worker: str = "worker"  # what one is called


def training_lines(group: CellGroup, cells: Mapping[str, CellResult]) -> list[TrainingLine]:
    """One line for all seeds and repeats of a combination, in the table's order: of those done, or begun."""

    def family(row: Row) -> tuple[object, ...]:
        target = cells[row["cell_id"]].cell.get("target_accuracy")  # rows without results have none
        return family_key({**row, "target_accuracy": target})

    lines = []
    for rows in by_key(group.rows, family).values():
        seeds = [cells[row["cell_id"]] for row in rows]
        done = [training for cell in seeds for training in cell.trainings]
        if drawn := done or [training for cell in seeds for training in cell.begun]:
            lines.append(_training_line(rows[0], drawn, is_over=bool(done)))
    return lines


MEDIANS = ("train_s", "train_loss", "test_accuracy", "train_accuracy", "train_j")


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
        **{name: medians(name) for name in MEDIANS},
        ranges=ranges,
        is_over=is_over,
        worker=unit_of_workers(row),
    )


def standing_out(lines: Sequence[TrainingLine], looks: parts.Looks) -> list[TrainingLine]:
    """At most `MOST_COLOURED` with a colour: on the most workers first, then one alone, then others."""
    most = max((line.world_size for line in lines), default=1)
    coloured = [line for line in lines if looks[line.aggregator].colour != parts.OTHER]
    ordered = sorted(coloured, key=lambda line: (line.world_size != most, line.world_size != 1))
    return ordered[: parts.MOST_COLOURED]


def draw_training(title: str, lines: Sequence[TrainingLine], looks: parts.Looks, against: Against) -> Figure:
    """Training loss above, accuracy or error below: medians, in a band from the smallest to the largest."""
    figure = parts.new_figure(title, 5.2, parts.ANSWER_WIDTH)
    loss_axes, accuracy_axes = figure.subplots(2, 1, sharex=True)
    chosen = standing_out(lines, looks)
    is_error = any(parts.NEARLY_ALL <= line.test_accuracy[-1] <= 1 for line in lines)
    panels = [_Panel(loss_axes, "train_loss"), _Panel(accuracy_axes, "test_accuracy", is_error)]
    for line in sorted(lines, key=lambda line: line in chosen):
        colour = looks[line.aggregator].colour if line in chosen else parts.OTHER
        for panel in panels:
            _draw_line(panel, line, colour, chosen, against)
    every = [value for line in lines for value in line.train_loss if math.isfinite(value) and value > 0]
    if every and max(every) > LOG_LOSS_RATIO * min(every):
        parts.plain_log(loss_axes, "{:g}".format)
    loss_axes.set_ylabel("training loss")
    if is_error:
        parts.plain_log(accuracy_axes, parts.percent_tick)
        accuracy_axes.set_ylabel("test error")
    else:
        accuracy_axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: parts.percent_tick(value)))
        accuracy_axes.set_ylabel("test accuracy")
    if against == "epochs":
        accuracy_axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    accuracy_axes.set_xlabel(_PLACES[against][1])
    for panel in panels:
        panel.axes.set_xlim(right=max(getattr(line, _PLACES[against][0])[-1] for line in lines) * 1.02)
        parts.label_ends(panel.axes, _end_labels(panel, chosen, looks), gap=0.09, size=8)
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


def _draw_line(
    panel: _Panel, line: TrainingLine, colour: str, chosen: Sequence[TrainingLine], against: Against
) -> None:
    places = getattr(line, _PLACES[against][0])
    series = _name(line, chosen) if line in chosen else parts.OTHERS
    style = (
        parts.line_styles(other.world_size for other in chosen)[line.world_size] if line in chosen else "-"
    )
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
            parts.add_tip(panel.axes, places[at], values[at], _tip(line, at), series)


def _name(line: TrainingLine, chosen: Sequence[TrainingLine]) -> str:
    is_same = len({other.world_size for other in chosen}) == 1
    return line.aggregator if is_same else f"{line.aggregator}, {workers(line.world_size, line.worker)}"


def _end_labels(panel: _Panel, chosen: Sequence[TrainingLine], looks: parts.Looks) -> list[parts.EndLabel]:
    labels = []
    for line in chosen:
        known = [value for value in panel.shown(getattr(line, panel.name)) if math.isfinite(value)]
        if known:
            name = _name(line, chosen)
            labels.append(parts.EndLabel(known[-1], parts.broken(name), looks[line.aggregator].colour, name))
    return labels


_NOT_OVER: Any = {"marker": "o", "markersize": 7, "markerfacecolor": "white", "linestyle": ""}
"""The end of a line whose trainings will go on."""


def _tip(line: TrainingLine, at: int) -> str:
    seconds = f"{line.train_s[at]:.4g} s: " if math.isfinite(line.train_s[at]) else ""
    return (
        f"{line.aggregator} on {workers(line.world_size, line.worker)}, epoch {line.epochs[at]}, "
        f"{seconds}training loss {line.train_loss[at]:.4g}, "
        f"test accuracy {percent(line.test_accuracy[at], 2)}"
    )


TARGET_CAPTION = (
    "Training alone, to the end of the first epoch at the target. Column seconds_to_target, without "
    "evaluation; median over repeats and seeds{line}."
)

PREDICTION = (
    " Estimated: time of a timed step x steps to the target, with its 95% interval{hollow}. The gap is what "
    "a training does besides its steps."
)

_BAR: Any = {"facecolor": parts.MEASURED, "edgecolor": "#202020", "linewidth": 0.4}
_ESTIMATED: Any = {"color": parts.PREDICTED, "marker": "D", "markersize": 4.5, "linestyle": ""}


@figure(section="answer")
def target(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("convergence"):
        if bars := target_bars(group):
            goal = ", ".join(dict.fromkeys(percent(bar.target) for bar in bars))
            title = data.titled(f"Seconds to {goal}", group)
            line = "; black line: 95% interval over seeds" if any(bar.ends_s for bar in bars) else ""
            caption = TARGET_CAPTION.format(line=line)
            if predicted := [bar for bar in bars if bar.predicted_s is not None]:
                is_hollow = any(bar.low_s is None for bar in predicted)
                caption += PREDICTION.format(hollow="; hollow: no interval" if is_hollow else "")
            drawing = _draw_target(title, bars)
            yield Drawn(f"target-{group.slug}", title_of(group.given), caption, drawing, group=group)


@dataclass(frozen=True)
class TargetBar:
    """`ends_s`: of the 95% interval of the seconds over seeds, `low_s` and `high_s` of those estimated."""

    name: str
    target: float
    seconds: float | None
    ends_s: tuple[float, float] | None
    state: str
    predicted_s: float | None
    low_s: float | None
    high_s: float | None


def target_bars(group: CellGroup) -> list[TargetBar]:
    """Those that aimed at a target and have a time, in the table's order; [] where none reached it."""
    bars = []
    for row in over_seeds(group.rows):
        if row["target_accuracy"] is not None and row["repeats"] and not shares_gpus(row):
            seeds = f", {row['num_seeds']} seeds" if (row["num_seeds"] or 1) > 1 else ""
            name = f"{group.name(row)}, {workers_of(row)}{seeds}"
            low, high = row.get("seconds_to_target_low"), row.get("seconds_to_target_high")
            predicted = [row[f"predicted_s_to_target{end}"] for end in ("", "_low", "_high")]
            reached = row["target_accuracy"], row["seconds_to_target"]
            ends_s = None if low is None or high is None else (low, high)
            bars.append(TargetBar(name, *reached, ends_s, str(row["target_state"] or ""), *predicted))
    return bars if any(bar.seconds is not None for bar in bars) else []


def _draw_target(title: str, bars: Sequence[TargetBar]) -> Figure:
    figure, axes = parts.one_plot(title, 1.5 + 0.22 * len(bars))
    known_s = [bar.seconds or 0.0 for bar in bars] + [bar.predicted_s or 0.0 for bar in bars]
    ends_s = [bar.high_s or 0.0 for bar in bars] + [bar.ends_s[1] for bar in bars if bar.ends_s]
    longest_s = min(1.5 * max(known_s), 1.08 * max([*known_s, *ends_s]))
    for place, bar in enumerate(bars):
        if bar.seconds is not None:
            (drawn,) = axes.barh(place, bar.seconds, height=0.7, **_BAR)
            seeds = "" if bar.ends_s is None else " ({:.4g} to {:.4g} over seeds)".format(*bar.ends_s)
            with_tip(drawn, f"{bar.name}: {bar.seconds:.4g} s{seeds} to {percent(bar.target)}")
            if bar.ends_s is not None:
                low_s, high_s = max(0.0, bar.ends_s[0]), min(bar.ends_s[1], longest_s)
                axes.plot([low_s, high_s], [place - 0.2] * 2, color="#202020", linewidth=1.2)
        else:
            axes.text(0, place, f"  {bar.state}", va="center", fontsize=8)
        if bar.predicted_s is not None:
            if bar.low_s is not None and bar.high_s is not None:
                ends = [max(0.0, bar.low_s), min(bar.high_s, longest_s)]
                axes.plot(ends, [place, place], color=parts.PREDICTED, linewidth=1.2)
            face = parts.PREDICTED if bar.low_s is not None else "white"
            axes.plot([bar.predicted_s], [place], **_ESTIMATED, markerfacecolor=face)
            interval = "" if bar.low_s is None else f" ({bar.low_s:.4g} to {bar.high_s:.4g})"
            parts.add_tip(
                axes, bar.predicted_s, place, f"{bar.name}: estimated {bar.predicted_s:.4g} s{interval}"
            )
    axes.set_xlim(0, longest_s)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    parts.name_bars(
        axes, range(len(bars)), [bar.name for bar in bars], "seconds of training, without evaluation"
    )
    handles: list[Any] = [Patch(label="measured", **_BAR)]
    if any(bar.predicted_s is not None for bar in bars):
        handles.append(Line2D([], [], label="estimated: step time x steps", **_ESTIMATED))
    parts.legend_below(figure, handles)
    return figure


BY_WORKERS = (
    "A line a batch: time of a step x fitted steps. The curve is fitted to trainings at {batches} batches, "
    "without evaluation. Bars: 95% intervals. Green: none is better in time and in {unit} hours. Ring: "
    "the knee, {knee}. Hollow: the batch is outside those trained. Diamond: a lossy exchange's own steps."
)


@figure(section="answer")
def target_by_workers(data: FigureInput) -> Iterator[Drawn]:
    for place, plan in enumerate(learning_plans(data.rows, data.cells)):
        if len(plan.by_workers) > 1:
            knee, goal = plan.knee.row, text_of(Finding("learning_goal", (), {"given": plan.given}))
            at = f"{workers_of(knee)} at batch {knee['global_batch']:,}"
            caption = BY_WORKERS.format(batches=len(plan.trained), unit=unit_of_workers(knee), knee=at)
            yield Drawn(
                f"target-by-workers-{place}", goal, caption, _draw_by_workers(f"Seconds: {goal}", plan)
            )


def _draw_by_workers(title: str, plan: LearningPlan) -> Figure:
    (figure, axes), labels, best = parts.one_plot(title, parts.ANSWER_HEIGHT), [], plan.front
    parts.plain_ticks(axes, list(plan.by_workers))
    parts.plain_log(axes, lambda value: f"{value:g}")
    for batch, same in by_key(plan.settings, lambda one: int(one.row["global_batch"])).items():
        fastest = by_key([one for one in same if not one.is_own], lambda one: int(one.row["world_size"]))
        line = [fastest[size][0] for size in sorted(fastest)]
        shown = [*line, *(one for one in same if one.is_own)]
        axes.plot(
            [one.row["world_size"] for one in line], [one.seconds.value for one in line], color=parts.OTHER
        )
        for one in shown:
            x, (y, low, high) = one.row["world_size"], one.seconds
            colour = parts.BEST if one in best else "#6b7280"
            face = "white" if one.is_extrapolated else colour
            axes.plot([x, x], [low, high], color=colour, linewidth=0.8, alpha=0.6)
            axes.plot([x], [y], marker="D" if one.is_own else "o", color=colour, markerfacecolor=face)
            if one is plan.knee:
                axes.plot([x], [y], marker="o", markersize=11, color=parts.BEST, markerfacecolor="none")
                axes.annotate(
                    "knee", (x, y), (-38, -11), textcoords="offset points", color=parts.BEST, fontsize=8
                )
            ends = f"{number(y)} s ({number(low)} to {number(high)})"
            parts.add_tip(
                axes, x, y, f"{workers_of(one.row)}, batch {batch:,}, {one.row['aggregator']}: {ends}"
            )
        labels.append(parts.EndLabel((line or shown)[-1].seconds.value, f"{batch:,}", "#202020"))
    parts.label_ends(axes, labels)
    axes.set_xlabel(f"{unit_of_workers(plan.knee.row)}s; right of the plot: the batch")
    axes.set_ylabel("seconds to the target")
    return figure
