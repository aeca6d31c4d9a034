"""Figures of experiments: values over an axis, a panel for each of something, a line an arm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from scaling.report.device.common import Variant
from scaling.report.device.results import STEP, DeviceResult
from scaling.report.figures.parts import WIDTH, add_tip, set_title
from scaling.report.figures.style import LineStyle

Floats = npt.NDArray[np.float64]


def new_figure(title: str, height: float, rows: int = 1, columns: int = 1, **how: Any) -> tuple[Figure, Any]:
    """A figure with its title, `height` inches high, and the array of its [rows, columns] panels."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    set_title(figure, title)
    return figure, figure.subplots(rows, columns, squeeze=False, **how)


def stacked(title: str, sizes: dict[str, int], row: float, room: float) -> tuple[Figure, list[Axes]]:
    """A figure of panels below each other, with names, that have so many rows each.

    Args:
        title: of the figure.
        sizes: name of a panel -> how many rows it has.
        row: height of one, in inches.
        room: what each panel takes besides, in rows.
    """
    heights = [room + size for size in sizes.values()]
    figure, panels = new_figure(title, 1.0 + row * sum(heights), len(sizes), height_ratios=heights)
    for axes, name in zip(panels[:, 0], sizes, strict=True):
        axes.set_title(name, loc="left")
    return figure, list(panels[:, 0])


@dataclass(frozen=True)
class Panel:
    """What one panel of a figure shows: the time of a step, or the rate, over an axis; a line an arm.

    Attributes:
        cells: that it shows.
        x: the axis: a variable, or a fact that is a number.
        label: of the axis; without it, `x`.
        title: of the panel.
        phase: whose time is shown.
        doubles: whether the axis has a tick at every value, as far apart as they double.
    """

    cells: Sequence[DeviceResult]
    x: str
    label: str = ""
    title: str = ""
    phase: str = STEP
    doubles: bool = False


@dataclass(frozen=True)
class DrawnLine:
    """Values over an axis, with their intervals, as a figure shows them.

    Attributes:
        name, colour, marker, dashes: of the line.
        at, values: of each point; NaN, where the line is broken, for one that has no number.
        low, high: ends of the interval; NaN where there is none.
    """

    name: str
    colour: str
    marker: str
    at: Floats
    values: Floats
    low: Floats
    high: Floats
    dashes: LineStyle = "-"

    @property
    def is_empty(self) -> bool:
        """Whether no point has a number."""
        return bool(np.isnan(self.values).all())


def seconds_of(cells: Iterable[DeviceResult], phase: str = STEP) -> Floats:
    """[3, num_cells] median of a phase, lower and upper end of its interval; NaN where there is none."""
    ends = [
        (estimate.median, estimate.low, estimate.high) if (estimate := cell.estimate(phase)) else (None,) * 3
        for cell in cells
    ]
    return np.array(ends, dtype=np.float64).reshape(-1, 3).T


def time_line(arm: Variant, cells: Iterable[DeviceResult], x: str, phase: str = STEP) -> DrawnLine:
    """Times of a phase in milliseconds over an axis; broken at cells without one."""
    ordered = sorted(cells, key=lambda cell: cell.value(x) or 0)
    at = np.array([cell.value(x) or 0 for cell in ordered], dtype=np.float64)
    median, low, high = 1e3 * seconds_of(ordered, phase)
    return DrawnLine(arm.name, arm.colour, arm.marker, at, median, low, high, arm.dashes)


def as_rates(line: DrawnLine) -> DrawnLine:
    """What `at` counts a second, for times in milliseconds; a time's lower bound is the rate's upper one."""
    values, low, high = (1e3 * line.at / times for times in (line.values, line.high, line.low))
    return replace(line, values=values, low=low, high=high)


def draw_lines(axes: Axes, lines: Iterable[DrawnLine], unit: str) -> None:
    """All lines with markers, intervals as bars, and a tip a point."""
    for line in lines:
        axes.plot(line.at, line.values, **look(line), linewidth=1.2)
        for at, value, low, high in zip(line.at, line.values, line.low, line.high, strict=True):
            if np.isnan(value):
                continue
            if low > 0 and high < np.inf:
                axes.plot([at, at], [low, high], color=line.colour, linewidth=0.9)
            add_tip(axes, at, value, f"{line.name}, {at:,g}: {value:.3g} {unit}")


def handles(hues: Iterable[DrawnLine | Variant]) -> list[Artist]:
    """Entries of a legend."""
    return [Line2D([], [], label=hue.name, **look(hue)) for hue in hues]


def look(hue: DrawnLine | Variant) -> dict[str, Any]:
    """Of a line and of its entry in a legend."""
    hollow = {} if hue.dashes == "-" else {"linestyle": hue.dashes, "markerfacecolor": "white"}
    return {"color": hue.colour, "marker": hue.marker, "markersize": 4, **hollow}


def handle(label: str, **look: Any) -> Line2D:
    """An entry of a legend."""
    return Line2D([], [], markersize=4, label=label, **look)


def log_axes(axes: Axes, x: str, y: str) -> None:
    """Both logarithmic, ticks at powers of ten and numbers without exponents as far as they are short.

    What is drawn is to be drawn before: an axis of less than two powers of ten has ticks at 2 and 5, too.
    """
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        is_short = low > 0 and high / low < 100
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_short else (1.0,), numticks=7))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def short(value: float) -> str:
    """`0.01`, `100`, `1k`, `1M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
