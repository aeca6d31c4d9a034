"""The break-even line: widths over batches, with the ratio of the two times at every measured point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scaling.report.device.common import Arm, times
from scaling.report.device.crossover import Crossing, bounds_text, rounded
from scaling.report.device.drawing import log_axes
from scaling.report.figures.parts import WIDTH, add_tip, legend_below, set_title
from scaling.report.figures.style import BLUE, VERMILLION

Ratios = Mapping[tuple[int, int], float | None]
Crossings = Mapping[int, Crossing | None]

GPU_WINS, CPU_WINS = VERMILLION, BLUE
MARGIN = 1.9
"""Room beyond the outermost points, as a factor."""


def draw_break_even(title: str, panels: Sequence[tuple[Arm, Ratios, Crossings]]) -> Figure:
    """A panel for each way of launching the step on the GPU.

    Args:
        title: of the figure.
        panels: the arm; (batch, width) -> time on the CPU over that on the GPU; batch -> break-even width.
    """
    figure = Figure(figsize=(WIDTH, 0.9 + 3.4 * len(panels)), layout="constrained")
    set_title(figure, title)
    for axes, (arm, ratios, crossings) in zip(
        figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True
    ):
        _draw(axes, ratios, crossings)
        axes.set_title(f"{arm.name} against the fastest CPU threads", loc="left")
    legend_below(
        figure,
        [
            Line2D([], [], color="black", marker="D", markersize=4, label="break-even width"),
            Patch(color="#999999", alpha=0.35, label="its 95% interval"),
            Patch(color=GPU_WINS, label="CPU / GPU: GPU faster"),
            Patch(color=CPU_WINS, label="CPU faster"),
        ],
    )
    return figure


def _draw(axes: Axes, ratios: Ratios, crossings: Crossings) -> None:
    batches, widths = sorted({b for b, _ in ratios}), sorted({w for _, w in ratios})
    log_axes(axes, "batch", "width of the hidden layers")
    axes.set_xlim(batches[0] / MARGIN, batches[-1] * MARGIN**2)
    axes.set_ylim(widths[0] / MARGIN, widths[-1] * MARGIN)
    axes.set_xticks(batches, labels=[f"{batch:,}" for batch in batches])
    axes.set_yticks(widths, labels=[f"{width:,}" for width in widths])
    for (batch, width), ratio in ratios.items():
        _draw_ratio(axes, batch, width, ratio)
    _draw_line(axes, crossings, widths)


def _draw_ratio(axes: Axes, batch: int, width: int, ratio: float | None) -> None:
    if ratio is None:
        axes.plot([batch], [width], marker="x", color="#7f7f7f", markersize=4)
        return
    text = times(ratio).removesuffix(" times")
    colour = GPU_WINS if ratio > 1 else CPU_WINS
    axes.plot([batch], [width], marker="o", color=colour, markersize=2.5)
    beside: Any = {"textcoords": "offset points", "xytext": (6, 0), "verticalalignment": "center"}
    axes.annotate(text, (batch, width), color=colour, fontsize=8, fontweight="bold", zorder=4, **beside)
    add_tip(axes, batch, width, f"batch {batch:,}, width {width:,}: CPU time / GPU time = {ratio:.3g}")


def _draw_line(axes: Axes, crossings: Crossings, widths: Sequence[int]) -> None:
    """The line through the batches that have a break-even width, and a band where it has an interval."""
    floor, ceiling = widths[0] / MARGIN, widths[-1] * MARGIN
    known = [
        (batch, one) for batch, one in sorted(crossings.items()) if one is not None and one.at is not None
    ]
    axes.plot(
        [batch for batch, _ in known],
        [one.at for _, one in known if one.at is not None],
        color="black",
        marker="D",
        markersize=4,
        linewidth=1.2,
        zorder=3,
    )
    with_interval = [(batch, one) for batch, one in known if one.has_interval]
    low = [one.low if one.low is not None else floor for _, one in with_interval]
    high = [one.high if one.high is not None else ceiling for _, one in with_interval]
    at = [batch for batch, _ in with_interval]
    axes.fill_between(at, low, high, color="#999999", alpha=0.35, linewidth=0)
    for batch, one, bottom, top in zip(at, (one for _, one in with_interval), low, high, strict=True):
        axes.plot([batch, batch], [bottom, top], color="black", linewidth=0.9, zorder=3)
        assert one.at is not None
        add_tip(
            axes, batch, one.at, f"batch {batch:,}: break-even width {rounded(one.at)} {bounds_text(one)}"
        )
