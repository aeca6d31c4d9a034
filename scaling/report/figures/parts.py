"""What the drawings have in common: sizes, titles, labels and tips, and a colour for each role of a line and
each kind of a part; no colour means two things.

Device studies, which compare arms of their own, take the colours of M. Okabe, K. Ito, "Color Universal
Design", 2008.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, NullLocator

from scaling.analysis.columns import aggregator_name, aggregator_order
from scaling.measure.budget import PARTS
from scaling.report.figures.svg import POINTS_PER_INCH, with_tip

BLACK, ORANGE, SKY_BLUE, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
GREY = "#7f7f7f"
DEVICE_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, BLACK, PURPLE, SKY_BLUE)
BEST, REFERENCE, BOUND, IDEAL, OTHER = "#0b6e4f", "#2457a6", "#111111", "#6b7280", "#b5b5b5"
"""Of the line that is the answer, the library's all-reduce, the bound without exchange, ideal speedup, and
all others."""

FURTHER = ("#a3195b", "#00838f", "#8a5a00", "#6a3fb5")
"""Of four more aggregators, where a figure tells several from each other."""

MOST_COLOURED = 6  # lines that stand out in one plot; the others are grey
NEARLY_ALL = 0.9
"""From this accuracy on the error is drawn, on a log scale: accuracies would all look the same."""

OTHERS = "-others"  # the series of the grey lines; the minus: hidden on the page until asked for
ON_REQUEST = ' (on the page: press "show others" to show them)'  # of grey lines, in a caption
SHOW_OTHERS, DRAWN_OTHERS = 'Press "show others" to see the remaining ones', "Grey: the remaining ones"
"""The same on the page, where they are hidden at first, and where there is none."""

MEASURED, PREDICTED = "#8ba3b8", "#3d4852"
"""Of the bars and marks of figures that compare what was measured with a prediction."""

LONG_STEPS = "long steps: above the median"

GROUPED_PARTS = {
    "computation": "#6f9bd1",
    "exposed communication": "#d1662e",
    "encoding, decoding": "#b9a3cc",
    "copies and sums": "#d8c26a",
    "input, update, other": "#8f8f8f",
    LONG_STEPS: "#404040",
}
"""The parts of a step, summed, -> their colours, which no line has."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")
LineStyle = Literal["-"] | tuple[float, Sequence[float]]
_DASHES: tuple[LineStyle, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (9, 2)),
    (0, (3, 1.5, 1, 1.5, 1, 1.5)),
)

_COMPUTATION, _COMMUNICATION, _CODING, _HOST, _REST, _ = GROUPED_PARTS.values()

_PART_LOOKS = {
    "input": (_REST, "----"),
    "h2d": (_REST, "////"),
    "forward": (_COMPUTATION, "\\\\\\\\"),
    "backward": (_COMPUTATION, ""),
    "encode": (_CODING, ""),
    "d2h": (_HOST, "////"),
    "exposed_comm": (_COMMUNICATION, ""),
    "reduce": (_HOST, ""),
    "decode": (_CODING, "////"),
    "clip": (_REST, "xxxx"),
    "update": (_REST, ""),
    "h2d_result": (_HOST, "----"),
    "wait": (_COMMUNICATION, "||||"),
    "unattributed": ("#d9d9d9", "xxxx"),
}
"""Part of a step -> the colour of its kind, as in the figure of five parts, and its hatching."""
assert set(_PART_LOOKS) == set(PARTS)

HIDDEN_LOOK: Any = {"facecolor": "#ffffff", "edgecolor": _COMMUNICATION, "linewidth": 1.0}
"""Communication under the computation: outlined, since it takes no time of the step."""

LATE_COLOURS = "YlOrBr"  # from pale to dark, so that it can be read without its hues
SETTINGS: Any = {  # Any: versions of matplotlib differ in how they type the keys
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 5.0,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "savefig.dpi": 150,
    # Text stays text: smaller files, and a page can be searched for it.
    "svg.fonttype": "none",
    # Labels are the user's, and may hold a $.
    "text.parse_math": False,
    "text.usetex": False,
}


