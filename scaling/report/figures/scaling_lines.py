"""Lines over the workers, on scales of powers of two: speedup, and samples or tokens a second.

The best aggregator, the library's all-reduce and the bounds stand out; others are grey.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from scaling.analysis.columns import Row, aggregator_name, is_control_arm, workers_of
from scaling.analysis.groups import CellGroup, main_variant
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    ANSWER_HEIGHT,
    BEST,
    BOUND,
    IDEAL,
    LABEL_GAP,
    OTHER,
    OTHERS,
    REFERENCE,
    SHOW_OTHERS,
    EndLabel,
    add_tip,
    answer_height,
    draw_point,
    label_ends,
    one_plot,
    plain_ticks,
)
from scaling.report.figures.svg import with_tip
from scaling.report.formats import percent, rate
from scaling.report.text import title_of

LIBRARY = "all_reduce"  # the communication library's own all-reduce: what others are compared with
HIDDEN_FACTOR = 4.0
"""Lines below the fastest by more than this factor are left to the table: they would flatten the others."""

GREY_SHARE = 0.25
"""Grey lines make the plot higher by no more than this part of what the others take; but LEAST_ROOM fits."""

LEAST_ROOM = 1.25
FURTHEST_INTERVAL = 4.0
"""The axis goes so far beyond the values for their intervals; longer ones end in an arrow."""

MARGIN = 0.04  # left and right of the lines, as a share of the scale: labels stand beside the last points
AROUND = 0.8  # what the title and the names of the axis take of the height, in inches
LONGEST_NAME = 24
"""Of a line at its end, in characters: a longer one takes the plot's room and is in its tips."""

_STANDS_OUT = (LIBRARY, "none")


@dataclass(frozen=True)
class ScalingLine:
    """One aggregator's values, in one of its variants if it has several."""

    aggregator: str
    name: str  # with the variant
    world_sizes: list[int]
    values: list[float]
    low: list[float]  # low, high: NaN where there is no interval; the latter may be infinite
    high: list[float]
    tips: list[str]  # a text a point

    @property
    def is_bound(self) -> bool:
        return aggregator_name(self.aggregator) == "none"


def lines_over_workers(group: CellGroup, column: str, tip: Callable[[Row, str], str]) -> list[ScalingLine]:
    """One line an aggregator that has the value, which is inversely proportional to the step's time."""
    lines = []
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        rows = [row for row in main_variant(group, label) if row[column] is not None]
        if not rows:
            continue
        name = group.name(rows[0])
        lows, highs = zip(*(_interval(row, column) for row in rows), strict=True)
        ends = [
            "" if math.isnan(low) else f" (95% interval {_short(low)} to {_short(high)})"
            for low, high in zip(lows, highs, strict=True)
        ]
        tips = [f"{name}, {workers_of(row)}: {tip(row, end)}" for row, end in zip(rows, ends, strict=True)]
        sizes, values = [row["world_size"] for row in rows], [float(row[column]) for row in rows]
        lines.append(ScalingLine(label, name, sizes, values, [*lows], [*highs], tips))
    return lines


def _interval(row: Row, column: str) -> tuple[float, float]:
    """A speedup's own, with one worker's scatter; else the opposite bounds of iteration_s."""
    if column == "speedup":
        ends = row["speedup_low"], row["speedup_high"]
        return (math.nan, math.nan) if None in ends else ends
    fixed = row[column] * row["iteration_s"]
    low, high = row["iteration_s_low"], row["iteration_s_high"]
    if low is None or high is None:
        return math.nan, math.nan
    # A t interval of scattered launches can reach below 0 seconds: then the value has no upper bound.
    return fixed / high, fixed / low if low > 0 else math.inf


def _short(value: float) -> str:
    return rate(value) if math.isfinite(value) and value >= 1000 else f"{value:.3g}"


def best_of(lines: Sequence[ScalingLine], best: Collection[str]) -> str | None:
    """The label of the line to stand out: the study's choice, or else the highest on the most workers."""
    exchanging = [line for line in lines if not is_control_arm({"aggregator": line.aggregator})]
    chosen = [line for line in exchanging if line.aggregator in best] or exchanging
    best_line = max(chosen, key=lambda line: (line.world_sizes[-1], line.values[-1]), default=None)
    return None if best_line is None else best_line.aggregator


