"""Who comes late to the exchange: a map of ranks and steps for every aggregator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from scaling.analysis.groups import CellGroup, main_variant
from scaling.analysis.samples import CellResult, Floats, IterationLaunch
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import WIDTH, set_title
from scaling.report.figures.style import LATE_COLOURS
from scaling.report.figures.svg import with_tip

CAPTION = (
    "How much later than the first rank each rank arrived at the first exchange of a step, on the most "
    "workers, in the profiled steps of the first launch (arrived_after_first_s of budget.csv; skew_s is "
    "the median of the latest rank's). A row that is dark throughout is a straggler; a dark column is a step "
    "that was disturbed."
)
BRIGHTEST_PERCENTILE = 99  # the scale ends there: a single hiccup would leave all else pale
TALLEST_PANEL = 2.4  # in inches, however many ranks there are
MOST_STEPS = 100  # more of a launch's profiled steps are not drawn


@figure(section="budget")
def late_ranks(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("iteration"):
        if panels := arrivals(group, data.cells):
            title = data.titled(f"Late arrivals, {workers(max(group.world_sizes), group.unit)}", group)
            drawing = _draw_arrivals(title, panels)
            yield Drawn(f"arrivals-{group.slug}", title, CAPTION, drawing, "budget.csv", group)


@dataclass(frozen=True)
class Arrivals:
    """One cell's arrivals at the first exchange: `late_ms` [rank, step] after the first rank's."""

    aggregator: str
    iterations: list[int]
    late_ms: Floats


def arrivals(group: CellGroup, cells: Mapping[str, CellResult]) -> list[Arrivals]:
    """One for each aggregator with known arrivals at the largest world size: those of its first launch."""
    known = []
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        for row in main_variant(group, label):
            if row["world_size"] == max(group.world_sizes) > 1:
                launches = [_arrivals(group.name(row), launch) for launch in cells[row["cell_id"]].launches]
                known += [first for first in launches if first is not None][:1]
    return known


def _arrivals(name: str, launch: IterationLaunch) -> Arrivals | None:
    steps = [
        (step.iteration, [rank.arrived_after_first_s for rank in ranks])
        for step, ranks in zip(launch.profiled_steps, launch.budgets, strict=True)
    ]
    known = [(number, late_s) for number, late_s in steps if None not in late_s][:MOST_STEPS]
    if not known:
        return None
    late_ms = 1000 * np.array([late_s for _, late_s in known], dtype=np.float64).T
    return Arrivals(name, [number for number, _ in known], late_ms)


def _draw_arrivals(title: str, panels: Sequence[Arrivals]) -> Figure:
    height = min(TALLEST_PANEL, 0.5 + 0.16 * max(len(panel.late_ms) for panel in panels))
    figure = Figure(figsize=(WIDTH, 1.0 + height * len(panels)), layout="constrained")
    axes_list = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    everything = np.concatenate([panel.late_ms.ravel() for panel in panels])
    brightest = float(np.percentile(everything, BRIGHTEST_PERCENTILE)) or float(everything.max()) or 1.0
    for axes, panel in zip(axes_list, panels, strict=True):
        num_steps = len(panel.iterations)
        # An image with one pixel a rank and step: as shapes, they would be most of the page's bytes.
        mesh = axes.imshow(
            panel.late_ms,
            cmap=LATE_COLOURS,
            vmin=0.0,
            vmax=brightest,
            aspect="auto",
            interpolation="none",
            extent=(0, num_steps, len(panel.late_ms), 0),
        )
        _separate_ranks(axes, panel)
        num_ranks = len(panel.late_ms)
        skew_ms = float(np.median(panel.late_ms.max(axis=0)))
        axes.set_title(f"{panel.aggregator}: the last comes {skew_ms:.3g} ms after the first", loc="left")
        axes.set_ylim(num_ranks, 0)
        axes.set_yticks(*_rank_ticks(num_ranks))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("rank")
        axes.grid(visible=False)
    axes_list[-1].set_xlim(0, max(len(panel.iterations) for panel in panels))
    axes_list[-1].set_xlabel("profiled step")
    extend = "max" if everything.max() > brightest else "neither"
    figure.colorbar(mesh, ax=list(axes_list), label="ms after the first rank", extend=extend)
    set_title(figure, title)
    return figure


def _separate_ranks(axes: Axes, panel: Arrivals) -> None:
    """White lines between ranks, and over each rank's row what it tells."""
    num_steps = panel.late_ms.shape[1]
    for rank, late_ms in enumerate(panel.late_ms):
        if rank:
            axes.axhline(rank, color="white", linewidth=1.0)
        text = (
            f"{panel.aggregator}, rank {rank}: median {np.median(late_ms):.3g} ms after the first rank, most "
            f"{late_ms.max():.3g} ms in step {panel.iterations[int(late_ms.argmax())]}"
        )
        axes.add_patch(with_tip(Rectangle((0, rank), num_steps, 1, facecolor="white", alpha=0), text))


def _rank_ticks(num_ranks: int) -> tuple[list[float], list[str]]:
    """At the middle of rows; of many ranks, some."""
    every = max(1, num_ranks // 8)
    ranks = range(0, num_ranks, every)
    return [rank + 0.5 for rank in ranks], [str(rank) for rank in ranks]
