"""Where the step of the best aggregator goes: one bar a world size, in a few parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scaling.analysis.columns import PART_COLUMNS, Row, aggregator_name, is_control_arm
from scaling.analysis.groups import CellGroup, main_variant
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import ANSWER_WIDTH, answer_height, legend_below, set_title
from scaling.report.figures.scaling_lines import best_of
from scaling.report.figures.speedup import speedup_lines
from scaling.report.figures.style import GROUPED_PARTS, LONG_STEPS
from scaling.report.figures.svg import with_tip
from scaling.report.formats import milliseconds, percent
from scaling.report.titles import title_of

CAPTION = (
    "Mean of the slowest rank's profiled steps, scaled to the typical (median) unprofiled step. "
    "The bar ends at the wall clock of a step. {}ommunication hidden during the computation is not drawn."
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
    """One for each group in which the best aggregator has profiled steps."""
    for group in data.groups_of("iteration"):
        name, bars = answer_bars(group, data.best_of(group))
        if bars:
            exchanges = aggregator_name(name) != "none" and max(bar.world_size for bar in bars) > 1
            of_whom = f": {name}" if exchanges else ""
            title = data.titled(f"Where the step goes{of_whom}", group)
            drawing = _draw_answer_budget(title, bars, group.unit)
            caption = _caption(bars, group.unit)
            yield Drawn(f"step-{group.slug}", title_of(group.given), caption, drawing, group=group)


def _caption(bars: Sequence[AnswerBar], unit: str) -> str:
    of_one = any(bar.world_size == 1 for bar in bars)
    return CAPTION.format(f"{workers(1, unit)} exchanges nothing; c" if of_one else "C")


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
    return name, [_bar(row) for row in known]


def _fastest(group: CellGroup, best: Collection[str]) -> str | None:
    """Of those that the answer names, else of all; control arms only where nothing else was timed."""
    timed = [row for row in group.rows if row["iteration_s"] is not None]
    rows = [row for row in timed if row["aggregator"] in best] or timed
    label = min(rows, key=lambda row: (is_control_arm(row), float(row["iteration_s"])), default=None)
    return None if label is None else str(label["aggregator"])


def _bar(row: Row) -> AnswerBar:
    parts = {
        name: sum(row[PART_COLUMNS[part]] or 0.0 for part in members) for name, members in GROUPED.items()
    }
    typical_s = min(row["typical_iteration_s"] or row["iteration_s"], row["iteration_s"])
    scale = typical_s / (sum(parts.values()) or typical_s)
    scaled = {name: scale * seconds for name, seconds in parts.items()}
    scaled[LONG_STEPS] = row["iteration_s"] - typical_s
    return AnswerBar(row["world_size"], scaled, row["iteration_s"])


def _draw_answer_budget(title: str, bars: Sequence[AnswerBar], worker: str = "worker") -> Figure:
    height = max(answer_height(len(bars)), 1.4 + 0.55 * len(bars))
    figure = Figure(figsize=(ANSWER_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    longest = max(sum(bar.parts_s.values()) for bar in bars)
    for place, bar in enumerate(bars):
        left, total = 0.0, sum(bar.parts_s.values())
        for name, seconds in bar.parts_s.items():
            if not seconds:
                continue
            (part,) = axes.barh(place, 1000 * seconds, left=1000 * left, height=0.62, **_look(name))
            share = percent(seconds / total, 0)
            text = (
                f"{workers(bar.world_size, worker)}: {name} {milliseconds(seconds)} ms, {share} of the step"
            )
            with_tip(part, text)
            left += seconds
        end_ms = 1000 * (left + 0.012 * longest)
        axes.text(end_ms, place, f"{milliseconds(bar.iteration_s)} ms", va="center", fontsize=9)
    axes.set_xlim(0, 1.16 * 1000 * longest)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks(range(len(bars)), [workers(bar.world_size, worker) for bar in bars])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("milliseconds a step")
    set_title(figure, title)
    shown = [
        name for name in bars[0].parts_s if any(bar.parts_s[name] > SMALLEST_SHARE * longest for bar in bars)
    ]
    legend_below(figure, [Patch(label=name, **_look(name)) for name in shown], fontsize="small")
    return figure


def _look(name: str) -> Any:
    return {"facecolor": GROUPED_PARTS[name], "edgecolor": "none"}
