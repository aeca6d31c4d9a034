"""Where a step's time goes: the budgets of a group's cells as stacked bars."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scaling.analysis.columns import PART_COLUMNS, Row
from scaling.analysis.groups import CellGroup
from scaling.axes import workers
from scaling.measure.budget import PARTS
from scaling.report.budget_table import part_label
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import ANSWER_WIDTH, add_tip, in_ms, legend_below, set_title
from scaling.report.figures.style import HIDDEN_LOOK, part_look
from scaling.report.figures.svg import with_tip
from scaling.report.formats import percent
from scaling.report.titles import title_of

CAPTION = (
    "Mean over the middle half of the profiled steps, on the rank that the others wait for (columns "
    "<part>_s). The outlined part above a bar is communication during the computation, which adds no time "
    "to the step (hidden_comm_s). Diamond: the step without profiling, with its 95% interval; hollow: it "
    "has none. A bar more than ten times the median is broken; its number is its length."
)
BROKEN_RATIO = 10.0  # a step this many times as long as the median is cut off: it would flatten all others
BAR_HEIGHT = 0.66
HIDDEN_HEIGHT = 0.15
HIDES = ("input", "h2d", "forward", "backward")
"""The parts whose end a hidden exchange is drawn at: it runs under the backward pass."""


@figure(section="budget")
def budget(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("iteration"):
        if bars := budget_bars(group):
            drawing = draw_budget(data.titled("Parts of a step", group), bars, group.unit)
            yield Drawn(f"budget-{group.slug}", title_of(group.given), CAPTION, drawing, group=group)


@dataclass(frozen=True)
class BudgetBar:
    """One cell's budget and its measured step, in milliseconds; None where there is no interval."""

    aggregator: str
    name: str
    world_size: int
    parts_ms: dict[str, float]
    hidden_ms: float
    iteration_ms: float
    low_ms: float | None
    high_ms: float | None


def budget_bars(group: CellGroup) -> list[BudgetBar]:
    """One bar a cell that has profiled steps; parts it never had have no entry.

    They are sorted by the workers, the most first, and then by the time of the step.
    """
    bars = [_bar(group, row) for row in group.rows if row["profiled_iteration_s"] is not None]
    return sorted(bars, key=lambda bar: (-bar.world_size, bar.iteration_ms))


def _bar(group: CellGroup, row: Row) -> BudgetBar:
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


