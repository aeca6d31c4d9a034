"""Where a step's time goes: the parts of each cell's step as stacked bars; of the best, a few parts."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scaling.analysis.columns import PART_COLUMNS, Row, aggregator_name, is_control_arm
from scaling.analysis.groups import CellGroup, main_variant
from scaling.axes import workers
from scaling.measure.budget import PARTS
from scaling.report.budget_table import part_label
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    GROUPED_PARTS,
    HIDDEN_LOOK,
    LONG_STEPS,
    add_tip,
    answer_height,
    in_ms,
    legend_below,
    name_bars,
    one_plot,
    part_look,
    plate,
)
from scaling.report.figures.scaling_lines import best_of, speedup_lines
from scaling.report.figures.svg import with_tip
from scaling.report.formats import milliseconds, percent
from scaling.report.text import title_of

CAPTION = (
    "Mean over the middle half of the profiled steps. On the rank that the others wait for (columns "
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
    """One bar a cell that has profiled steps, most workers first, then by the time of the step."""
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
    names = [name for name in PARTS if any(name in bar.parts_ms for bar in bars)]
    gaps = (1.0 if bar.world_size == after.world_size else 2.0 for bar, after in pairwise(bars))
    places, end_ms = [*accumulate(gaps, initial=0.0)], axis_end_ms(bars)
    figure, axes = one_plot(title, 1.4 + 0.17 * (places[-1] + 1) + 0.09 * len(names))
    axes.set_xlim(0, end_ms)
    axes.set_ylim(places[-1] + 0.9, -0.9)
    for place, bar in zip(places, bars, strict=True):
        _draw_bar(axes, place, bar)
        if sum(bar.parts_ms.values()) > end_ms:
            _break(axes, place, bar)
    name_bars(axes, places, [bar.name for bar in bars], "milliseconds a step", fontsize=7.5)
    for size in dict.fromkeys(bar.world_size for bar in bars):
        first = next(place for place, bar in zip(places, bars, strict=True) if bar.world_size == size)
        axes.text(end_ms, first - 0.55, workers(size, worker), ha="right", va="bottom", fontsize=7.5)
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
    return (1.03 if len(whole) == len(ends) else 1.25) * max(whole)


def _break(axes: Axes, place: float, bar: BudgetBar) -> None:
    end_ms = axes.get_xlim()[1]
    at = 0.84 * end_ms
    gap: dict[str, Any] = {"color": "white", "linewidth": 3.0, "solid_capstyle": "butt"}
    axes.plot([at, at + 0.012 * end_ms], [place + 0.5, place - 0.5], **gap)
    look: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 7.5, "bbox": plate(1.0)}
    axes.text(0.995 * end_ms, place, f"{bar.iteration_ms:.3g}", **look)


def _draw_bar(axes: Axes, place: float, bar: BudgetBar) -> None:
    left = hidden_end = 0.0
    all_ms = sum(bar.parts_ms.values())
    for name in PARTS:
        if name in bar.parts_ms:
            own_ms = bar.parts_ms[name]
            (part,) = axes.barh(place, own_ms, left=left, height=BAR_HEIGHT, **part_look(name))
            share = f", {percent(own_ms / all_ms, 0)} of {all_ms:.4g} ms" if all_ms else ""
            with_tip(part, f"{_who(bar)}: {part_label(f'{name}_s')} {own_ms:.4g} ms{share}")
            left += own_ms
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
    face, edge = ("white", "black") if is_hollow else ("black", "white")
    look = {**_DIAMOND, "markerfacecolor": face, "markeredgecolor": edge}
    axes.plot([bar.iteration_ms], [place], **look)
    interval = "" if bar.low_ms is None else f" (95% interval {bar.low_ms:.4g} to {bar.high_ms:.4g} ms)"
    add_tip(axes, bar.iteration_ms, place, f"{_who(bar)}: step {bar.iteration_ms:.4g} ms{interval}")


def _who(bar: BudgetBar) -> str:
    return f"{bar.name}, {workers(bar.world_size)}"


_DIAMOND: Any = {
    **{"color": "black", "marker": "D", "markersize": 3.5},
    **{"markeredgecolor": "white", "markeredgewidth": 0.6},
}


ANSWER_CAPTION = (
    "Slowest rank's mean profiled step, scaled to the median. That is of unprofiled steps; the bar ends at "
    "the wall clock of a step. {}ommunication hidden during the computation is not drawn."
)

GROUPED = {
    "computation": ("forward", "backward"),
    "exposed communication": ("exposed_comm", "wait"),
    "encoding, decoding": ("encode", "decode"),
    "copies and sums": ("d2h", "reduce", "h2d_result"),
    "input, update, other": ("input", "h2d", "clip", "update", "unattributed"),
}
"""Part of the figure -> the parts of a step (`scaling.measure.budget`) that it sums."""

SMALLEST_SHARE = 0.002  # of the longest step: a smaller part cannot be seen, and has no entry in the legend


@figure(section="answer")
def answer_budget(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("iteration"):
        name, bars = answer_bars(group, data.best_of(group))
        if bars:
            exchanges = aggregator_name(name) != "none" and max(bar.world_size for bar in bars) > 1
            of_whom = f": {name}" if exchanges else ""
            title = data.titled(f"Where the step goes{of_whom}", group)
            drawing = _draw_answer_budget(title, bars, group.unit)
            of_one = any(bar.world_size == 1 for bar in bars)
            alone = f"{workers(1, group.unit)} exchanges nothing; c" if of_one else "C"
            caption = ANSWER_CAPTION.format(alone)
            yield Drawn(f"step-{group.slug}", title_of(group.given), caption, drawing, group=group)


@dataclass(frozen=True)
class AnswerBar:
    """One world size: its grouped parts in seconds, which add up to its wall clock a step."""

    world_size: int
    parts_s: dict[str, float]
    iteration_s: float


def answer_bars(group: CellGroup, best: Collection[str]) -> tuple[str, list[AnswerBar]]:
    """The best aggregator, a bar for each of its world sizes; one worker is that without exchange."""
    label = best_of(speedup_lines(group), best) or _fastest(group, best)
    if label is None:
        return "", []
    rows = {row["world_size"]: row for row in main_variant(group, label)}
    for row in group.rows:
        if row["world_size"] == 1 and aggregator_name(row["aggregator"]) == "none":
            rows.setdefault(1, row)
    known = [row for _, row in sorted(rows.items()) if row["profiled_iteration_s"] is not None]
    name = next((group.name(row) for row in reversed(known) if row["aggregator"] == label), label)
    return name, [_answer_bar(row) for row in known]


def _fastest(group: CellGroup, best: Collection[str]) -> str | None:
    """Of those that the answer names, else of all; control arms only where nothing else was timed."""
    timed = [row for row in group.rows if row["iteration_s"] is not None]
    rows = [row for row in timed if row["aggregator"] in best] or timed
    label = min(rows, key=lambda row: (is_control_arm(row), float(row["iteration_s"])), default=None)
    return None if label is None else str(label["aggregator"])


def _answer_bar(row: Row) -> AnswerBar:
    parts = {
        name: sum(row[PART_COLUMNS[part]] or 0.0 for part in members) for name, members in GROUPED.items()
    }
    typical_s = min(row["typical_iteration_s"] or row["iteration_s"], row["iteration_s"])
    scale = typical_s / (sum(parts.values()) or typical_s)
    scaled = {name: scale * seconds for name, seconds in parts.items()}
    scaled[LONG_STEPS] = row["iteration_s"] - typical_s
    return AnswerBar(row["world_size"], scaled, row["iteration_s"])


def _draw_answer_budget(title: str, bars: Sequence[AnswerBar], worker: str = "worker") -> Figure:
    figure, axes = one_plot(title, max(answer_height(len(bars)), 1.4 + 0.55 * len(bars)))
    looks: Any = {name: {"facecolor": c, "edgecolor": "none"} for name, c in GROUPED_PARTS.items()}
    longest = max(sum(bar.parts_s.values()) for bar in bars)
    for place, bar in enumerate(bars):
        left, total = 0.0, sum(bar.parts_s.values())
        for name, seconds in bar.parts_s.items():
            if not seconds:
                continue
            (part,) = axes.barh(place, 1000 * seconds, left=1000 * left, height=0.62, **looks[name])
            what = f"{name} {milliseconds(seconds)} ms, {percent(seconds / total, 0)} of the step"
            with_tip(part, f"{workers(bar.world_size, worker)}: {what}")
            left += seconds
        end_ms = 1000 * (left + 0.012 * longest)
        axes.text(end_ms, place, f"{milliseconds(bar.iteration_s)} ms", va="center", fontsize=9)
    axes.set_xlim(0, 1.16 * 1000 * longest)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    sizes = [workers(bar.world_size, worker) for bar in bars]
    name_bars(axes, range(len(bars)), sizes, "milliseconds a step")
    shown = [
        name for name in bars[0].parts_s if any(bar.parts_s[name] > SMALLEST_SHARE * longest for bar in bars)
    ]
    legend_below(figure, [Patch(label=name, **looks[name]) for name in shown], fontsize="small")
    return figure
