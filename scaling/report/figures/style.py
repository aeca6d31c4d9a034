"""How the figures look: a colour for each role of a line and each kind of a part; none means two things.

Device studies, which compare arms of their own, take the colours of M. Okabe, K. Ito, "Color Universal
Design", 2008.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scaling.analysis.columns import aggregator_order
from scaling.measure.budget import PARTS

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
    LONG_STEPS: "#3f3f3f",
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
