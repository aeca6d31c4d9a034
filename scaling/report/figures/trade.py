"""Final accuracy against bytes and against seconds, with the Pareto front of the aggregators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from scaling.analysis.columns import Row, unit_of_workers
from scaling.analysis.groups import CellGroup
from scaling.analysis.learning import family_key, over_seeds
from scaling.analysis.samples import CellResult
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    ANSWER_WIDTH,
    LABEL_GAP,
    add_tip,
    broken,
    percent_tick,
    plain_log,
    set_title,
)
from scaling.report.figures.style import BEST, NEARLY_ALL, OTHER
from scaling.report.figures.svg import with_tip
from scaling.report.formats import number, percent
from scaling.report.titles import title_of

CHARACTER, DOT, RIGHT_END = 0.021, 0.012, 1.02
"""A label's width per character, half of a point's size, and where labels end, as shares of the plot."""

NARROW = 5.0
"""An axis that spans less than this factor has ticks at even distances."""

CAPTION = (
    "Test accuracy after the last epoch, on the most workers, against what the training took. Green: the "
    "Pareto front, of which none is beaten in both. Bars: from the smallest to the largest seed; hollow: "
    "one training. Seed noise may be larger than a step of the front."
)


@figure(section="training")
def trade(data: FigureInput) -> Iterator[Drawn]:
    """Of each group with several aggregators on its most workers: against bytes and against seconds."""
    for group in data.groups_of("convergence"):
        points = trade_points(group, data.cells)
        for against, label in (
            ("bytes", "GB that the busiest rank sends"),
            ("seconds", "seconds of training"),
        ):
            known = [
                point for point in points if point.cost(against) > 0 and math.isfinite(point.cost(against))
            ]
            if len(known) > 1:
                title = data.titled(f"Accuracy against {against}", group)
                drawing = _draw_trade(title, known, against, label)
                name = f"accuracy-{against}-{group.slug}"
                yield Drawn(name, title_of(group.given), CAPTION, drawing, "convergence.csv", group)


@dataclass(frozen=True)
class TradePoint:
    """The trainings of an aggregator: their accuracy and what one of them took.

    Attributes:
        name: of the aggregator.
        world_size: workers.
        accuracy, low, high: 0 to 1: the mean over seeds, the smallest and the largest; NaN for one training.
        gigabytes: that the busiest rank sends in all steps.
        seconds: of training.
        worker: what one is called.
    """

    name: str
    world_size: int
    accuracy: float
    low: float
    high: float
    gigabytes: float
    seconds: float
    worker: str = "worker"

    def cost(self, against: str) -> float:
        """Gigabytes or seconds."""
        return self.gigabytes if against == "bytes" else self.seconds


def trade_points(group: CellGroup, cells: Mapping[str, CellResult]) -> list[TradePoint]:
    """One a combination of a group's largest world size that trained and has an accuracy."""
    size = max(group.world_sizes)
    members: dict[tuple[object, ...], list[Row]] = {}
    for row in group.rows:
        if row["world_size"] == size and row["repeats"] and row["final_test_accuracy"] is not None:
            members.setdefault(family_key(row), []).append(row)
    return [_point(group, rows, cells) for rows in members.values()]


def _point(group: CellGroup, rows: Sequence[Row], cells: Mapping[str, CellResult]) -> TradePoint:
    accuracies = [float(row["final_test_accuracy"]) for row in rows]
    (merged,) = over_seeds(rows)
    (training, *_) = cells[rows[0]["cell_id"]].trainings
    sent = rows[0]["wire_bytes_per_rank"]
    has_several = len(accuracies) > 1
    return TradePoint(
        group.name(rows[0]),
        rows[0]["world_size"],
        sum(accuracies) / len(accuracies),
        min(accuracies) if has_several else math.nan,
        max(accuracies) if has_several else math.nan,
        math.nan if sent is None else sent * float(training.steps.sum()) / 1e9,
        math.nan if merged["train_s"] is None else float(merged["train_s"]),
        unit_of_workers(rows[0]),
    )


def pareto_front(points: Sequence[TradePoint], against: str) -> list[TradePoint]:
    """Those than which none is both at least as accurate and at least as cheap, from cheap to accurate."""
    front: list[TradePoint] = []
    for point in sorted(points, key=lambda point: (point.cost(against), -point.accuracy)):
        if not front or point.accuracy > front[-1].accuracy:
            front.append(point)
    return front


