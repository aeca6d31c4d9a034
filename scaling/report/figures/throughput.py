"""Samples a second over the workers: the same lines as those of the speedup, in their own unit."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.columns import Row
from scaling.analysis.groups import CellGroup
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.scaling_lines import ScalingLine, draw_scaling, lines_over_workers
from scaling.report.formats import rate
from scaling.report.titles import title_of

CAPTION = (
    "Samples a second of all workers (column samples_per_s). Bars: 95% intervals; a hollow point has "
    "none. Ideal: that of one worker without exchange, times the workers. Grey: the other aggregators."
)


@figure(section="speedup")
def throughput(data: FigureInput) -> Iterator[Drawn]:
    """One a group of several world sizes."""
    for group in data.groups_of("iteration"):
        lines = throughput_lines(group)
        if len({size for line in lines for size in line.world_sizes}) > 1:
            title = data.titled("Throughput", group)
            drawing = draw_scaling(title, "samples/s", lines, data.best, ideal=_of_one_worker(group))
            yield Drawn(f"rate-{group.slug}", title_of(group.given), CAPTION, drawing, group=group)


def throughput_lines(group: CellGroup) -> list[ScalingLine]:
    """One line an aggregator, in samples a second."""
    return lines_over_workers(group, "samples_per_s", _tip)


def _tip(row: Row, interval: str) -> str:
    return f"{rate(row['samples_per_s'])} samples/s{interval}"


def _of_one_worker(group: CellGroup) -> float | None:
    """Samples a second of the baseline that the speedups are ratios to; None where there is none."""
    known = (row for row in group.rows if row["speedup"] is not None)
    return next((row["samples_per_s"] / row["speedup"] for row in known), None)
