"""The break-even line: widths over batches, with the ratio of the two times at every measured point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scaling.report.device.common import Arm, times
from scaling.report.device.crossover import Crossing, bounds_text, rounded
from scaling.report.device.drawing import handle, log_axes, new_figure
from scaling.report.figures.parts import add_tip, legend_below
from scaling.report.figures.style import BLUE, GREY, VERMILLION

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
    figure, grid = new_figure(title, 0.9 + 3.4 * len(panels), len(panels))
    for axes, (arm, ratios, crossings) in zip(grid[:, 0], panels, strict=True):
        _draw(axes, ratios, crossings)
        axes.set_title(f"{arm.name} against the fastest CPU threads", loc="left")
    legend_below(
        figure,
        [
            handle("break-even width", color="black", marker="D"),
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
        axes.plot([batch], [width], marker="x", color=GREY, markersize=4)
        return
    text = times(ratio).removesuffix(" times")
    colour = GPU_WINS if ratio > 1 else CPU_WINS
    axes.plot([batch], [width], marker="o", color=colour, markersize=2.5)
    offset: Any = {"textcoords": "offset points", "xytext": (6, 0), "verticalalignment": "center"}
    axes.annotate(text, (batch, width), color=colour, fontsize=8, fontweight="bold", zorder=4, **offset)
    add_tip(axes, batch, width, f"batch {batch:,}, width {width:,}: CPU time / GPU time = {ratio:.3g}")


def _draw_line(axes: Axes, crossings: Crossings, widths: Sequence[int]) -> None:
    """The line through the batches that have a break-even width, and a band where it has an interval."""
    floor, ceiling = widths[0] / MARGIN, widths[-1] * MARGIN
    known = {
        batch: crossing
        for batch, crossing in sorted(crossings.items())
        if crossing is not None and crossing.at is not None
    }
    places = [crossing.at or 0.0 for crossing in known.values()]
    axes.plot([*known], places, color="black", marker="D", markersize=4, linewidth=1.2, zorder=3)
    banded = {batch: crossing for batch, crossing in known.items() if crossing.has_interval}
    low = [crossing.low if crossing.low is not None else floor for crossing in banded.values()]
    high = [crossing.high if crossing.high is not None else ceiling for crossing in banded.values()]
    axes.fill_between([*banded], low, high, color="#999999", alpha=0.35, linewidth=0)
    for (batch, crossing), bottom, top in zip(banded.items(), low, high, strict=True):
        axes.plot([batch, batch], [bottom, top], color="black", linewidth=0.9, zorder=3)
        at = crossing.at or 0.0
        add_tip(axes, batch, at, f"batch {batch:,}: break-even width {rounded(at)} {bounds_text(crossing)}")
