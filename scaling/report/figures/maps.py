"""Maps: who comes late to the exchange, by ranks and steps; how busy it keeps the links, by aggregators."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from scaling.analysis.columns import by_key
from scaling.analysis.groups import CellGroup, main_variant
from scaling.analysis.links import CellLinks, all_links
from scaling.analysis.samples import CellResult, Floats, IterationLaunch
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import LATE_COLOURS, WIDTH, new_figure, one_plot
from scaling.report.figures.svg import with_tip
from scaling.report.formats import megabytes, percent

CAPTION = (
    "How much later than the first rank each rank arrived at the first exchange of a step, on the most "
    "workers, in the profiled steps of the first launch (arrived_after_first_s of budget.csv; skew_s is "
    "the median of the latest rank's). A row that is dark throughout is a straggler; a dark column is a step "
    "that was disturbed."
)
BRIGHTEST_PERCENTILE = 99  # the scale ends there: a single hiccup would leave all else pale
TALLEST_PANEL = 2.4  # in inches, however many ranks there are
MOST_STEPS = 100  # more of a launch's profiled steps are not drawn


_MAP: Any = {"cmap": LATE_COLOURS, "aspect": "auto", "interpolation": "none"}


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
    figure = new_figure(title, 1.0 + height * len(panels))
    axes_list = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    everything = np.concatenate([panel.late_ms.ravel() for panel in panels])
    brightest = float(np.percentile(everything, BRIGHTEST_PERCENTILE)) or float(everything.max()) or 1.0
    for axes, panel in zip(axes_list, panels, strict=True):
        # An image with one pixel a rank and step: as shapes, they would be most of the page's bytes.
        extent = (0, len(panel.iterations), len(panel.late_ms), 0)
        mesh = axes.imshow(panel.late_ms, vmin=0.0, vmax=brightest, extent=extent, **_MAP)
        _separate_ranks(axes, panel)
        num_ranks = len(panel.late_ms)
        skew_ms = float(np.median(panel.late_ms.max(axis=0)))
        axes.set_title(f"{panel.aggregator}: the last comes {skew_ms:.3g} ms after the first", loc="left")
        axes.set_ylim(num_ranks, 0)
        ranks = range(0, num_ranks, max(1, num_ranks // 8))  # of many, some
        axes.set_yticks([rank + 0.5 for rank in ranks], list(map(str, ranks)))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("rank")
        axes.grid(visible=False)
    axes_list[-1].set_xlim(0, max(len(panel.iterations) for panel in panels))
    axes_list[-1].set_xlabel("profiled step")
    extend = "max" if everything.max() > brightest else "neither"
    figure.colorbar(mesh, ax=list(axes_list), label="ms after the first rank", extend=extend)
    return figure


def _separate_ranks(axes: Axes, panel: Arrivals) -> None:
    num_steps = panel.late_ms.shape[1]
    for rank, late_ms in enumerate(panel.late_ms):
        if rank:
            axes.axhline(rank, color="white", linewidth=1.0)
        text = (
            f"{panel.aggregator}, rank {rank}: median {np.median(late_ms):.3g} ms after the first rank, most "
            f"{late_ms.max():.3g} ms in step {panel.iterations[int(late_ms.argmax())]}"
        )
        axes.add_patch(with_tip(Rectangle((0, rank), num_steps, 1, facecolor="white", alpha=0), text))


OF_LINKS = (
    "Simulated, not measured: the time that the bytes of one exchange take at a link's full bandwidth, "
    "over the measured step (columns bytes and utilisation of links.csv). The bytes follow from the "
    "aggregator's schedule on topology.yaml. Star: a library's own exchange, shown as the schedule in the "
    "column kind."
)
MOST_LINKS = 32  # of more, those that are busiest in any cell
DARK = 0.55  # from this part of the scale on, numbers are white
ROW_HEIGHT = 0.19  # of a link, in inches
LABEL_ANGLE = 35
LINE_HEIGHT, CHARACTER_WIDTH = 0.15, 0.075  # of labels, in inches
COLUMNS_WIDTH = 3.4  # of all columns together, in inches
SHORTEST_LINE = 18  # characters: labels are not wrapped at fewer


@figure(section="links")
def link_map(data: FigureInput) -> Iterator[Drawn]:
    for group in data.groups_of("iteration"):
        if cells := data.links.get(group.slug):
            title = data.titled(
                f"Busy part of the links, {workers(max(group.world_sizes), group.unit)}", group
            )
            yield Drawn(f"links-{group.slug}", title, OF_LINKS, draw_links(title, cells), "links.csv", group)


def link_remarks(
    known: Mapping[str, Sequence[CellLinks]], left_out: Mapping[str, Mapping[str, str]]
) -> list[str]:
    pairs = dict.fromkeys(pair for reasons in left_out.values() for pair in reasons.items())
    remarks = [
        f"Not in Bytes on the links: {', '.join(name for name, _ in without)}: {reason}."
        for reason, without in by_key(pairs, lambda pair: pair[1]).items()
    ]
    cells = [cell for same in known.values() for cell in same]
    too_busy = dict.fromkeys(
        use.link.rstrip("<>") for cell in cells for use in cell.uses if use.utilisation > 1
    )
    if too_busy:
        remarks.append(
            f"More than 100% is impossible: the bandwidth that topology.yaml gives {', '.join(too_busy)} is "
            "lower than the real one. `scaling topology probe` measures it."
        )
    return remarks


def draw_links(title: str, cells: Sequence[CellLinks]) -> Figure:
    links, uses = busiest_links(cells), [{use.link: use for use in cell.uses} for cell in cells]
    labels = column_labels(cells)
    angle = math.radians(LABEL_ANGLE)
    longest = max(len(line) for label in labels for line in label.split("\n"))
    most_lines = max(label.count("\n") + 1 for label in labels)
    below = longest * CHARACTER_WIDTH * math.sin(angle) + most_lines * LINE_HEIGHT * math.cos(angle)
    figure, axes = one_plot(title, 0.8 + ROW_HEIGHT * len(links) + below, WIDTH)
    shares = np.array([[use[link].utilisation if link in use else 0.0 for use in uses] for link in links])
    image = axes.imshow(shares, vmin=0, vmax=1, extent=(0, len(cells), len(links), 0), **_MAP)
    for column, (cell, by_link) in enumerate(zip(cells, uses, strict=True)):
        for line, link in enumerate(links):
            use, told = by_link.get(link), "nothing"
            if use is not None:
                of_time = (
                    f"{percent(use.utilisation)} of the time at {use.bandwidth_bytes_per_s / 1e9:.3g} GB/s"
                )
                told = f"{megabytes(round(use.bytes))} MB a step, {of_time}"
            box = Rectangle((column, line), 1, 1, facecolor="none", edgecolor="#ffffff", linewidth=0.8)
            axes.add_patch(with_tip(box, f"{cell.name}, {link_name(link)}: {told} (simulated)"))
            if use is not None:
                share = percent(use.utilisation, 0 if use.utilisation > 0.1 else 1)
                # Not quite black and white: those are ink and paper, which change places on a dark page.
                ink: dict[str, Any] = {"color": "#fefefe" if use.utilisation > DARK else "#010101"}
                axes.text(column + 0.5, line + 0.5, share, ha="center", va="center", fontsize=7.5, **ink)
    turned: dict[str, Any] = {"rotation": LABEL_ANGLE, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks([at + 0.5 for at in range(len(cells))], labels, **turned)
    axes.set_yticks([at + 0.5 for at in range(len(links))], [link_name(link) for link in links])
    axes.grid(visible=False)
    bar = figure.colorbar(image, ax=axes, label="part of the step")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    return figure


def column_labels(cells: Sequence[CellLinks]) -> list[str]:
    """The cells' names, on as many lines as the width of a column allows."""
    most_lines = math.sin(math.radians(LABEL_ANGLE)) * COLUMNS_WIDTH / len(cells) / LINE_HEIGHT
    labels = []
    for cell in cells:
        name = f"{cell.name}{' *' if cell.assumed else ''}"
        width = max(SHORTEST_LINE, math.ceil(len(name) / max(1, int(most_lines))))
        labels.append(textwrap.fill(name, width, break_long_words=False))
    return labels


def busiest_links(cells: Sequence[CellLinks]) -> list[str]:
    most = dict.fromkeys(all_links(cells), 0.0)
    for cell in cells:
        for use in cell.uses:
            most[use.link] = max(most[use.link], use.utilisation)
    busiest = sorted(most, key=lambda link: -most[link])[:MOST_LINKS]
    return [link for link in most if link in busiest]


def link_name(link: str) -> str:
    """`gpu0-nvswitch0>` -> `gpu0 to nvswitch0`."""
    first, _, second = link.rstrip("<>").partition("-")
    ends = (second, first) if link.endswith("<") else (first, second)
    return f"{ends[0]} to {ends[1]}{'' if link[-1] in '<>' else ' (both ways)'}"
