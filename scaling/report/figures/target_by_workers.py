"""Seconds to a target by number of workers, a line a batch, before most of them are trained."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from scaling.analysis.columns import by_key, unit_of_workers, workers_of
from scaling.analysis.critical_batch import LearningPlan, learning_plans
from scaling.analysis.findings import Finding
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import (
    ANSWER_HEIGHT,
    BEST,
    OTHER,
    EndLabel,
    add_tip,
    label_ends,
    one_plot,
    plain_log,
    plain_ticks,
)
from scaling.report.formats import number
from scaling.report.text import text_of

CAPTION = (
    "Seconds of training, without evaluation: time of a timed step x steps fitted to trainings at {batches} "
    "batches, a line a batch. Bars: 95% intervals. Green: none is better in time and in {unit} hours. Ring: "
    "the knee, {knee}. Hollow: the batch is outside those trained. Diamond: a lossy exchange's own steps."
)


@figure(section="answer")
def target_by_workers(data: FigureInput) -> Iterator[Drawn]:
    for place, plan in enumerate(learning_plans(data.rows, data.cells)):
        if len(plan.by_workers) > 1:
            knee, goal = plan.knee.row, text_of(Finding("learning_goal", (), {"given": plan.given}))
            at = f"{workers_of(knee)} at batch {knee['global_batch']:,}"
            caption = CAPTION.format(batches=len(plan.trained), unit=unit_of_workers(knee), knee=at)
            yield Drawn(f"target-by-workers-{place}", goal, caption, _draw(f"Seconds: {goal}", plan))


def _draw(title: str, plan: LearningPlan) -> Figure:
    (figure, axes), labels, best = one_plot(title, ANSWER_HEIGHT), [], plan.front
    plain_ticks(axes, list(plan.by_workers))
    plain_log(axes, lambda value: f"{value:g}")
    for batch, same in by_key(plan.settings, lambda one: int(one.row["global_batch"])).items():
        fastest = by_key([one for one in same if not one.is_own], lambda one: int(one.row["world_size"]))
        line = [fastest[size][0] for size in sorted(fastest)]
        shown = [*line, *(one for one in same if one.is_own)]
        axes.plot([one.row["world_size"] for one in line], [one.seconds.value for one in line], color=OTHER)
        for one in shown:
            x, (y, low, high) = one.row["world_size"], one.seconds
            colour = BEST if one in best else "#6b7280"
            face = "white" if one.is_extrapolated else colour
            axes.plot([x, x], [low, high], color=colour, linewidth=0.8, alpha=0.6)
            axes.plot([x], [y], marker="D" if one.is_own else "o", color=colour, markerfacecolor=face)
            if one is plan.knee:
                axes.plot([x], [y], marker="o", markersize=11, color=BEST, markerfacecolor="none")
                axes.annotate("knee", (x, y), (7, -11), textcoords="offset points", color=BEST, fontsize=8)
            ends = f"{number(y)} s ({number(low)} to {number(high)})"
            add_tip(axes, x, y, f"{workers_of(one.row)}, batch {batch:,}, {one.row['aggregator']}: {ends}")
        labels.append(EndLabel((line or shown)[-1].seconds.value, f"{batch:,}", "#202020"))
    label_ends(axes, labels)
    axes.set_xlabel(f"{unit_of_workers(plan.knee.row)}s; right of the plot: the batch")
    axes.set_ylabel("seconds to the target")
    return figure