@dataclass(frozen=True)
class Look:
    colour: str
    marker: str


def aggregator_looks(labels: Iterable[str], first: Collection[str] = ()) -> dict[str, Look]:
    """Label -> look: at most `MOST_COLOURED` have a colour of their own, all_reduce among them."""
    ordered = sorted(set(labels), key=aggregator_order)
    colours = {"all_reduce": REFERENCE, "none": BOUND}
    further = sorted(
        (label for label in ordered if label not in colours), key=lambda label: label not in first
    )
    colours |= dict(zip(further, FURTHER, strict=False))
    return {
        label: Look(colours.get(label, OTHER), _MARKERS[index % len(_MARKERS)])
        for index, label in enumerate(ordered)
    }


def line_styles(world_sizes: Iterable[int]) -> dict[int, LineStyle]:
    """World size -> dashes; one alone is solid."""
    return {
        world_size: _DASHES[index % len(_DASHES)] for index, world_size in enumerate(sorted(set(world_sizes)))
    }


def part_look(name: str) -> dict[str, Any]:
    colour, hatch = _PART_LOOKS[name]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "#202020", "linewidth": 0.4}


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


def new_figure(title: str, height: float, width: float = WIDTH) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    set_title(figure, title)
    return figure


def one_plot(title: str, height: float, width: float = ANSWER_WIDTH) -> tuple[Figure, Axes]:
    figure = new_figure(title, height, width)
    return figure, figure.add_subplot()


def name_bars(axes: Axes, places: Iterable[float], names: Iterable[str], values: str, **how: Any) -> None:
    """Of level bars; what their lengths are stands below."""
    axes.set_yticks(list(places), list(names), **how)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(values)


def plate(pad: float) -> dict[str, Any]:
    """What hides lines behind a text."""
    return {"facecolor": "white", "edgecolor": "none", "pad": pad}


def aggregator_handle(label: str, looks: Looks) -> Line2D:
    return Line2D([], [], color=looks[label].colour, marker=looks[label].marker, label=broken(label))


def broken(label: str) -> str:
    name = aggregator_name(label)
    return label if len(label) <= LONGEST_LABEL or name == label else f"{name}\n{label[len(name) :]}"


def legend_below(figure: Figure | SubFigure, handles: Sequence[Artist], **how: Any) -> None:
    longest = max(len(line) for handle in handles for line in str(handle.get_label()).split("\n"))
    room = LEGEND_CHARACTERS_PER_INCH * figure.bbox.width / figure.dpi
    columns = max(1, min(len(handles), int(room / (longest + HANDLE_CHARACTERS))))
    figure.legend(handles=handles, loc="outside lower left", alignment="left", ncols=columns, **how)


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
    drawn = axes.plot([place[0]], [place[1]], color=colour, **look)
    if not math.isnan(low):
        ends = [max(low, limits[0]), min(high, limits[1])]
        drawn += axes.plot([place[0]] * 2, ends, color=colour, linewidth=1.0)
        for end, whole, arrow in ((ends[0], low, "v"), (ends[1], high, "^")):
            mark = "_" if end == whole else arrow
            drawn += axes.plot([place[0]], [end], color=colour, marker=mark, markersize=5, clip_on=False)
    for line in drawn:
        with_tip(line, "", series)


def plain_ticks(
    axes: Axes, values: Sequence[float], written: Callable[[float], str] = lambda value: f"{value:g}"
) -> None:
    numbers_at(axes.xaxis, FixedLocator(list(values)), written)
    numbers_at(axes.yaxis, axes.yaxis.get_major_locator(), written)


def numbers_at(axis: Axis, ticks: Locator, written: Callable[[float], str] = "{:g}".format) -> None:
    """Of an axis its ticks, with no minor ones between them, and how their numbers are written."""
    axis.set_major_locator(ticks)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))


def plain_log(axes: Axes, written: Callable[[float], str]) -> None:
    axes.set_yscale("log")
    numbers_at(axes.yaxis, LogLocator(subs=(1.0, 2.0, 5.0)), written)


def percent_tick(value: float) -> str:
    return f"{100 * value:g}%"


def in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
