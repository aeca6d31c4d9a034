"""What the drawings have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from scaling.analysis.columns import aggregator_name
from scaling.report.figures.style import Look
from scaling.report.figures.svg import POINTS_PER_INCH, with_tip

Looks = dict[str, Look]
WIDTH = 5.8  # of every figure, in inches: its text can be read on a phone, and next to the text of a paper
ANSWER_WIDTH = 4.6  # of the figures that answer: two of them fit side by side, and one on a phone
ANSWER_HEIGHT = 3.2  # of those over three numbers of workers or more
SHORT_HEIGHT = 2.5  # of those over fewer, which have less to show
TITLE_SIZE = 10.0  # of a figure's title, in points
TITLE_LEFT = 0.01  # its distance from the figure's edges, as a share of the width
LONGEST_LABEL = 18  # a longer label is set on two lines, so that it leaves room for the plot
LEGEND_CHARACTERS_PER_INCH = 13.0  # so many fit side by side below a figure
HANDLE_CHARACTERS = 8  # what an entry takes besides its label
LABEL_GAP = 0.06  # of the labels at the ends of lines, as a share of the plot in a figure of ANSWER_HEIGHT
TIP_SIZE = 11.0
"""Of the place that shows a point's tip, in points: a finger is less exact than the point's marker."""


def answer_height(num_sizes: int) -> float:
    """Of a figure over so many numbers of workers: the same for lines and for bars, which stand in a row."""
    return SHORT_HEIGHT if num_sizes < 3 else ANSWER_HEIGHT


def set_title(figure: Figure, title: str) -> None:
    """On the left, wrapped where the figure ends."""
    font = FontProperties(size=TITLE_SIZE)
    room = (1 - 2 * TITLE_LEFT) * POINTS_PER_INCH * figure.get_figwidth()
    lines = [""]
    for word in title.split():
        longer = f"{lines[-1]} {word}".lstrip()
        width, _, _ = text_to_path.get_text_width_height_descent(longer, font, ismath=False)
        if width <= room or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    figure.suptitle("\n".join(lines), x=TITLE_LEFT, horizontalalignment="left", fontsize=TITLE_SIZE)


def aggregator_handle(label: str, looks: Looks) -> Line2D:
    return Line2D([], [], color=looks[label].colour, marker=looks[label].marker, label=broken(label))


def broken(label: str) -> str:
    """A long label on two lines: its parameters begin the second."""
    name = aggregator_name(label)
    return label if len(label) <= LONGEST_LABEL or name == label else f"{name}\n{label[len(name) :]}"


def legend_below(
    figure: Figure | SubFigure, handles: Sequence[Artist], title: str | None = None, **how: Any
) -> None:
    longest = max(len(line) for handle in handles for line in str(handle.get_label()).split("\n"))
    room = LEGEND_CHARACTERS_PER_INCH * figure.bbox.width / figure.dpi
    columns = max(1, min(len(handles), int(room / (longest + HANDLE_CHARACTERS))))
    figure.legend(
        handles=handles, title=title, loc="outside lower left", alignment="left", ncols=columns, **how
    )


def add_tip(axes: Axes, x: float, y: float, text: str, series: str = "") -> None:
    """A point that is not seen, and shows the text when the pointer is over it."""
    (point,) = axes.plot([x], [y], marker="o", markersize=TIP_SIZE, color="white", linestyle="", alpha=0)
    with_tip(point, text, series)


@dataclass(frozen=True)
class EndLabel:
    """What is written at the right end of a line: its height, text, colour and series."""

    y: float
    text: str
    colour: str
    series: str = ""


def label_ends(axes: Axes, labels: Sequence[EndLabel], gap: float = LABEL_GAP, size: float = 9.0) -> None:
    """Writes labels right of the plot, each at its line's end, moved apart where they would overlap."""
    low, high = axes.transAxes.inverted(), axes.transData
    heights = {
        label: float(low.transform(high.transform((axes.get_xlim()[1], label.y)))[1]) for label in labels
    }
    ordered = sorted(labels, key=lambda label: heights[label])
    places = spread([min(1.0, max(0.0, heights[label])) for label in ordered], gap)
    # None is above the plot: it would be in the next one's place.
    places = [min(place, 1.0 - gap * (len(places) - 1 - index)) for index, place in enumerate(places)]
    for label, place in zip(ordered, places, strict=True):
        text = axes.text(
            1.02, place, label.text, transform=axes.transAxes, color=label.colour, va="center", fontsize=size
        )
        with_tip(text, "", label.series)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights, moved so that neighbours are a gap apart: each cluster stays around its middle."""
    clusters: list[tuple[list[float], float]] = []  # wanted heights, and where the lowest one is placed
    for height in heights:
        members, start = [height], height
        while clusters and start < clusters[-1][1] + gap * len(clusters[-1][0]):
            before, _ = clusters.pop()
            members = before + members
            start = sum(members) / len(members) - gap * (len(members) - 1) / 2
        clusters.append((members, start))
    return [start + gap * index for members, start in clusters for index in range(len(members))]


def draw_point(
    axes: Axes,
    place: tuple[float, float],
    interval: tuple[float, float],
    limits: tuple[float, float],
    colour: str,
    series: str = "",
) -> None:
    """A point with its interval, with an arrow where the limits cut it off; without one it is hollow."""
    low, high = interval
    face = "white" if math.isnan(low) else colour
    look: dict[str, Any] = {"marker": "o", "markersize": 4, "linestyle": "", "markerfacecolor": face}
    (point,) = axes.plot([place[0]], [place[1]], color=colour, **look)
    with_tip(point, "", series)
    if not math.isnan(low):
        ends = [max(low, limits[0]), min(high, limits[1])]
        (bar,) = axes.plot([place[0]] * 2, ends, color=colour, linewidth=1.0)
        with_tip(bar, "", series)
        for end, whole, arrow in ((ends[0], low, "v"), (ends[1], high, "^")):
            mark = "_" if end == whole else arrow
            (cap,) = axes.plot([place[0]], [end], color=colour, marker=mark, markersize=5, clip_on=False)
            with_tip(cap, "", series)


def plain_ticks(
    axes: Axes, values: Sequence[float], written: Callable[[float], str] = lambda value: f"{value:g}"
) -> None:
    """Ticks at those values of x, and numbers without exponents on both axes."""
    plain = FuncFormatter(lambda value, _: written(value))
    axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(plain)


def plain_log(axes: Axes, written: Callable[[float], str]) -> None:
    """The vertical axis on a log scale, with ticks at 1, 2 and 5 in a plain form."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def percent_tick(value: float) -> str:
    """A share at an axis: `99.5%`."""
    return f"{100 * value:g}%"


def in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
