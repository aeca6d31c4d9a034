"""Samples or tokens a second over the workers: the same lines as those of the speedup, in their own unit."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.groups import CellGroup
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.scaling_lines import ScalingLine, caption_of, draw_scaling, lines_over_workers
from scaling.report.formats import rate
from scaling.report.titles import title_of

WHAT = (
    "{what} a second of all {worker}s (column {column}; ideal: one {worker} without exchange, "
    "times the number of {worker}s)"
)


@figure(section="speedup")
def throughput(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("iteration"):
        lines = throughput_lines(group)
        if len({size for line in lines for size in line.world_sizes}) > 1:
            title = data.titled("Throughput", group)
            column, unit = group.throughput
            ideal = _of_one_worker(group)
            drawing = draw_scaling(title, unit, lines, data.best_of(group), ideal, group.unit)
            samples = unit.removesuffix("/s").capitalize()
            what = WHAT.format(what=samples, worker=group.unit, column=column)
            caption = caption_of(what, lines, data.best_of(group))
            yield Drawn(f"rate-{group.slug}", title_of(group.given), caption, drawing, group=group)


def throughput_lines(group: CellGroup) -> list[ScalingLine]:
    column, unit = group.throughput
    return lines_over_workers(group, column, lambda row, ends: f"{rate(row[column])} {unit}{ends}")


def _of_one_worker(group: CellGroup) -> float | None:
    """Throughput of the baseline that the speedups are ratios to; None where there is none."""
    known = (row for row in group.rows if row["speedup"] is not None)
    return next((row[group.throughput[0]] / row["speedup"] for row in known), None)
