"""Trade-offs as pictures, each with its front: accuracy, memory, GPU hours or energy against time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from scaling.analysis.candidates import MEMORY, Candidate, workloads
from scaling.analysis.columns import Row, by_key, unit_of_workers
from scaling.analysis.decisions import TIE_RATIO
from scaling.analysis.groups import CellGroup
from scaling.analysis.learning import family_key, over_seeds
from scaling.analysis.objectives import AGAINST_TIME, front, seconds_a_sample, trade_off
from scaling.analysis.samples import CellResult
from scaling.axes import workers
from scaling.report.figures import parts
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.svg import with_tip
from scaling.report.formats import number, percent
from scaling.report.text import title_of, unit_of

CHARACTER, DOT, RIGHT_END = 0.017, 0.012, 1.02
"""A label's width per character, half of a point's size, and where labels end, as shares of the plot."""

FEW = 4  # with fewer labels one may stand further from its point
NARROW = 5.0  # an axis that spans less than this factor has ticks at even distances
CAPTION = (
    "Test accuracy after the last epoch, on the most workers, against what the training took. Green: none is "
    "better in both. Bars: from the smallest to the largest seed, whose noise may exceed a step of the "
    "front; a hollow point is one seed."
)
OF_TIME = "A point a setting; none is better in both than a green one. Left and below is better."
NAMES = {"memory": "Memory", "gpu-hours": "GPU hours", "energy": "Energy"}


@figure(section="training")
def trade(data: FigureInput) -> Iterator[Drawn]:
    """Of each group with several aggregators on its most workers: against bytes and against seconds."""
    for group in data.groups_of("convergence"):
        for against, label in (
            ("bytes", "GB that the busiest rank sends"),
            ("seconds", "seconds of training"),
        ):
            points = trade_points(group, data.cells, against)
            known = [point for point in points if 0 < point.x < math.inf]
            if len(known) > 1:
                drawing = _draw_accuracies(data.titled(f"Accuracy against {against}", group), known, label)
                name = f"accuracy-{against}-{group.slug}"
                yield Drawn(name, title_of(group.given), CAPTION, drawing, "convergence.csv", group)


def _of_time(data: FigureInput, objectives: Sequence[str]) -> Iterator[Drawn]:
    """Of each workload in which no candidate is best in both: the value of an objective against time."""
    for objective in objectives:
        for workload in workloads(objective, data.rows, list(data.cells.values())):
            is_asked = data.question == objective and len(workload.candidates) > 1
            if is_asked or trade_off(objective, workload.candidates) is not None:
                fastest = min(workload.candidates, key=seconds_a_sample)
                (group,) = [one for one in data.groups_of("iteration") if fastest.row in one.rows]
                title = data.titled(f"{NAMES[objective]} against time", group)
                drawing = _draw_times(title, workload.candidates)
                name = f"{objective}-time-{group.slug}"
                yield Drawn(name, title_of(workload.given), OF_TIME, drawing, "summary.csv", group)


memory = figure(section="choices")(lambda data: _of_time(data, [MEMORY]))
others = figure(section="choices")(
    lambda data: _of_time(data, [one for one in AGAINST_TIME if one != MEMORY])
)


@dataclass(frozen=True)
class TradePoint:
    """What is drawn: its name, tip, place, the ends of its bar (NaN: none), and what is to be small of y."""

    name: str
    tip: str
    x: float
    y: float
    loss: float
    low: float = math.nan
    high: float = math.nan


def trade_points(group: CellGroup, cells: Mapping[str, CellResult], against: str) -> list[TradePoint]:
    """Accuracy over bytes or seconds: a point a combination of a group's largest world size that trained."""
    trained = [row for row in group.rows if row["repeats"] and row["final_test_accuracy"] is not None]
    largest = [row for row in trained if row["world_size"] == max(group.world_sizes)]
    return [_accuracy(group, rows, cells, against) for rows in by_key(largest, family_key).values()]


def _accuracy(
    group: CellGroup, rows: Sequence[Row], cells: Mapping[str, CellResult], against: str
) -> TradePoint:
    accuracies = [float(row["final_test_accuracy"]) for row in rows]
    (merged,) = over_seeds(rows)
    (training, *_) = cells[rows[0]["cell_id"]].trainings
    sent = rows[0]["wire_bytes_per_rank"]
    cost, unit = math.nan if merged["train_s"] is None else float(merged["train_s"]), "s"
    if against == "bytes":
        cost, unit = math.nan if sent is None else sent * float(training.steps.sum()) / 1e9, "GB a rank"
    low, high = (min(accuracies), max(accuracies)) if len(accuracies) > 1 else (math.nan, math.nan)
    mean = sum(accuracies) / len(accuracies)
    spread = "" if math.isnan(low) else f" (seeds {percent(low, 2)} to {percent(high, 2)})"
    on = workers(rows[0]["world_size"], unit_of_workers(rows[0]))
    name = group.name(rows[0])
    tip = f"{name}, {on}: {percent(mean, 2)}{spread}, {number(cost)} {unit}"
    return TradePoint(name, tip, cost, mean, 1 - mean, low, high)


def _draw_accuracies(title: str, points: Sequence[TradePoint], label: str) -> Figure:
    ends = [end for point in points for end in (point.y, point.low, point.high) if math.isfinite(end)]
    figure, axes = _plot(title, points, label)
    if parts.NEARLY_ALL <= max(ends) < 1:
        least, most = 1 - max(ends), 1 - min(ends)
        room = min(1.2, max(1.01, math.sqrt(most / least)))
        axes.set_ylim(least / room, most * room)
        parts.plain_log(axes, parts.percent_tick)
        if axes.get_ylim()[1] < NARROW * axes.get_ylim()[0]:
            axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_ylabel("test error")
        points = [replace(one, y=1 - one.y, low=1 - one.low, high=1 - one.high) for one in points]
    else:
        room = 0.12 * (max(ends) - min(ends)) or 0.01
        axes.set_ylim(min(ends) - room, max(ends) + room)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: parts.percent_tick(value)))
        axes.set_ylabel("test accuracy")
    _draw_points(axes, points, front(points, lambda one: one.x, lambda one: one.loss), of_seeds=True)
    return figure


