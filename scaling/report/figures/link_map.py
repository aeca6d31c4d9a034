"""How busy an exchange keeps the links: a map of links and aggregators."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from scaling.analysis.links import CellLinks, LinkUse, all_links
from scaling.axes import workers
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import WIDTH, set_title
from scaling.report.figures.style import LATE_COLOURS
from scaling.report.figures.svg import with_tip
from scaling.report.formats import megabytes, percent

CAPTION = (
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
            yield Drawn(f"links-{group.slug}", title, CAPTION, draw_links(title, cells), "links.csv", group)


def link_remarks(
    known: Mapping[str, Sequence[CellLinks]], left_out: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """What a reader of the maps should know, in sentences."""
    names: dict[str, dict[str, None]] = {}
    for reasons in left_out.values():
        for name, reason in reasons.items():
            names.setdefault(reason, {})[name] = None
    remarks = [
        f"Not in Bytes on the links: {', '.join(without)}: {reason}." for reason, without in names.items()
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
    height = 0.8 + ROW_HEIGHT * len(links) + _labels_height(labels)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    shares = np.array([[use[link].utilisation if link in use else 0.0 for use in uses] for link in links])
    extent = (0, len(cells), len(links), 0)
    image = axes.imshow(
        shares, cmap=LATE_COLOURS, vmin=0, vmax=1, aspect="auto", interpolation="none", extent=extent
    )
    for column, (cell, by_link) in enumerate(zip(cells, uses, strict=True)):
        for line, link in enumerate(links):
            use = by_link.get(link)
            box = Rectangle((column, line), 1, 1, facecolor="none", edgecolor="#ffffff", linewidth=0.8)
            axes.add_patch(with_tip(box, f"{cell.name}, {link_name(link)}: {_use_text(use)} (simulated)"))
            if use is not None:
                _write_use(axes, (column + 0.5, line + 0.5), use, use.utilisation > DARK)
    axes.set_xticks(
        [at + 0.5 for at in range(len(cells))],
        labels,
        rotation=LABEL_ANGLE,
        ha="right",
        rotation_mode="anchor",
    )
    axes.set_yticks([at + 0.5 for at in range(len(links))], [link_name(link) for link in links])
    axes.grid(visible=False)
    bar = figure.colorbar(image, ax=axes, label="part of the step")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    set_title(figure, title)
    return figure


def _use_text(use: LinkUse | None) -> str:
    if use is None:
        return "nothing"
    return (
        f"{megabytes(round(use.bytes))} MB a step, {percent(use.utilisation)} of the time at "
        f"{use.bandwidth_bytes_per_s / 1e9:.3g} GB/s"
    )


def _write_use(axes: Axes, place: tuple[float, float], use: LinkUse, on_dark: bool) -> None:
    share = percent(use.utilisation, 0 if use.utilisation > 0.1 else 1)
    # Not quite black and white: those are the page's ink and paper, which change places in the dark.
    axes.text(
        *place, share, ha="center", va="center", fontsize=7.5, color="#fefefe" if on_dark else "#010101"
    )


def column_labels(cells: Sequence[CellLinks]) -> list[str]:
    """The cells' names, on as many lines as the width of a column allows."""
    most_lines = math.sin(math.radians(LABEL_ANGLE)) * COLUMNS_WIDTH / len(cells) / LINE_HEIGHT
    labels = []
    for cell in cells:
        name = f"{cell.name}{' *' if cell.assumed else ''}"
        width = max(SHORTEST_LINE, math.ceil(len(name) / max(1, int(most_lines))))
        labels.append(textwrap.fill(name, width, break_long_words=False))
    return labels


def _labels_height(labels: Sequence[str]) -> float:
    """What they take below the plot, in inches."""
    angle = math.radians(LABEL_ANGLE)
    longest = max(len(line) for label in labels for line in label.split("\n"))
    most_lines = max(label.count("\n") + 1 for label in labels)
    return longest * CHARACTER_WIDTH * math.sin(angle) + most_lines * LINE_HEIGHT * math.cos(angle)


def busiest_links(cells: Sequence[CellLinks]) -> list[str]:
    """Those that are drawn, equal ones together."""
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