def _draw_trade(title: str, points: Sequence[TradePoint], against: str, label: str) -> Figure:
    """Accuracy over the cost, or near 100% the error on a log scale; the front is a stair."""
    figure = Figure(figsize=(ANSWER_WIDTH, 3.2), layout="constrained")
    axes = figure.add_subplot()
    front = pareto_front(points, against)
    costs = [point.cost(against) for point in points]
    axes.set_xscale("log")
    axes.set_xlim(min(costs) / 1.25, max(costs) * 2.2)
    ends = [end for point in points for end in (point.accuracy, point.low, point.high) if math.isfinite(end)]
    is_error = NEARLY_ALL <= max(ends) < 1

    def shown(accuracy: float) -> float:
        return 1 - accuracy if is_error else accuracy

    if is_error:
        axes.set_ylim((1 - max(ends)) / 1.2, (1 - min(ends)) * 1.2)
        plain_log(axes, percent_tick)
    else:
        room = 0.12 * (max(ends) - min(ends)) or 0.01
        axes.set_ylim(min(ends) - room, max(ends) + room)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: percent_tick(value)))
    axes.step(
        [point.cost(against) for point in front],
        [shown(point.accuracy) for point in front],
        where="post",
        color=BEST,
        linewidth=1.2,
    )
    if is_error and axes.get_ylim()[1] < NARROW * axes.get_ylim()[0]:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    narrow = axes.get_xlim()[1] < NARROW * axes.get_xlim()[0]
    axes.xaxis.set_major_locator(MaxNLocator(5) if narrow else LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    to_axes = axes.transData + axes.transAxes.inverted()
    places = {point: to_axes.transform((point.cost(against), shown(point.accuracy))) for point in points}
    ordered = sorted(points, key=lambda point: point not in front)
    labels = label_places(
        [(float(places[point][0]), float(places[point][1]), broken(point.name)) for point in ordered]
    )
    for point, label_at in zip(ordered, labels, strict=True):
        _draw_point(axes, point, against, shown, label_at, is_best=point in front)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(label)
    axes.set_ylabel("test error" if is_error else "test accuracy")
    set_title(figure, title)
    return figure


def label_places(points: Sequence[tuple[float, float, str]]) -> list[tuple[float, float] | None]:
    """Where each label begins: next to its point, over no other label or point; None where there is no room.

    Args:
        points: x and y as shares of the plot, and the label; the first ones choose first.
    """
    taken = [(x - DOT, y - DOT, x + DOT, y + DOT) for x, y, _ in points]
    places: list[tuple[float, float] | None] = []
    for x, y, label in points:
        lines = label.split("\n")
        width, half = CHARACTER * max(map(len, lines)), LABEL_GAP * len(lines) / 2
        rows = [y + half + DOT, y - half - DOT, y]
        starts = [(x + 2 * DOT, row) for row in rows] + [(x - 2 * DOT - width, row) for row in rows]
        boxes = {(left, row): (left, row - half, left + width, row + half) for left, row in starts}
        free = [place for place, box in boxes.items() if _is_free(box, taken)]
        places.append(free[0] if free else None)
        if free:
            taken.append(boxes[free[0]])
    return places


Box = tuple[float, float, float, float]
"""Left, bottom, right and top, as shares of the plot."""


def _is_free(box: Box, taken: Sequence[Box]) -> bool:
    left, bottom, right, top = box
    is_inside = left >= 0 and bottom >= 0 and right <= RIGHT_END and top <= 1
    return is_inside and not any(
        left < other[2] and other[0] < right and bottom < other[3] and other[1] < top for other in taken
    )


def _draw_point(
    axes: Axes,
    point: TradePoint,
    against: str,
    shown: Callable[[float], float],
    label_at: tuple[float, float] | None,
    *,
    is_best: bool,
) -> None:
    """A point with its name at `label_at`, a place in the axes; without room for it, the tip has the name."""
    cost, colour = point.cost(against), BEST if is_best else OTHER
    is_single = math.isnan(point.low)
    if not is_single:
        ends = [shown(point.low), shown(point.high)]
        axes.plot([cost, cost], ends, color=colour, marker="_", linewidth=1.0)
    face = "white" if is_single else colour
    axes.plot([cost], [shown(point.accuracy)], color=colour, marker="o", markerfacecolor=face, linestyle="")
    unit = "GB a rank" if against == "bytes" else "s"
    spread = "" if is_single else f" (seeds {percent(point.low, 2)} to {percent(point.high, 2)})"
    reached = f"{percent(point.accuracy, 2)}{spread}"
    text = f"{point.name}, {workers(point.world_size, point.worker)}: {reached}, {number(cost)} {unit}"
    place = cost, shown(point.accuracy)
    add_tip(axes, *place, text)
    if label_at is not None:
        name = axes.text(*label_at, broken(point.name), transform=axes.transAxes, va="center", fontsize=8)
        with_tip(name, text)