def _draw_times(title: str, candidates: Sequence[Candidate]) -> Figure:
    by_step = len({one.row["global_batch"] for one in candidates}) == 1
    unit, points = "ms a step" if by_step else "us a sample", []
    for one in candidates:
        step_s = one.row["iteration_s"]
        time = 1e3 * step_s if by_step else 1e6 * step_s / one.row["global_batch"]
        tip = f"{one.name}: {number(one.value)} {unit_of(one.values())}, {number(time)} {unit}"
        points.append(TradePoint(one.parts[0], tip, one.value, time, time))
    figure, axes = _plot(title, points, unit_of(candidates[0].values()))
    axes.set_ylim(min(one.y for one in points) / 1.25, max(one.y for one in points) * 1.25)
    parts.plain_log(axes, lambda value: f"{value:g}")
    if axes.get_ylim()[1] < NARROW * axes.get_ylim()[0]:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_ylabel(unit)
    best = front(points, lambda one: one.x, lambda one: one.y, TIE_RATIO)
    library = [
        one for one, of in zip(points, candidates, strict=True) if of.row["aggregator"] == "all_reduce"
    ]
    named = [*best, *sorted(library, key=lambda one: one.y)[:1]]
    _draw_points(axes, [one if one in named else replace(one, name="") for one in points], best)
    return figure


def _plot(title: str, points: Sequence[TradePoint], label: str) -> tuple[Figure, Axes]:
    (figure, axes), costs = parts.one_plot(title, 3.2), [point.x for point in points]
    axes.set_xscale("log")
    span = max(costs) / min(costs)  # room for labels on the right, more where points are apart
    axes.set_xlim(min(costs) / min(1.25, max(1.04, span**0.2)), max(costs) * min(2.2, max(1.15, span**0.8)))
    narrow = axes.get_xlim()[1] < NARROW * axes.get_xlim()[0]
    parts.numbers_at(axes.xaxis, MaxNLocator(5) if narrow else LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.set_xlabel(label)
    return figure, axes


def _draw_points(
    axes: Axes, points: Sequence[TradePoint], best: Sequence[TradePoint], *, of_seeds: bool = False
) -> None:
    """Points with their names where there is room, else in their tips; the front is a stair."""
    axes.step([one.x for one in best], [one.y for one in best], where="post", color=parts.BEST, linewidth=1.2)
    to_axes = axes.transData + axes.transAxes.inverted()
    ordered = sorted(points, key=lambda point: point not in best)
    places = [to_axes.transform((point.x, point.y)) for point in ordered]
    corners = [place for one, after in pairwise(best) for place in ((one.x, one.y), (after.x, one.y))]
    stair = to_axes.transform([*corners, (best[-1].x, best[-1].y)]).tolist()
    named = [
        (float(x), float(y), parts.broken(one.name)) for (x, y), one in zip(places, ordered, strict=True)
    ]
    stairs = [(min(x, u), min(y, v), max(x, u), max(y, v)) for (x, y), (u, v) in pairwise(stair)]
    labels = label_places(named, stairs)
    for point, label_at in zip(ordered, labels, strict=True):
        colour = parts.BEST if point in best else parts.OTHER
        is_single = math.isnan(point.low)
        if not is_single:
            axes.plot([point.x] * 2, [point.low, point.high], color=colour, marker="_", linewidth=1.0)
        face = "white" if is_single and of_seeds else colour
        axes.plot([point.x], [point.y], color=colour, marker="o", markerfacecolor=face, linestyle="")
        parts.add_tip(axes, point.x, point.y, point.tip)
        if point.name and label_at is not None:
            name = axes.text(
                *label_at, parts.broken(point.name), transform=axes.transAxes, va="center", fontsize=8
            )
            with_tip(name, point.tip)


def label_places(
    points: Sequence[tuple[float, float, str]], drawn: Sequence[tuple[float, ...]] = ()
) -> list[tuple[float, float] | None]:
    """Where each label begins: next to its point, over nothing else; None where there is no room."""
    num_named = sum(bool(name) for *_, name in points)
    # Left, bottom, right and top of what is taken, as shares of the plot.
    taken = [*drawn, *((x - DOT, y - DOT, x + DOT, y + DOT) for x, y, _ in points)]
    places: list[tuple[float, float] | None] = []
    for x, y, label in points:
        lines = label.split("\n")
        width, half = CHARACTER * max(map(len, lines)), parts.LABEL_GAP * len(lines) / 2
        further = [y + half + 3 * DOT, y - half - 3 * DOT] if num_named < FEW else []
        rows = [y + half + DOT, y - half - DOT, y, *further]
        starts = [(x + 2 * DOT, row) for row in rows] + [(x - 2 * DOT - width, row) for row in rows]
        boxes = {(left, row): (left, row - half, left + width, row + half) for left, row in starts}
        free = [
            place
            for place, (left, bottom, right, top) in boxes.items()
            if (left >= 0 and bottom >= 0 and right <= RIGHT_END and top <= 1)
            and not any(left < o[2] and o[0] < right and bottom < o[3] and o[1] < top for o in taken)
        ]
        places.append(free[0] if free else None)
        taken += [boxes[place] for place in free[:1]]
    return places
