"""How the figures look: colours that colour-blind readers can tell apart, and markers that do without colour.

Reference: M. Okabe, K. Ito, "Color Universal Design", 2008 (the palette; its yellow is left to
the bars, which have an outline).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scaling.analysis.columns import aggregator_order
from scaling.measure.budget import PARTS

BLACK, ORANGE, SKY_BLUE, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#7f7f7f"

BEST, REFERENCE, BOUND, IDEAL, OTHER = "#0b6e4f", "#2457a6", "#111111", "#6b7280", "#b5b5b5"
"""Of the line that is the answer, the library's all-reduce, the bound without exchange, ideal speedup, and
all others."""

GROUPED_PARTS = {
    "computation": "#6f9bd1",
    "exposed communication": "#d1662e",
    "encoding, decoding": "#b9a3cc",
    "host copies and sums": "#d8c26a",
    "input, update, other": "#8f8f8f",
}
"""The parts of a step, summed to five, -> their colours, which no line has."""

_LINE_COLOURS = (BLACK, BLUE, ORANGE, GREEN, VERMILLION, SKY_BLUE, PURPLE, GREY)
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

_PART_LOOKS = {
    "input": (GREY, ""),
    "h2d": (YELLOW, ""),
    "forward": (SKY_BLUE, ""),
    "backward": (BLUE, ""),
    "encode": (PURPLE, ""),
    "d2h": (ORANGE, ""),
    "exposed_comm": (VERMILLION, ""),
    "reduce": (GREEN, ""),
    "decode": (PURPLE, "////"),
    "clip": (GREY, "////"),
    "update": ("#404040", ""),
    "h2d_result": (YELLOW, "////"),
    "wait": ("#ffffff", "||||"),
    "unattributed": ("#d9d9d9", "xxxx"),
}
assert set(_PART_LOOKS) == set(PARTS)

HIDDEN_LOOK: Any = {"facecolor": "#ffffff", "edgecolor": VERMILLION, "linewidth": 1.0}
"""Communication under the computation: outlined, since it takes no time of the step."""

LATE_COLOURS = "YlOrBr"
"""From pale to dark, so that it can be read without its hues."""

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
    """An aggregator's colour and marker, the same in every figure of a report."""

    colour: str
    marker: str


def aggregator_looks(labels: Iterable[str]) -> dict[str, Look]:
    """Label -> look. No two of the first 88 aggregators look alike."""
    ordered = sorted(set(labels), key=aggregator_order)
    return {
        label: Look(_LINE_COLOURS[index % len(_LINE_COLOURS)], _MARKERS[index % len(_MARKERS)])
        for index, label in enumerate(ordered)
    }


def line_styles(world_sizes: Iterable[int]) -> dict[int, LineStyle]:
    """World size -> dashes; one alone is solid."""
    return {
        world_size: _DASHES[index % len(_DASHES)] for index, world_size in enumerate(sorted(set(world_sizes)))
    }


def part_look(name: str) -> dict[str, Any]:
    """The bar's face and hatching for a part of a step."""
    colour, hatch = _PART_LOOKS[name]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "#202020", "linewidth": 0.4}
