"""Speedup over the workers: the best aggregator, the library's all-reduce and the bounds; others in grey."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.columns import Row
from scaling.analysis.groups import CellGroup
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.scaling_lines import ScalingLine, caption_of, draw_scaling, lines_over_workers
from scaling.report.formats import percent
from scaling.report.titles import title_of

WHAT = "Throughput relative to one {} without exchange"


@figure(section="answer")
def speedup(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("iteration"):
        lines = speedup_lines(group)
        if len({size for line in lines for size in line.world_sizes}) > 1:
            title = data.titled(f"Speedup over one {group.unit}", group)
            drawing = draw_scaling(title, "speedup", lines, data.best_of(group), 1.0, group.unit)
            caption = caption_of(WHAT.format(group.unit), lines, data.best_of(group))
            yield Drawn(f"speedup-{group.slug}", title_of(group.given), caption, drawing, group=group)


def speedup_lines(group: CellGroup) -> list[ScalingLine]:
    """One line an aggregator that has a speedup, with its interval, which holds the baseline's scatter."""
    return lines_over_workers(group, "speedup", _tip)


def _tip(row: Row, interval: str) -> str:
    return f"speedup {row['speedup']:.3g}{interval}, efficiency {percent(row['speedup'] / row['world_size'])}"
