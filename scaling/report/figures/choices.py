"""The step over the bucket size, and by where its input comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scaling.analysis.columns import Row, is_control_arm, is_unchanged
from scaling.analysis.groups import CellGroup, main_variant, measured_at_most_workers, placement_name
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    BEST,
    FURTHER,
    MEASURED,
    OTHER,
    WIDTH,
    in_ms,
    legend_below,
    name_bars,
    one_plot,
)
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


def bucket_responses(group: CellGroup) -> dict[str, list[Row]]:
    """Aggregator with several bucket sizes at the largest world size -> its rows there, by the size."""
    responses = {}
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        placement = main_variant(group, label)[0]["input_placement"]
        rows = [
            row
            for row in measured_at_most_workers(group, label)
            if is_unchanged(row) and row["input_placement"] == placement and row["bucket_mb"] is not None
        ]
        if len(rows) > 1:
            responses[label] = sorted(rows, key=lambda row: row["bucket_mb"])
    return responses


def _draw_buckets(title: str, lines: Mapping[str, Sequence[Row]]) -> Figure:
    num_bars = sum(map(len, lines.values()))
    height = 1.1 + 0.24 * num_bars + 0.3 * len(lines)
    figure, axes = one_plot(title, height)
    longest_ms = max(1000 * row["iteration_s"] for rows in lines.values() for row in rows)
    axes.set_xlim(0, 1.25 * longest_ms)
    place, ticks = 0.0, {}
    for label, rows in lines.items():
        axes.text(0, place, f" {label}", va="center", fontsize=9)
        best = {} if is_control_arm({"aggregator": label}) else min(rows, key=lambda row: row["iteration_s"])
        for row in rows:
            place += 1.0
            ticks[place] = f"{row['bucket_mb']:g} MiB"
            is_best = row["iteration_s"] == best.get("iteration_s")
            _draw_bucket(axes, place, row, BEST if is_best else OTHER)
        place += 1.2
    axes.set_ylim(place - 0.6, -0.7)
    name_bars(axes, ticks, ticks.values(), "milliseconds a step")
    return figure


def _draw_bucket(axes: Axes, place: float, row: Row, colour: str) -> None:
    time_ms, end_ms = 1000 * row["iteration_s"], axes.get_xlim()[1]
    low, high = in_ms(row["iteration_s_low"]), in_ms(row["iteration_s_high"])
    (bar,) = axes.barh(place, time_ms, height=0.66, color=colour)
    interval, note = "", ", no interval"
    if low is not None and high is not None:
        interval, note = f", 95% interval {low:.4g} to {high:.4g} ms", ""
        axes.plot([max(0.0, low), min(high, end_ms)], [place] * 2, color="#202020", marker="|", linewidth=1.0)
    with_tip(bar, f"{row['aggregator']}, {row['bucket_mb']:g} MiB: {time_ms:.4g} ms a step{interval}")
    beyond_ms = min(max(time_ms, high or 0.0), 0.84 * end_ms)
    axes.text(beyond_ms + 0.015 * end_ms, place, f"{time_ms:.4g}{note}", va="center", fontsize=8)


INPUT = (
    "Step time by where the input comes from, on the most workers (columns input_placement and "
    "iteration_s, with its 95% interval)."
)

_PLACEMENT_COLOURS = (MEASURED, *FURTHER)
_EDGE: Any = {"edgecolor": "#202020", "linewidth": 0.4}


@figure(section="choices")
def placements(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("iteration"):
        if bars := placed(group):
            title = data.titled(f"Input, {workers(max(group.world_sizes), group.unit)}", group)
            yield Drawn(f"input-{group.slug}", title, INPUT, _draw_placements(title, bars), group=group)


def placed(group: CellGroup) -> list[tuple[str, Row]]:
    """(input placement, row) an aggregator at the largest world size; none if there is one place alone."""
    if not group.differs("input_placement"):
        return []
    several = group.differs("loader_workers")
    return [
        (placement_name(row, several_workers=several), row)
        for label in dict.fromkeys(row["aggregator"] for row in group.rows)
        for row in measured_at_most_workers(group, label)
        if row["bucket_mb"] == main_variant(group, label)[0]["bucket_mb"]
    ]


def _draw_placements(title: str, bars: Sequence[tuple[str, Row]]) -> Figure:
    names = list(dict.fromkeys(name for name, _ in bars))
    colours = {name: _PLACEMENT_COLOURS[index % len(_PLACEMENT_COLOURS)] for index, name in enumerate(names)}
    places, at_label = [0.0], dict[str, list[float]]()
    for (_, row), (_, after) in pairwise(bars):
        places.append(places[-1] + (1.0 if row["aggregator"] == after["aggregator"] else 1.6))
    for place, (_, row) in zip(places, bars, strict=True):
        at_label.setdefault(row["aggregator"], []).append(place)
    longest = max(1000 * row["iteration_s"] for _, row in bars)
    figure, axes = one_plot(title, 1.3 + 0.25 * (places[-1] + 1), WIDTH)
    for place, (name, row) in zip(places, bars, strict=True):
        time_ms = 1000 * row["iteration_s"]
        low, high = in_ms(row["iteration_s_low"]), in_ms(row["iteration_s_high"])
        (drawn,) = axes.barh(place, time_ms, height=0.8, facecolor=colours[name], **_EDGE)
        with_tip(drawn, f"{row['aggregator']}, input {name}: {time_ms:.4g} ms a step")
        if low is not None and high is not None:
            ends = [max(0.0, low), min(high, 1.5 * longest)]
            axes.plot(ends, [place, place], color="black", linewidth=1.2, marker="|")
    widest = max([longest, *(in_ms(row["iteration_s_high"]) or 0.0 for _, row in bars)])
    axes.set_xlim(0, 1.03 * min(widest, 1.5 * longest))
    axes.set_ylim(places[-1] + 0.8, -0.8)
    middles = [sum(at) / len(at) for at in at_label.values()]
    name_bars(axes, middles, at_label, "milliseconds a step")
    legend_below(
        figure, [Patch(facecolor=colours[name], **_EDGE, label=name) for name in names], "input from"
    )
    return figure
