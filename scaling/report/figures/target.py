"""Seconds to the target accuracy as bars, measured and estimated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scaling.analysis.columns import Row, shares_gpus, workers_of
from scaling.analysis.groups import CellGroup
from scaling.analysis.learning import over_seeds
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import ANSWER_WIDTH, add_tip, legend_below, set_title
from scaling.report.figures.style import MEASURED, PREDICTED
from scaling.report.figures.svg import with_tip
from scaling.report.formats import percent
from scaling.report.titles import title_of

CAPTION = (
    "Seconds to the end of the first epoch that reaches the target, without evaluation (column "
    "seconds_to_target; median over repeats and seeds{line})."
)

PREDICTION = (
    " Estimated: time of a timed step x steps to the target, with its 95% interval{hollow}. The gap is what "
    "a training does besides its steps."
)

_BAR: Any = {"facecolor": MEASURED, "edgecolor": "#202020", "linewidth": 0.4}
_PREDICTED: Any = {"color": PREDICTED, "marker": "D", "markersize": 4.5, "linestyle": ""}


@figure(section="answer")
def target(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("convergence"):
        if bars := target_bars(group):
            goal = ", ".join(dict.fromkeys(percent(bar.target) for bar in bars))
            title = data.titled(f"Seconds to {goal}", group)
            line = "; black line: 95% interval over seeds" if any(bar.ends_s for bar in bars) else ""
            caption = f"{CAPTION.format(line=line)}{_prediction(bars)}"
            drawing = _draw_target(title, bars)
            yield Drawn(f"target-{group.slug}", title_of(group.given), caption, drawing, group=group)


@dataclass(frozen=True)
class TargetBar:
    """`ends_s`: of the 95% interval of the seconds over seeds, `low_s` and `high_s` of those estimated."""

    name: str
    target: float
    seconds: float | None
    ends_s: tuple[float, float] | None
    state: str
    predicted_s: float | None
    low_s: float | None
    high_s: float | None


def target_bars(group: CellGroup) -> list[TargetBar]:
    """Those that aimed at a target and have a time, in the table's order; [] where none reached it."""
    bars = [
        TargetBar(
            f"{group.name(row)}, {workers_of(row)}{_seeds(row)}",
            row["target_accuracy"],
            row["seconds_to_target"],
            _ends_s(row),
            str(row["target_state"] or ""),
            row["predicted_s_to_target"],
            row["predicted_s_to_target_low"],
            row["predicted_s_to_target_high"],
        )
        for row in over_seeds(group.rows)
        if row["target_accuracy"] is not None and row["repeats"] and not shares_gpus(row)
    ]
    return bars if any(bar.seconds is not None for bar in bars) else []


def _ends_s(row: Row) -> tuple[float, float] | None:
    low, high = row.get("seconds_to_target_low"), row.get("seconds_to_target_high")
    return None if low is None or high is None else (low, high)


def _prediction(bars: Sequence[TargetBar]) -> str:
    predicted = [bar for bar in bars if bar.predicted_s is not None]
    hollow = "; hollow: no interval" if any(bar.low_s is None for bar in predicted) else ""
    return PREDICTION.format(hollow=hollow) if predicted else ""


def _seeds(row: Row) -> str:
    """How many, where the seconds are their median."""
    return f", {row['num_seeds']} seeds" if (row["num_seeds"] or 1) > 1 else ""


def _draw_target(title: str, bars: Sequence[TargetBar]) -> Figure:
    figure = Figure(figsize=(ANSWER_WIDTH, 1.5 + 0.22 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    known_s = [bar.seconds or 0.0 for bar in bars] + [bar.predicted_s or 0.0 for bar in bars]
    ends_s = [bar.high_s or 0.0 for bar in bars] + [bar.ends_s[1] for bar in bars if bar.ends_s]
    longest_s = min(1.5 * max(known_s), 1.08 * max([*known_s, *ends_s]))
    for place, bar in enumerate(bars):
        if bar.seconds is not None:
            (drawn,) = axes.barh(place, bar.seconds, height=0.7, **_BAR)
            seeds = "" if bar.ends_s is None else " ({:.4g} to {:.4g} over seeds)".format(*bar.ends_s)
            with_tip(drawn, f"{bar.name}: {bar.seconds:.4g} s{seeds} to {percent(bar.target)}")
            if bar.ends_s is not None:
                low_s, high_s = max(0.0, bar.ends_s[0]), min(bar.ends_s[1], longest_s)
                axes.plot([low_s, high_s], [place - 0.2] * 2, color="#202020", linewidth=1.2)
        else:
            axes.text(0, place, f"  {bar.state}", va="center", fontsize=8)
        if bar.predicted_s is not None:
            if bar.low_s is not None and bar.high_s is not None:
                ends = [max(0.0, bar.low_s), min(bar.high_s, longest_s)]
                axes.plot(ends, [place, place], color=PREDICTED, linewidth=1.2)
            face = PREDICTED if bar.low_s is not None else "white"
            axes.plot([bar.predicted_s], [place], **_PREDICTED, markerfacecolor=face)
            interval = "" if bar.low_s is None else f" ({bar.low_s:.4g} to {bar.high_s:.4g})"
            add_tip(axes, bar.predicted_s, place, f"{bar.name}: estimated {bar.predicted_s:.4g} s{interval}")
    axes.set_xlim(0, longest_s)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds of training, without evaluation")
    set_title(figure, title)
    handles: list[Any] = [Patch(label="measured", **_BAR)]
    if any(bar.predicted_s is not None for bar in bars):
        handles.append(Line2D([], [], label="estimated: step time x steps", **_PREDICTED))
    legend_below(figure, handles)
    return figure