def draw_scaling(
    title: str,
    unit: str,
    lines: Sequence[ScalingLine],
    best: Collection[str] = (),
    ideal: float | None = None,
    worker: str = "worker",
) -> Figure:
    """Values over the world size, both on scales of powers of two, with labels at the ends of the lines."""
    sizes = sorted({size for line in lines for size in line.world_sizes})
    figure, axes = one_plot(title, answer_height(len(sizes)))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    winner = best_of(lines, best)
    drawn = _drawn_lines(lines, winner)
    ideals = [] if ideal is None else [ideal * size for size in sizes]
    limits = _limits(drawn, ideals, winner)
    axes.set_ylim(*limits)
    margin = (sizes[-1] / sizes[0]) ** MARGIN
    axes.set_xlim(sizes[0] / margin, sizes[-1] * margin)
    start = ideal if sizes[0] == 1 else None
    labels = []
    if ideals:
        (dashed,) = axes.plot(sizes, ideals, color=IDEAL, linestyle=(0, (2, 2)), linewidth=1.2)
        with_tip(dashed, "", "ideal")
        labels.append(EndLabel(ideals[-1], f"ideal {_short(ideals[-1])}", IDEAL, "ideal"))
    for line in sorted(drawn, key=lambda line: line.aggregator in _STANDS_OUT or line.aggregator == winner):
        how = _how(line, winner)
        _draw_line(axes, line, how, limits, start)
        ends_here = line.world_sizes[-1] == sizes[-1] or line.aggregator == winner
        if how["series"] != OTHERS and ends_here:
            own = line.name if len(line.name) <= LONGEST_NAME else line.aggregator
            text = f"{'no exchange' if line.is_bound else own} {_short(line.values[-1])}"
            labels.append(EndLabel(line.values[-1], text, how["color"], how["series"]))
    label_ends(axes, labels, LABEL_GAP * (ANSWER_HEIGHT - AROUND) / (figure.get_figheight() - AROUND))
    plain_ticks(axes, sizes, _short)
    if limits[0] > sizes[-1]:  # no ratio to one worker, which powers of two would suit
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.set_xlabel(f"{worker}s")
    axes.set_ylabel(unit)
    return figure


def _drawn_lines(lines: Sequence[ScalingLine], winner: str | None) -> list[ScalingLine]:
    """Grey ones only where they leave the others most of the height, and no bound of one worker alone."""
    fastest = max(line.values[-1] for line in lines)
    standing = [value for line in lines if not _is_grey(line, winner) for value in line.values] or [fastest]
    lowest = min(standing) / max(LEAST_ROOM, (max(standing) / min(standing)) ** GREY_SHARE)
    least = max(lowest, fastest / HIDDEN_FACTOR)
    return [
        line
        for line in lines
        if (not _is_grey(line, winner) or (line.values[-1] >= least and min(line.values) >= lowest))
        and not (line.is_bound and line.world_sizes == [1] and len(lines) > 1)
    ]


def _is_grey(line: ScalingLine, winner: str | None) -> bool:
    return bool(_how(line, winner)["series"] == OTHERS)


def caption_of(what: str, lines: Sequence[ScalingLine], best: Collection[str]) -> str:
    """What the values are and how to read what is drawn, and nothing that is not."""
    winner = best_of(lines, best)
    drawn = _drawn_lines(lines, winner)
    lows = [low for line in drawn for low in line.low]
    is_known = [not math.isnan(low) for low in lows]
    intervals = ", 95% intervals" if any(is_known) else ""
    parts = [f"{what}{intervals}.{' A hollow point has none.' if intervals and not all(is_known) else ''}"]
    if any(line.is_bound for line in drawn):
        parts.append("No exchange: the same step without communication, about the bound for any aggregator.")
    if any(_is_grey(line, winner) for line in drawn):
        parts.append(f"{SHOW_OTHERS}.")
    if any(_is_grey(line, winner) for line in lines if line not in drawn):
        parts.append("Much slower ones are in the table only.")
    return " ".join(parts)


