"""Where a step's time goes: the budgets of a group's cells as stacked bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scaling.analysis.columns import PART_COLUMNS, Row
from scaling.analysis.groups import Group
from scaling.axes import workers
from scaling.measure.budget import PARTS
from scaling.report.budget_table import part_label
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    WIDTH,
    add_tip,
    broken,
    in_ms,
    legend_below,
    set_title,
)
from scaling.report.figures.style import HIDDEN_LOOK, part_look
from scaling.report.figures.svg import with_tip
from scaling.report.formats import percent
from scaling.report.titles import title_of

CAPTION = (
    "Where a step's time goes: mean over the middle half of the steps whose phases were marked, of the rank "
    "that the others wait for (columns <part>_s, which sum to profiled_iteration_s). Communication under the "
    "computation takes no time of the step: it is outlined above the bar (hidden_comm_s). The diamond is the "
    "iteration without any mark, with its 95% interval (iteration_s); what it lacks to the bar's end is the "
    "profiling overhead (profiling_overhead_s)."
)

BAR_HEIGHT = 0.66

HIDDEN_HEIGHT = 0.15

HIDES = ("input", "h2d", "forward", "backward")
"""The parts whose end a hidden exchange is drawn at: it runs under the backward pass."""

FEW_BARS = 4
"""Rows of bars up to which the axis's name takes two lines."""


@figure(section="budget")
def budget(data: FigureInput) -> Iterator[Drawn]:
    """One a group that has cells with profiled iterations."""
    for group in data.groups_of("iteration"):
        if bars := budget_bars(group):
            drawing = draw_budget(title_of(group.given), bars)
            yield Drawn(f"budget-{group.slug}", title_of(group.given), CAPTION, drawing, group=group)


@dataclass(frozen=True)
class BudgetBar:
    """One cell's budget and its measured iteration, in milliseconds; None where there is no interval.

    Attributes:
        aggregator: its label.
        name: the same with what sets the cell apart in its group.
        world_size: workers.
        parts_ms: part -> time, of those that the cell has; they sum to the profiled iteration.
        hidden_ms: communication under the computation, which is no part of the sum.
        iteration_ms, low_ms, high_ms: unprofiled, and its 95% interval.
    """

    aggregator: str
    name: str
    world_size: int
    parts_ms: dict[str, float]
    hidden_ms: float
    iteration_ms: float
    low_ms: float | None
    high_ms: float | None


def budget_bars(group: Group) -> list[BudgetBar]:
    """One bar a cell that has profiled iterations, in the table's order; parts it never had have no entry."""
    return [_bar(group, row) for row in group.rows if row["profiled_iteration_s"] is not None]


def _bar(group: Group, row: Row) -> BudgetBar:
    parts = {part: row[column] for part, column in PART_COLUMNS.items()}
    return BudgetBar(
        row["aggregator"],
        group.name(row),
        row["world_size"],
        {part: 1000 * seconds for part, seconds in parts.items() if seconds is not None},
        1000 * (row["hidden_comm_s"] or 0.0),
        1000 * row["iteration_s"],
        in_ms(row["iteration_s_low"]),
        in_ms(row["iteration_s_high"]),
    )


def draw_budget(title: str, bars: Sequence[BudgetBar]) -> Figure:
    """One stacked bar a cell, in the table's order, with the unprofiled iteration as a diamond."""
    names = [name for name in PARTS if any(name in bar.parts_ms for bar in bars)]
    places = _places(bars)
    figure = Figure(figsize=(WIDTH, 1.9 + 0.3 * (places[-1] + 1)), layout="constrained")
    axes = figure.add_subplot()
    ends = [_draw_bar(axes, place, bar) for place, bar in zip(places, bars, strict=True)]
    longest = max([*ends, *(bar.iteration_ms for bar in bars)])
    # A t interval of scattered launches may be several times as long as the iteration: cut it, not the bars.
    axes.set_xlim(0, 1.03 * min(max([longest, *(bar.high_ms or 0.0 for bar in bars)]), 1.5 * longest))
    axes.set_ylim(places[-1] + 0.7, -0.7)
    axes.set_yticks(places, [f"{broken(bar.name)}, {bar.world_size}" for bar in bars])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("milliseconds a step")
    # Next to few bars one line would reach into the title.
    axes.set_ylabel("aggregator, workers" if places[-1] > FEW_BARS else "aggregator,\nworkers")
    set_title(figure, title)
    patches = [Patch(label=part_label(f"{name}_s"), **part_look(name)) for name in names]
    if any(bar.hidden_ms for bar in bars):
        patches.append(Patch(label="hidden comm.", **HIDDEN_LOOK))
    legend_below(figure, [*patches, _iteration_handle()], "part of the step")
    return figure


def _draw_bar(axes: Axes, place: float, bar: BudgetBar) -> float:
    """Draws it; returns where it ends."""
    left = hidden_end = 0.0
    for name in PARTS:
        if name in bar.parts_ms:
            (part,) = axes.barh(place, bar.parts_ms[name], left=left, height=BAR_HEIGHT, **part_look(name))
            with_tip(part, _part_tip(bar, name))
            left += bar.parts_ms[name]
            hidden_end = left if name in HIDES else hidden_end
    if bar.hidden_ms:
        above: dict[str, Any] = {"height": HIDDEN_HEIGHT, **HIDDEN_LOOK}
        start = max(0.0, hidden_end - bar.hidden_ms)
        (part,) = axes.barh(
            place - (BAR_HEIGHT + HIDDEN_HEIGHT) / 2 - 0.03, bar.hidden_ms, left=start, **above
        )
        with_tip(part, f"{_who(bar)}: hidden communication {bar.hidden_ms:.4g} ms")
    _draw_iteration(axes, place, bar)
    return left


def _places(bars: Sequence[BudgetBar]) -> list[float]:
    """Top to bottom, with a gap between aggregators."""
    places, place = [], 0.0
    for index, bar in enumerate(bars):
        if index:
            place += 1.0 if bar.aggregator == bars[index - 1].aggregator else 1.5
        places.append(place)
    return places


def _draw_iteration(axes: Axes, place: float, bar: BudgetBar) -> None:
    if bar.low_ms is not None and bar.high_ms is not None:
        ends, places = [bar.low_ms, bar.high_ms], [place, place]
        axes.plot(ends, places, color="white", linewidth=3.4)  # a rim: the bars below are dark, too
        axes.plot(ends, places, color="black", linewidth=1.4)
        axes.plot(ends, places, color="black", marker="|", linestyle="")
    axes.plot([bar.iteration_ms], [place], **_DIAMOND)
    interval = "" if bar.low_ms is None else f" (95% interval {bar.low_ms:.4g} to {bar.high_ms:.4g} ms)"
    add_tip(axes, bar.iteration_ms, place, f"{_who(bar)}: iteration {bar.iteration_ms:.4g} ms{interval}")


def _who(bar: BudgetBar) -> str:
    return f"{bar.name}, {workers(bar.world_size)}"


def _part_tip(bar: BudgetBar, name: str) -> str:
    own_ms, split_ms = bar.parts_ms[name], sum(bar.parts_ms.values())
    share = f", {percent(own_ms / split_ms, 0)} of {split_ms:.4g} ms" if split_ms else ""
    return f"{_who(bar)}: {part_label(f'{name}_s')} {own_ms:.4g} ms{share}"


_DIAMOND: Any = {
    "color": "black",
    "marker": "D",
    "markersize": 4.5,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
}


def _iteration_handle() -> Line2D:
    return Line2D([], [], label="iteration and its\n95% interval", **_DIAMOND)
