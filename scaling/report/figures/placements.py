"""The step by where its input comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scaling.analysis.columns import Row
from scaling.analysis.groups import CellGroup, main_variant, measured_at_most_workers, placement_name
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import WIDTH, in_ms, legend_below, set_title
from scaling.report.figures.style import FURTHER, MEASURED
from scaling.report.figures.svg import with_tip

CAPTION = (
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
            yield Drawn(f"input-{group.slug}", title, CAPTION, _draw_placements(title, bars), group=group)


@dataclass(frozen=True)
class Placed:
    """One aggregator's step with the input at one place, in milliseconds."""

    aggregator: str
    placement: str
    iteration_ms: float
    low_ms: float | None
    high_ms: float | None


def placed(group: CellGroup) -> list[Placed]:
    """A bar an aggregator and input placement at the largest world size; none if there is one place alone."""
    if not group.differs("input_placement"):
        return []
    bars = []
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        bucket_mb = main_variant(group, label)[0]["bucket_mb"]
        for row in measured_at_most_workers(group, label):
            if row["bucket_mb"] == bucket_mb:
                bars.append(_placed(row, several_workers=group.differs("loader_workers")))
    return bars


def _placed(row: Row, *, several_workers: bool) -> Placed:
    return Placed(
        row["aggregator"],
        placement_name(row, several_workers=several_workers),
        1000 * row["iteration_s"],
        in_ms(row["iteration_s_low"]),
        in_ms(row["iteration_s_high"]),
    )


def _draw_placements(title: str, bars: Sequence[Placed]) -> Figure:
    names = list(dict.fromkeys(bar.placement for bar in bars))
    colours = {name: _PLACEMENT_COLOURS[index % len(_PLACEMENT_COLOURS)] for index, name in enumerate(names)}
    places, ticks = _places(bars)
    longest = max(bar.iteration_ms for bar in bars)
    figure = Figure(figsize=(WIDTH, 1.3 + 0.25 * (places[-1] + 1)), layout="constrained")
    axes = figure.add_subplot()
    for place, bar in zip(places, bars, strict=True):
        (drawn,) = axes.barh(place, bar.iteration_ms, height=0.8, facecolor=colours[bar.placement], **_EDGE)
        with_tip(drawn, f"{bar.aggregator}, input {bar.placement}: {bar.iteration_ms:.4g} ms a step")
        if bar.low_ms is not None and bar.high_ms is not None:
            ends = [max(0.0, bar.low_ms), min(bar.high_ms, 1.5 * longest)]
            axes.plot(ends, [place, place], color="black", linewidth=1.2, marker="|")
    widest = max([longest, *(bar.high_ms or 0.0 for bar in bars)])
    axes.set_xlim(0, 1.03 * min(widest, 1.5 * longest))
    axes.set_ylim(places[-1] + 0.8, -0.8)
    axes.set_yticks(list(ticks.values()), list(ticks))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("milliseconds a step")
    set_title(figure, title)
    patches = [
        Patch(facecolor=colours[name], edgecolor="#202020", linewidth=0.4, label=name) for name in names
    ]
    legend_below(figure, patches, "input from")
    return figure


def _places(bars: Sequence[Placed]) -> tuple[list[float], dict[str, float]]:
    places: list[float] = []
    for index, bar in enumerate(bars):
        step = 1.0 if index and bar.aggregator == bars[index - 1].aggregator else 1.6
        places.append(places[-1] + step if places else 0.0)
    at_label: dict[str, list[float]] = {}
    for place, bar in zip(places, bars, strict=True):
        at_label.setdefault(bar.aggregator, []).append(place)
    return places, {label: sum(at) / len(at) for label, at in at_label.items()}