def _limits(lines: Sequence[ScalingLine], ideals: Sequence[float], winner: str | None) -> tuple[float, float]:
    """Of the vertical axis: all values, and intervals of lines that stand out, if they leave these apart."""
    values = [value for line in lines for value in line.values]
    low, high = min([*ideals[:1], *values]), max([*values, *ideals])
    shown = [line for line in lines if not _is_grey(line, winner)]
    lows = [low for line in shown for low in line.low if math.isfinite(low)]
    highs = [high for line in shown for high in line.high if math.isfinite(high)]
    low = min(low, max([low / FURTHEST_INTERVAL, min([low, *lows])]))
    high = max(high, min(high * FURTHEST_INTERVAL, max([high, *highs])))
    return low / 1.25, 1.12 * high


def _how(line: ScalingLine, winner: str | None) -> dict[str, Any]:
    if line.aggregator == winner:
        return {"color": BEST, "linewidth": 2.4, "series": line.name}
    if line.is_bound:
        return {"color": BOUND, "linewidth": 1.3, "series": "no exchange"}
    if line.aggregator == LIBRARY:
        return {"color": REFERENCE, "linewidth": 1.6, "series": line.name}
    return {"color": OTHER, "linewidth": 0.9, "series": OTHERS}


def _draw_line(
    axes: Axes, line: ScalingLine, how: dict[str, Any], limits: tuple[float, float], start: float | None
) -> None:
    """Values with intervals, cut at the limits; hollow: without one. `start`: where one worker begins."""
    colour, series = how["color"], how["series"]
    begin = [] if start is None or line.world_sizes[0] == 1 else [(1, start)]
    sizes, values = zip(*begin, *zip(line.world_sizes, line.values, strict=True), strict=True)
    (drawn,) = axes.plot(sizes, values, color=colour, linewidth=how["linewidth"])
    with_tip(drawn, "", series)
    for at, (size, value) in enumerate(zip(line.world_sizes, line.values, strict=True)):
        draw_point(axes, (size, value), (line.low[at], line.high[at]), limits, colour, series)
        add_tip(axes, size, value, line.tips[at], series)


WHAT = "Over one {} without exchange"


@figure(section="answer")
def speedup(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("iteration"):
        lines = speedup_lines(group)
        if len({size for line in lines for size in line.world_sizes}) > 1:
            title = data.titled(f"Speedup over one {group.unit}", group)
            drawing = draw_scaling(title, "speedup", lines, data.best_of(group), 1.0, group.unit)
            caption = caption_of(WHAT.format(group.unit), lines, data.best_of(group))
            yield Drawn(f"speedup-{group.slug}", title_of(group.given), caption, drawing, group=group)


def speedup_lines(group: CellGroup) -> list[ScalingLine]:
    """One line an aggregator that has a speedup, with its interval, which holds the baseline's scatter."""
    return lines_over_workers(group, "speedup", _tip)


def _tip(row: Row, interval: str) -> str:
    return f"speedup {row['speedup']:.3g}{interval}, efficiency {percent(row['speedup'] / row['world_size'])}"


RATE_WHAT = (
    "{what} a second of all {worker}s (column {column}; ideal: one {worker} without exchange, "
    "times the number of {worker}s)"
)


@figure(section="speedup")
def throughput(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("iteration"):
        lines = throughput_lines(group)
        if len({size for line in lines for size in line.world_sizes}) > 1:
            title = data.titled("Throughput", group)
            column, unit = group.throughput
            known = (row for row in group.rows if row["speedup"] is not None)
            ideal = next((row[column] / row["speedup"] for row in known), None)  # of the baseline
            drawing = draw_scaling(title, unit, lines, data.best_of(group), ideal, group.unit)
            samples = unit.removesuffix("/s").capitalize()
            what = RATE_WHAT.format(what=samples, worker=group.unit, column=column)
            caption = caption_of(what, lines, data.best_of(group))
            yield Drawn(f"rate-{group.slug}", title_of(group.given), caption, drawing, group=group)


def throughput_lines(group: CellGroup) -> list[ScalingLine]:
    column, unit = group.throughput
    return lines_over_workers(group, column, lambda row, ends: f"{rate(row[column])} {unit}{ends}")
