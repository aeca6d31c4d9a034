"""How the iteration responds to an axis: the bucket size, or where the input comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scaling.report.budget_data import Placed, Response
from scaling.report.figures.parts import (
    WIDTH,
    Looks,
    add_tip,
    aggregator_handle,
    legend_below,
    plain_ticks,
    set_title,
)
from scaling.report.figures.style import BLUE, GREY, ORANGE, SKY_BLUE, VERMILLION
from scaling.report.figures.svg import with_tip

_PLACEMENT_COLOURS = (SKY_BLUE, BLUE, ORANGE, VERMILLION, GREY)
_EDGE: Any = {"edgecolor": "#202020", "linewidth": 0.4}


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


def draw_placements(title: str, bars: Sequence[Placed]) -> Figure:
    """A bar for every input placement, aggregator by aggregator."""
    names = list(dict.fromkeys(bar.placement for bar in bars))
    colours = {name: _PLACEMENT_COLOURS[index % len(_PLACEMENT_COLOURS)] for index, name in enumerate(names)}
    places, ticks = _places(bars)
    figure = Figure(figsize=(WIDTH, 1.3 + 0.25 * (places[-1] + 1)), layout="constrained")
    axes = figure.add_subplot()
    for place, bar in zip(places, bars, strict=True):
        (drawn,) = axes.barh(place, bar.iteration_ms, height=0.8, facecolor=colours[bar.placement], **_EDGE)
        with_tip(drawn, f"{bar.aggregator}, input {bar.placement}: {bar.iteration_ms:.4g} ms an iteration")
        if bar.low_ms is not None and bar.high_ms is not None:
            axes.plot([bar.low_ms, bar.high_ms], [place, place], color="black", linewidth=1.2, marker="|")
    longest = max(bar.iteration_ms for bar in bars)
    widest = max([longest, *(bar.high_ms or 0.0 for bar in bars)])
    axes.set_xlim(0, 1.03 * min(widest, 1.5 * longest))
    axes.set_ylim(places[-1] + 0.8, -0.8)
    axes.set_yticks(list(ticks.values()), list(ticks))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("milliseconds an iteration")
    set_title(figure, title)
    patches = [
        Patch(facecolor=colours[name], edgecolor="#202020", linewidth=0.4, label=name) for name in names
    ]
    legend_below(figure, patches, "input from")
    return figure


def _places(bars: Sequence[Placed]) -> tuple[list[float], dict[str, float]]:
    """Of the bars, with a gap between aggregators, and of the aggregators' labels, at their middles."""
    places: list[float] = []
    for index, bar in enumerate(bars):
        step = 1.0 if index and bar.aggregator == bars[index - 1].aggregator else 1.6
        places.append(places[-1] + step if places else 0.0)
    own: dict[str, list[float]] = {}
    for place, bar in zip(places, bars, strict=True):
        own.setdefault(bar.aggregator, []).append(place)
    return places, {label: sum(at) / len(at) for label, at in own.items()}
