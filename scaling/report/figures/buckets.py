"""The step over the bucket size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scaling.analysis.columns import is_control_arm, is_unchanged
from scaling.analysis.groups import CellGroup, main_variant, measured_at_most_workers
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import ANSWER_WIDTH, in_ms, set_title
from scaling.report.figures.style import BEST, OTHER
from scaling.report.figures.svg import with_tip

CAPTION = (
    "Time of a step on the most workers, with its 95% interval. Columns bucket_mb, iteration_s; an interval "
    "is cut off at the plot's edge. Green: each aggregator's fastest bucket size; a control arm has none."
)


@figure(section="choices")
def buckets(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("iteration"):
        if lines := bucket_responses(group):
            title = data.titled(f"Bucket size, {workers(max(group.world_sizes), group.unit)}", group)
            drawing = _draw_buckets(title, lines)
            yield Drawn(f"buckets-{group.slug}", title, CAPTION, drawing, group=group)


@dataclass(frozen=True)
class Response:
    """One aggregator's step over the values of an axis, in ms; `low_ms`, `high_ms` may hold None."""

    aggregator: str
    values: list[float]
    iteration_ms: list[float]
    low_ms: list[float | None]
    high_ms: list[float | None]


def bucket_responses(group: CellGroup) -> list[Response]:
    """A line an aggregator with several bucket sizes at the largest world size; none if there is no such."""
    responses = []
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        placement = main_variant(group, label)[0]["input_placement"]
        rows = [row for row in measured_at_most_workers(group, label) if is_unchanged(row)]
        rows = [row for row in rows if row["input_placement"] == placement]
        rows = sorted((row for row in rows if row["bucket_mb"] is not None), key=lambda row: row["bucket_mb"])
        if len(rows) > 1:
            responses.append(
                Response(
                    label,
                    [row["bucket_mb"] for row in rows],
                    [1000 * row["iteration_s"] for row in rows],
                    [in_ms(row["iteration_s_low"]) for row in rows],
                    [in_ms(row["iteration_s_high"]) for row in rows],
                )
            )
    return responses


def _draw_buckets(title: str, lines: Sequence[Response]) -> Figure:
    """A bar a bucket size from 0 on, so that equal times look equal; each aggregator's fastest stands out."""
    num_bars = sum(len(line.values) for line in lines)
    height = 1.1 + 0.24 * num_bars + 0.3 * len(lines)
    figure = Figure(figsize=(ANSWER_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    longest_ms = max(time_ms for line in lines for time_ms in line.iteration_ms)
    axes.set_xlim(0, 1.25 * longest_ms)
    place, ticks = 0.0, {}
    for line in lines:
        axes.text(0, place, f" {line.aggregator}", va="center", fontsize=9)
        for index, value in enumerate(line.values):
            place += 1.0
            ticks[place] = f"{value:g} MiB"
            _draw_bar(axes, place, line, index)
        place += 1.2
    axes.set_ylim(place - 0.6, -0.7)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("milliseconds a step")
    set_title(figure, title)
    return figure


def _draw_bar(axes: Axes, place: float, line: Response, index: int) -> None:
    time_ms, low, high = line.iteration_ms[index], line.low_ms[index], line.high_ms[index]
    end_ms = axes.get_xlim()[1]
    is_best = time_ms == min(line.iteration_ms) and not is_control_arm({"aggregator": line.aggregator})
    colour = BEST if is_best else OTHER
    (bar,) = axes.barh(place, time_ms, height=0.66, color=colour)
    has_interval = low is not None and high is not None
    interval = f", 95% interval {low:.4g} to {high:.4g} ms" if has_interval else ""
    with_tip(bar, f"{line.aggregator}, {line.values[index]:g} MiB: {time_ms:.4g} ms a step{interval}")
    if low is not None and high is not None:
        axes.plot([max(0.0, low), min(high, end_ms)], [place] * 2, color="#202020", marker="|", linewidth=1.0)
    note = "" if has_interval else ", no interval"
    beyond_ms = min(max(time_ms, high or 0.0), 0.84 * end_ms)
    axes.text(beyond_ms + 0.015 * end_ms, place, f"{time_ms:.4g}{note}", va="center", fontsize=8)
