"""Speedup and efficiency over the workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from scaling.analysis.columns import Row
from scaling.analysis.formats import percent, workers
from scaling.analysis.groups import Group
from scaling.analysis.variants import main_variant
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    WIDTH,
    Looks,
    add_tip,
    aggregator_handle,
    legend_below,
    plain_ticks,
    set_title,
)
from scaling.report.figures.style import Look

CAPTION = (
    "Throughput over that of one worker without exchange (column speedup). Bars: the 95% interval of the "
    "iteration time (iteration_s_low, iteration_s_high) at a fixed baseline, cut off at the plot's edge. "
    "Points of one world size are set slightly apart. The aggregator none exchanges nothing: it bounds "
    "the others. Of several bucket sizes the one is shown that is fastest on the most workers."
)

WIDEST_SHIFT_OCTAVES = 0.04
"""How far points of one world size are set apart, either way; more would mislead next to the ideal line."""


@figure(section="speedup")
def speedup(data: FigureInput) -> Iterator[Drawn]:
    """One a group of several world sizes."""
    for group in data.groups_of("iteration"):
        lines = speedup_lines(group)
        if len({size for line in lines for size in line.world_sizes}) > 1:
            drawing = draw_speedup(group.title, lines, data.looks)
            yield Drawn(f"speedup-{group.slug}", group.title, CAPTION, drawing, group=group)


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
    def efficiency(self) -> list[float]:
        """Speedup over workers."""
        return [speedup / size for speedup, size in zip(self.speedup, self.world_sizes, strict=True)]

    def points(self) -> list[SpeedupPoint]:
        """Its values, with the text that tells them."""
        values = zip(self.world_sizes, self.speedup, self.low, self.high, self.efficiency, strict=True)
        return [
            SpeedupPoint(
                speedup,
                efficiency,
                f"{self.name}, {workers(size)}: speedup {speedup:.3g}{_ends(low, high)}, "
                f"efficiency {percent(efficiency)}",
            )
            for size, speedup, low, high, efficiency in values
        ]


@dataclass(frozen=True)
class SpeedupPoint:
    """One of a line's points, and what is shown of it."""

    speedup: float
    efficiency: float
    text: str


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
        # Next to one another: at the same place the intervals would hide each other.
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
