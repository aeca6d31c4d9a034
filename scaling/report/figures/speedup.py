"""Speedup over the workers: the best aggregator, the library's all-reduce and the bounds; others in grey."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scaling.analysis.columns import Row, aggregator_name, is_control_arm
from scaling.analysis.groups import Group
from scaling.analysis.variants import main_variant
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    ANSWER_WIDTH,
    EndLabel,
    add_tip,
    label_ends,
    plain_ticks,
    set_title,
)
from scaling.report.figures.style import BEST, BOUND, IDEAL, OTHER, REFERENCE
from scaling.report.figures.svg import with_tip
from scaling.report.formats import percent
from scaling.report.titles import title_of

CAPTION = (
    "Throughput over that of one worker without exchange. Bars: 95% intervals; a hollow point has none. No "
    "exchange bounds all others. Grey: the other aggregators, each at its fastest bucket size."
)

LIBRARY = "all_reduce"
"""The communication library's own all-reduce: what others are compared with."""

HIDDEN_FACTOR = 4.0
"""Lines below the fastest by more than this factor are left to the table: they would flatten the others."""


@figure(section="answer")
def speedup(data: FigureInput) -> Iterator[Drawn]:
    """One a group of several world sizes."""
    for group in data.groups_of("iteration"):
        lines = speedup_lines(group)
        if len({size for line in lines for size in line.world_sizes}) > 1:
            drawing = draw_speedup("Speedup over one worker", lines, data.best)
            yield Drawn(f"speedup-{group.slug}", title_of(group.given), CAPTION, drawing, group=group)


@dataclass(frozen=True)
class SpeedupLine:
    """One aggregator's speedups, in one of its variants if it has several, which `name` tells.

    `low` and `high` are NaN where there is no interval; `high` may be infinite.
    """

    aggregator: str
    name: str
    world_sizes: list[int]
    speedup: list[float]
    low: list[float]
    high: list[float]

    @property
    def is_bound(self) -> bool:
        """Whether it exchanges nothing."""
        return aggregator_name(self.aggregator) == "none"

    def points(self) -> list[tuple[int, float, str]]:
        """World size, speedup, and the text that tells them."""
        values = zip(self.world_sizes, self.speedup, self.low, self.high, strict=True)
        return [
            (
                size,
                speedup,
                f"{self.name}, {workers(size)}: speedup {speedup:.3g}{_ends(low, high)}, "
                f"efficiency {percent(speedup / size)}",
            )
            for size, speedup, low, high in values
        ]


def _ends(low: float, high: float) -> str:
    return "" if math.isnan(low) else f" (95% interval {low:.3g} to {high:.3g})"


def speedup_lines(group: Group) -> list[SpeedupLine]:
    """One line an aggregator that has a speedup, with the iteration time's intervals at a fixed baseline."""
    lines = []
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        rows = [row for row in main_variant(group, label) if row["speedup"] is not None]
        if not rows:
            continue
        bounds = [_speedup_interval(row) for row in rows]
        lines.append(
            SpeedupLine(
                label,
                group.name(rows[0]),
                [row["world_size"] for row in rows],
                [row["speedup"] for row in rows],
                [low for low, _ in bounds],
                [high for _, high in bounds],
            )
        )
    return lines


def _speedup_interval(row: Row) -> tuple[float, float]:
    """speedup x iteration_s is the baseline's share: a time's bound becomes the speedup's opposite bound."""
    fixed = row["speedup"] * row["iteration_s"]
    low, high = row["iteration_s_low"], row["iteration_s_high"]
    if low is None or high is None:
        return math.nan, math.nan
    # A t interval of scattered launches can reach below 0 seconds: then the speedup has no upper bound.
    return fixed / high, fixed / low if low > 0 else math.inf


def best_of(lines: Sequence[SpeedupLine], best: Collection[str]) -> str | None:
    """The label of the line to stand out: the study's choice, or else the highest on the most workers."""
    exchanging = [line for line in lines if not is_control_arm({"aggregator": line.aggregator})]
    chosen = [line for line in exchanging if line.aggregator in best] or exchanging
    best_line = max(chosen, key=lambda line: (line.world_sizes[-1], line.speedup[-1]), default=None)
    return None if best_line is None else best_line.aggregator


