"""Seconds to the target accuracy as bars, measured and predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scaling.analysis.columns import Row, shares_gpus
from scaling.analysis.groups import Group
from scaling.analysis.learning import over_seeds
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    WIDTH,
    add_tip,
    legend_below,
    set_title,
    title_with_recipe,
)
from scaling.report.figures.style import SKY_BLUE, VERMILLION
from scaling.report.figures.svg import with_tip
from scaling.report.formats import percent

CAPTION = (
    "Seconds of training, without evaluation, to the end of the first epoch that reaches the target (column "
    "seconds_to_target; the median over repeats and seeds, only if all reach it). Predicted: the iteration "
    "time of the timed cell that takes the same step x the iterations to the target, with the 95% interval "
    "of both (columns predicted_s_to_target and its bounds; of one launch with its noise floor), with one "
    "training without that of the iterations; the gap is what a training does besides its steps, and "
    "augmentation where the timed step has none (column prediction_lacks)."
)

_BAR: Any = {"facecolor": SKY_BLUE, "edgecolor": "#202020", "linewidth": 0.4}

_PREDICTED: Any = {"color": VERMILLION, "marker": "D", "markersize": 4.5, "linestyle": ""}


@figure(section="answer")
def target(data: FigureInput) -> Iterator[Drawn]:
    """One a group of trainings that has a combination that reached its target."""
    for group in data.groups_of("convergence"):
        if bars := target_bars(group):
            title = title_with_recipe(group)
            yield Drawn(f"target-{group.slug}", title, CAPTION, draw_target(title, bars), group=group)


@dataclass(frozen=True)
class TargetBar:
    """One combination of aggregator and world size.

    Attributes:
        name: of it, for people.
        target: the accuracy, 0 to 1.
        seconds: measured; None where it was not reached.
        state: why not, or `reached`.
        predicted_s, low_s, high_s: iteration time x iterations, with its interval; None where there is none.
    """

    name: str
    target: float
    seconds: float | None
    state: str
    predicted_s: float | None
    low_s: float | None
    high_s: float | None


def target_bars(group: Group) -> list[TargetBar]:
    """Those that aimed at a target and have a time, in the table's order; [] where none reached it."""
    bars = [
        TargetBar(
            f"{group.name(row)}, {workers(row['world_size'])}{_seeds(row)}",
            row["target_accuracy"],
            row["seconds_to_target"],
            str(row["target_state"] or ""),
            row["predicted_s_to_target"],
            row["predicted_s_to_target_low"],
            row["predicted_s_to_target_high"],
        )
        for row in over_seeds(group.rows)
        if row["target_accuracy"] is not None and row["repeats"] and not shares_gpus(row)
    ]
    return bars if any(bar.seconds is not None for bar in bars) else []


def _seeds(row: Row) -> str:
    """How many, where the seconds are their median."""
    return f", {row['num_seeds']} seeds" if (row["num_seeds"] or 1) > 1 else ""


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
