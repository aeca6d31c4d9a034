"""Seconds to the target accuracy as bars, with what was predicted beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scaling.analysis.formats import percent
from scaling.report.figures.parts import WIDTH, add_tip, legend_below, set_title
from scaling.report.figures.style import SKY_BLUE, VERMILLION
from scaling.report.figures.svg import with_tip
from scaling.report.target_data import TargetBar

_BAR: Any = {"facecolor": SKY_BLUE, "edgecolor": "#202020", "linewidth": 0.4}
_PREDICTED: Any = {"color": VERMILLION, "marker": "D", "markersize": 4.5, "linestyle": ""}


def draw_target(title: str, bars: Sequence[TargetBar]) -> Figure:
    """One bar a combination, a diamond with an interval where it was predicted, words where it was missed."""
    figure = Figure(figsize=(WIDTH, 1.6 + 0.22 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    for place, bar in enumerate(bars):
        if bar.seconds is not None:
            (drawn,) = axes.barh(place, bar.seconds, height=0.7, **_BAR)
            with_tip(drawn, f"{bar.name}: {bar.seconds:.4g} s to {percent(bar.target)}")
        else:
            axes.text(0, place, f"  {bar.state}", va="center", fontsize=8)
        if bar.predicted_s is not None:
            if bar.low_s is not None and bar.high_s is not None:
                axes.plot([bar.low_s, bar.high_s], [place, place], color=VERMILLION, linewidth=1.2)
            axes.plot([bar.predicted_s], [place], **_PREDICTED)
            interval = "" if bar.low_s is None else f" ({bar.low_s:.4g} to {bar.high_s:.4g})"
            add_tip(axes, bar.predicted_s, place, f"{bar.name}: predicted {bar.predicted_s:.4g} s{interval}")
    axes.set_xlim(left=0)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds of training to the target, without evaluation")
    set_title(figure, title)
    handles: list[Any] = [Patch(label="measured", **_BAR)]
    if any(bar.predicted_s is not None for bar in bars):
        handles.append(Line2D([], [], label="predicted: iteration time x iterations", **_PREDICTED))
    legend_below(figure, handles)
    return figure