def draw_speedup(title: str, lines: Sequence[SpeedupLine], best: Collection[str] = ()) -> Figure:
    """Speedup over the world size, both on scales of powers of two, with labels at the ends of the lines.

    Args:
        title: of the figure.
        lines: one an aggregator.
        best: labels that the study's answer names.
    """
    figure = Figure(figsize=(ANSWER_WIDTH, 3.2), layout="constrained")
    axes = figure.add_subplot()
    sizes = sorted({size for line in lines for size in line.world_sizes})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    winner = best_of(lines, best)
    drawn = _within_reach(lines)
    values = [value for line in drawn for value in line.speedup]
    limits = min([1.0, *values]) / 1.25, 1.12 * max([*values, *sizes])
    axes.set_ylim(*limits)
    axes.set_xlim(sizes[0] / 1.08, sizes[-1] * 1.08)
    (ideal,) = axes.plot(sizes, sizes, color=IDEAL, linestyle=(0, (2, 2)), linewidth=1.2)
    with_tip(ideal, "", "ideal")
    labels = [EndLabel(sizes[-1], f"ideal {sizes[-1]}", IDEAL, "ideal")]
    for line in sorted(drawn, key=lambda line: line.aggregator in _STANDS_OUT or line.aggregator == winner):
        how = _how(line, winner)
        _draw_line(axes, line, how, limits)
        if how["series"] != OTHERS and line.world_sizes[-1] == sizes[-1]:
            value = f"{line.speedup[-1]:.3g}"
            name = "no exchange" if line.is_bound else line.name
            labels.append(EndLabel(line.speedup[-1], f"{name} {value}", how["color"], how["series"]))
    label_ends(axes, labels)
    plain_ticks(axes, sizes)
    axes.set_xlabel("workers")
    axes.set_ylabel("speedup")
    set_title(figure, title)
    return figure


OTHERS = "-others"
"""The series of the grey lines; the minus: hidden on the page until asked for."""

_STANDS_OUT = (LIBRARY, "none")


def _within_reach(lines: Sequence[SpeedupLine]) -> list[SpeedupLine]:
    fastest = max(line.speedup[-1] for line in lines)
    return [
        line
        for line in lines
        if line.speedup[-1] * HIDDEN_FACTOR >= fastest or line.aggregator in _STANDS_OUT
    ]


def _how(line: SpeedupLine, winner: str | None) -> dict[str, Any]:
    """Colour, width and series of a line."""
    if line.aggregator == winner:
        return {"color": BEST, "linewidth": 2.4, "series": line.name}
    if line.is_bound:
        return {"color": BOUND, "linewidth": 1.3, "series": "no exchange"}
    if line.aggregator == LIBRARY:
        return {"color": REFERENCE, "linewidth": 1.6, "series": line.name}
    return {"color": OTHER, "linewidth": 0.9, "series": OTHERS}


def _draw_line(axes: Axes, line: SpeedupLine, how: dict[str, Any], limits: tuple[float, float]) -> None:
    """Values with the ends of their intervals, cut off at the limits; a hollow point has no interval."""
    colour, series, width = how["color"], how["series"], how["linewidth"]
    (drawn,) = axes.plot(line.world_sizes, line.speedup, color=colour, linewidth=width)
    with_tip(drawn, "", series)
    for size, value, low, high in zip(line.world_sizes, line.speedup, line.low, line.high, strict=True):
        face = "white" if math.isnan(low) else colour
        (point,) = axes.plot(
            [size], [value], marker="o", markersize=4, color=colour, markerfacecolor=face, linestyle=""
        )
        with_tip(point, "", series)
        if not math.isnan(low):
            ends = [max(low, limits[0]), min(high, limits[1])]
            (bar,) = axes.plot([size, size], ends, color=colour, marker="_", linewidth=1.0, markersize=5)
            with_tip(bar, "", series)
    for size, value, text in line.points():
        add_tip(axes, size, value, text, series)
