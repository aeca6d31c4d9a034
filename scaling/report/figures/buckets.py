"""The iteration over the bucket size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scaling.analysis.groups import Group
from scaling.analysis.variants import main_variant, measured_at_most_workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    WIDTH,
    Looks,
    add_tip,
    aggregator_handle,
    in_ms,
    legend_below,
    on_most_workers,
    plain_ticks,
    set_title,
)

CAPTION = (
    "Iteration time over the bucket size, on the most workers (columns bucket_mb and iteration_s, with its "
    "95% interval, cut off at the plot's edge)."
)


@figure(section="choices")
def buckets(data: FigureInput) -> Iterator[Drawn]:
    """One a group with several bucket sizes, on the most workers."""
    for group in data.groups_of("iteration"):
        if lines := bucket_responses(group):
            title = on_most_workers(group)
            drawing = draw_buckets(title, lines, data.looks)
            yield Drawn(f"buckets-{group.slug}", title, CAPTION, drawing, group=group)


@dataclass(frozen=True)
class Response:
    """One aggregator's iteration over the values of an axis, in ms; `low_ms`, `high_ms` may hold None."""

    aggregator: str
    values: list[float]
    iteration_ms: list[float]
    low_ms: list[float | None]
    high_ms: list[float | None]


def bucket_responses(group: Group) -> list[Response]:
    """A line an aggregator with several bucket sizes at the largest world size; none if there is no such."""
    responses = []
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        placement = main_variant(group, label)[0]["input_placement"]
        rows = measured_at_most_workers(group, label)
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


def draw_buckets(title: str, lines: Sequence[Response], looks: Looks) -> Figure:
    """Iteration over the bucket size, in powers of two."""
    figure = Figure(figsize=(WIDTH, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    for line in lines:
        look = looks[line.aggregator]
        axes.plot(line.values, line.iteration_ms, color=look.colour, marker=look.marker)
        for value, time_ms in zip(line.values, line.iteration_ms, strict=True):
            add_tip(axes, value, time_ms, f"{line.aggregator}, {value:g} MiB: {time_ms:.4g} ms an iteration")
        for value, low, high in zip(line.values, line.low_ms, line.high_ms, strict=True):
            if low is not None and high is not None:
                axes.plot([value, value], [low, high], color=look.colour, linewidth=0.9, marker="_")
    plain_ticks(axes, sorted({value for line in lines for value in line.values}))
    _cut(axes, [value for line in lines for value in line.iteration_ms])
    axes.set_xlabel("bucket size, MiB")
    axes.set_ylabel("milliseconds an iteration")
    set_title(figure, title)
    handles = [aggregator_handle(line.aggregator, looks) for line in lines]
    legend_below(figure, handles, "aggregator")
    return figure


def _cut(axes: Axes, values: Sequence[float]) -> None:
    """Keeps the values in view where an interval is many times as long as they are apart."""
    low, high = min(values), max(values)
    room = max(0.6 * (high - low), 0.02 * high)
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, low - room), min(top, high + room))