def draw_budget(title: str, bars: Sequence[BudgetBar], worker: str = "worker") -> Figure:
    """One stacked bar a cell, in their order, with the unprofiled step as a diamond; `worker`: its name."""
    names = [name for name in PARTS if any(name in bar.parts_ms for bar in bars)]
    places, end_ms = _places(bars), axis_end_ms(bars)
    figure = Figure(
        figsize=(ANSWER_WIDTH, 1.4 + 0.17 * (places[-1] + 1) + 0.09 * len(names)), layout="constrained"
    )
    axes = figure.add_subplot()
    axes.set_xlim(0, end_ms)
    axes.set_ylim(places[-1] + 0.9, -0.9)
    for place, bar in zip(places, bars, strict=True):
        _draw_bar(axes, place, bar)
        if sum(bar.parts_ms.values()) > end_ms:
            _break(axes, place, bar)
    axes.set_yticks(places, [bar.name for bar in bars], fontsize=7.5)
    for size in dict.fromkeys(bar.world_size for bar in bars):
        first = next(place for place, bar in zip(places, bars, strict=True) if bar.world_size == size)
        axes.text(end_ms, first - 0.55, workers(size, worker), ha="right", va="bottom", fontsize=7.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("milliseconds a step")
    set_title(figure, title)
    patches = [Patch(label=part_label(f"{name}_s"), **part_look(name)) for name in names]
    if any(bar.hidden_ms for bar in bars):
        patches.append(Patch(label="hidden comm.", **HIDDEN_LOOK))
    legend_below(figure, [*patches, Line2D([], [], label="step, 95% interval", **_DIAMOND)], fontsize="small")
    return figure


def axis_end_ms(bars: Sequence[BudgetBar]) -> float:
    """Where the axis ends: beyond the longest bar that is not more than `BROKEN_RATIO` times the median."""
    ends = [max(sum(bar.parts_ms.values()), bar.iteration_ms) for bar in bars]
    whole = [end for end in ends if end <= BROKEN_RATIO * statistics.median(ends)]
    # A t interval of scattered launches may be several times as long as the iteration: cut it, not the bars.
    room = 1.03 if len(whole) == len(ends) else 1.25
    return room * max(whole)


def _break(axes: Axes, place: float, bar: BudgetBar) -> None:
    """A gap across a bar that goes on beyond the axis, and its length."""
    end_ms = axes.get_xlim()[1]
    at = 0.84 * end_ms
    axes.plot(
        [at, at + 0.012 * end_ms],
        [place + 0.5, place - 0.5],
        color="white",
        linewidth=3.0,
        solid_capstyle="butt",
    )
    axes.text(
        0.995 * end_ms,
        place,
        f"{bar.iteration_ms:.3g}",
        ha="right",
        va="center",
        fontsize=7.5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )


def _draw_bar(axes: Axes, place: float, bar: BudgetBar) -> None:
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
    if bar.iteration_ms <= axes.get_xlim()[1]:
        _draw_iteration(axes, place, bar)


def _places(bars: Sequence[BudgetBar]) -> list[float]:
    """Top to bottom, with a gap between numbers of workers."""
    places, place = [], 0.0
    for index, bar in enumerate(bars):
        if index:
            place += 1.0 if bar.world_size == bars[index - 1].world_size else 2.0
        places.append(place)
    return places


def _draw_iteration(axes: Axes, place: float, bar: BudgetBar) -> None:
    is_hollow = bar.low_ms is None or bar.high_ms is None
    if bar.low_ms is not None and bar.high_ms is not None:
        end_ms = axes.get_xlim()[1]
        ends, places = [max(0.0, bar.low_ms), min(bar.high_ms, end_ms)], [place, place]
        axes.plot(ends, places, color="white", linewidth=3.4)  # a rim: the bars below are dark, too
        axes.plot(ends, places, color="black", linewidth=1.4)
        axes.plot(ends[:1], places[:1], color="black", marker="|")
        is_cut_off = bar.high_ms > end_ms
        mark: dict[str, Any] = {"marker": ">", "markersize": 4} if is_cut_off else {"marker": "|"}
        axes.plot(ends[1:], places[1:], color="black", clip_on=False, **mark)
    axes.plot(
        [bar.iteration_ms],
        [place],
        **{
            **_DIAMOND,
            "markerfacecolor": "white" if is_hollow else "black",
            "markeredgecolor": "black" if is_hollow else "white",
        },
    )
    interval = "" if bar.low_ms is None else f" (95% interval {bar.low_ms:.4g} to {bar.high_ms:.4g} ms)"
    add_tip(axes, bar.iteration_ms, place, f"{_who(bar)}: step {bar.iteration_ms:.4g} ms{interval}")


def _who(bar: BudgetBar) -> str:
    return f"{bar.name}, {workers(bar.world_size)}"


def _part_tip(bar: BudgetBar, name: str) -> str:
    own_ms, split_ms = bar.parts_ms[name], sum(bar.parts_ms.values())
    share = f", {percent(own_ms / split_ms, 0)} of {split_ms:.4g} ms" if split_ms else ""
    return f"{_who(bar)}: {part_label(f'{name}_s')} {own_ms:.4g} ms{share}"


_DIAMOND: Any = {
    "color": "black",
    "marker": "D",
    "markersize": 3.5,
    "markeredgecolor": "white",
    "markeredgewidth": 0.6,
}
