"""Predicted against measured steps on logarithmic axes: on the diagonal the prediction was right."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator

from scaling.analysis.columns import has_no_model
from scaling.report.figures import parts
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.predictions import PredictedCell

CAPTION = (
    "Each cell's step as it was simulated before it was measured (column simulated_s of predicted.csv, "
    "upright bar: 95% interval of its inputs) against what was measured then (measured_s, level bar: its 95% "
    "interval); bars are cut off at the frame. On the dashed line the prediction was right, in the grey band "
    "within 10%; above it the prediction was too long."
)
BAND_RATIO = 0.10  # either side of the diagonal: predictions within it are within 10% of what was measured
BAND_COLOUR = "#d9d9d9"
DIAGONAL_COLOUR = "#999999"
ROOM = 1.15  # between the outermost points and the frame, as a ratio
MOST_COLUMNS = 2
MOST_TICKS = 6

TICK_STEPS: tuple[tuple[float, ...], ...] = (
    (1, 10),
    (1, 2, 5),
    (1, 1.5, 2, 3, 5, 7),
    (*(n / 10 for n in range(10, 20)), *range(2, 10)),
    tuple(n / 20 for n in range(20, 200)),
)
"""Of a decade, from coarse to fine."""


@figure(section="prediction")
def predicted(data: FigureInput) -> Iterator[Drawn]:
    if points := predicted_points(data.predicted):
        labels = [row["aggregator"] for row in data.rows if not has_no_model(row)]
        looks = parts.aggregator_looks([*labels, *(point.aggregator for point in points)])
        title = f"Predicted against measured, {len(points)} cell{'s' if len(points) > 1 else ''}"
        yield Drawn("predicted", title, CAPTION, draw_predictions(title, points, looks), "predicted.csv")


@dataclass(frozen=True)
class PredictedPoint:
    network: str
    aggregator: str
    measured_ms: float
    measured_low_ms: float | None
    measured_high_ms: float | None
    predicted_ms: float
    predicted_low_ms: float
    predicted_high_ms: float
    is_hollow: bool
    text: str


def predicted_points(predicted: Iterable[PredictedCell]) -> list[PredictedPoint]:
    """Those that were measured since."""
    points = []
    for cell in predicted:
        if cell.measured and cell.error_ratio is not None:
            values, names = cell.predicted, ("iteration_s", "iteration_s_low", "iteration_s_high")
            measured = [parts.in_ms(cell.measured.get(name)) for name in names]
            own = [1000 * values[name] for name in names]
            is_hollow = values.get("peer_access") is False
            text = f"{own[0]:.4g} ms predicted, {measured[0]:.4g} measured, {cell.error_ratio:+.1%}"
            who = str(values["model"]), str(values["aggregator"])
            point: Any = (*who, *measured, *own, is_hollow, f"{cell.name}: {text}")
            points.append(PredictedPoint(*point))
    return points


def draw_predictions(title: str, points: Sequence[PredictedPoint], looks: parts.Looks) -> Figure:
    networks = list(dict.fromkeys(point.network for point in points))
    columns = min(len(networks), MOST_COLUMNS)
    rows = -(-len(networks) // columns)
    figure = parts.new_figure(title, 1.2 + rows * min(parts.WIDTH / columns, 0.75 * parts.WIDTH))
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, network in zip(panels, networks, strict=False):
        _draw_panel(axes, network, [point for point in points if point.network == network], looks)
    for axes in panels[len(networks) :]:
        axes.set_visible(False)
    used = {point.aggregator for point in points}
    handles = [parts.aggregator_handle(label, looks) for label in looks if label in used]
    parts.legend_below(figure, [*handles, *_meanings(points)])
    return figure


def _draw_panel(axes: Axes, network: str, points: Sequence[PredictedPoint], looks: parts.Looks) -> None:
    # All points, and the band at them; intervals may be cut off.
    values = [value for point in points for value in (point.measured_ms, point.predicted_ms)]
    low, high = ends = [min(values) / ROOM, max(values) * ROOM]
    below, above = ([(1 + side) * end for end in ends] for side in (-BAND_RATIO, BAND_RATIO))
    axes.fill_between(ends, below, above, color=BAND_COLOUR, alpha=0.6, linewidth=0)
    axes.plot(ends, ends, color=DIAGONAL_COLOUR, linestyle=(0, (2, 2)), linewidth=1.2)
    for point in points:
        _draw_point(axes, point, looks)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    ticks = _ticks(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        parts.numbers_at(axis, FixedLocator(ticks))
    axes.set_title(network, loc="left")
    axes.set_xlabel("measured, ms a step")
    axes.set_ylabel("predicted (simulated), ms")


def _draw_point(axes: Axes, point: PredictedPoint, looks: parts.Looks) -> None:
    look, x, y = looks[point.aggregator], point.measured_ms, point.predicted_ms
    bar: dict[str, Any] = {"color": look.colour, "linewidth": 0.7, "alpha": 0.5}
    axes.plot([x] * 2, [point.predicted_low_ms, point.predicted_high_ms], **bar)
    if point.measured_low_ms and point.measured_high_ms:
        axes.plot([point.measured_low_ms, point.measured_high_ms], [y] * 2, **bar)
    face = "white" if point.is_hollow else look.colour
    axes.plot([x], [y], color=look.colour, marker=look.marker, linestyle="", markerfacecolor=face)
    parts.add_tip(axes, x, y, point.text)


def _ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in TICK_STEPS:
        ticks = sorted({step * 10.0**decade for decade in decades for step in steps})
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 3:
            return inside[:: -(-len(inside) // MOST_TICKS)]
    return [low * (high / low) ** part for part in (0.1, 0.5, 0.9)]


def _meanings(points: Sequence[PredictedPoint]) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=DIAGONAL_COLOUR, linestyle=(0, (2, 2)), label="predicted = measured"),
        Patch(facecolor=BAND_COLOUR, alpha=0.6, label=f"within {BAND_RATIO:.0%}"),
    ]
    if any(point.is_hollow for point in points):
        hollow = Line2D([], [], color=DIAGONAL_COLOUR, marker="o", linestyle="", markerfacecolor="white")
        hollow.set_label("hollow: host-only")
        handles.append(hollow)
    return handles
