"""The figures that a device study declares: lines, bars, points, and a map of where the GPU takes less."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from scaling.device_studies.declaration import Bars, BreakEven, BreakEvenMap, Lines, Panels, Variant
from scaling.report.device.comparisons import Crossing, rounded, times
from scaling.report.device.findings import crossings, ratios
from scaling.report.device.results import DeviceResult, Results
from scaling.report.figures.parts import (
    BLACK,
    BLUE,
    DEVICE_COLOURS,
    GREY,
    VERMILLION,
    LineStyle,
    add_tip,
    legend_below,
    new_figure,
)

Floats = npt.NDArray[np.float64]
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
ROW_HEIGHT = 2.3
MARGIN = 1.9  # room beyond the outermost points of a map, as a factor
Panel = tuple[str, Panels, list[DeviceResult]]  # title, axis and cells


def _panels(title: str, height: float, rows: int = 1, columns: int = 1, **how: Any) -> tuple[Figure, Any]:
    figure = new_figure(title, height)
    return figure, figure.subplots(rows, columns, squeeze=False, **how)


def stacked(title: str, sizes: dict[str, int], row: float, room: float) -> tuple[Figure, list[Axes]]:
    heights = [room + size for size in sizes.values()]
    figure, panels = _panels(title, 1.0 + row * sum(heights), len(sizes), height_ratios=heights)
    for axes, name in zip(panels[:, 0], sizes, strict=True):
        axes.set_title(name, loc="left")
    return figure, list(panels[:, 0])


@dataclass(frozen=True)
class Hue:
    """How a line looks: the CPU's is dashed where the GPU has one of the same colour."""

    name: str
    colour: str
    marker: str
    dashes: LineStyle = "-"

    @property
    def look(self) -> dict[str, Any]:
        hollow = {} if self.dashes == "-" else {"linestyle": self.dashes, "markerfacecolor": "white"}
        return {"color": self.colour, "marker": self.marker, "markersize": 4, **hollow}


def hues(variants: Sequence[Variant]) -> list[Hue]:
    keys = [repr({**variant.where, "device": None}) for variant in variants]
    every_look = zip(cycle(DEVICE_COLOURS), cycle(MARKERS), strict=False)
    looks, made = dict(zip(dict.fromkeys(keys), every_look, strict=False)), []
    for variant, key in zip(variants, keys, strict=True):
        is_dashed = keys.count(key) > 1 and variant.where["device"] == "cpu"
        made.append(Hue(variant.name, *looks[key], (0, (4, 2)) if is_dashed else "-"))
    return made


def lines_of(declared: Lines, results: Results) -> list[Variant]:
    if isinstance(declared.lines, str):
        values = results.grouped(results.cells, declared.lines)
        return [Variant(results.label(value), {declared.lines: value}) for value in values]
    return [*(declared.lines or results.arms)]


def points_of(
    declared: Lines, results: Results, panel: Panels, cells: Iterable[DeviceResult]
) -> tuple[Floats, Floats]:
    """x, and [3, points] of the values with their intervals' ends; NaN where there is none."""
    ordered = sorted(cells, key=lambda cell: cell.value(panel.x) or 0)
    ends = []
    for cell in ordered:
        three: tuple[float | None, ...] = (None,) * 3
        if declared.over_first:
            first = ordered[0]
            difference = None if cell is first else cell.difference(first, panel.phase)
            if difference:
                three = (difference.ratio, *(difference.interval or (None, None)))
            elif cell is first and cell.estimate(panel.phase):
                three = (1.0, 1.0, 1.0)
        elif declared.per:
            three = cell.mean(panel.phase) or three
        elif estimate := cell.estimate(panel.phase):
            three = (estimate.median, estimate.low, estimate.high)
        ends.append(three)
    values = np.array(ends, dtype=np.float64).reshape(-1, 3).T
    if declared.per:
        values = np.array([cell.value(declared.per) or np.nan for cell in ordered]) / values[[0, 2, 1]]
    elif not declared.over_first:
        values = declared.scale * values
    at = [panel.scale * (cell.value(panel.x) or 0) for cell in ordered]
    return np.array(at, dtype=np.float64), values


def panels_of(declared: Lines, results: Results) -> Iterator[Panel]:
    for panel in declared.panels:
        cells = results.where(panel.where)
        groups = results.grouped(cells, *panel.by) if panel.by else {None: cells}
        for same in groups.values():
            if len(results.grouped(same, panel.x)) > (len(declared.panels) > 1 and not panel.by):
                yield results.text(panel.title, same[0]), panel, same


def draw_lines(declared: Lines, results: Results, title: str) -> Figure | None:
    panels = [*panels_of(declared, results)]
    timed = [cell for _, panel, cells in panels for cell in cells if cell.estimate(panel.phase)]
    variants = [one for one in lines_of(declared, results) if results.where(one.where, timed)]
    if not variants or (declared.over_first and len(timed) < 2):
        return None
    columns = min(declared.columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    height = 0.9 + (ROW_HEIGHT if len(panels) > 1 else 3.6) * rows
    figure, grid = _panels(title, height, rows, columns, sharey="row" if columns > 2 else False)
    looks = hues(variants)
    if declared.over_first:
        at = sorted({float(cell.value(panels[0][1].x)) for cell in timed})
        for axes in grid.flat:
            axes.plot(at, [x / at[0] for x in at], color=GREY, linestyle=(0, (5, 2)), linewidth=1.0)
    for axes, (name, panel, cells) in zip(grid.flat, panels, strict=False):
        for variant, hue in zip(variants, looks, strict=True):
            found = results.where(variant.where, cells)
            _draw_line(axes, hue, *points_of(declared, results, panel, found), declared.label)
        log_axes(axes, panel.label or panel.x, declared.label)
        if any(cell.value(panel.x) == 0 for cell in cells):
            axes.set_xscale("symlog", linthresh=1.0)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes.set_title(name, loc="left")
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    legend_below(figure, [Line2D([], [], label=hue.name, **hue.look) for hue in looks])
    return figure


def _draw_line(axes: Axes, hue: Hue, at: Floats, values: Floats, label: str) -> None:
    if np.isnan(values[0]).all():
        return
    axes.plot(at, values[0], **hue.look, linewidth=1.2)
    for x, (value, low, high) in zip(at, values.T, strict=True):
        if np.isnan(value):
            continue
        if low > 0 and high < np.inf:
            axes.plot([x, x], [low, high], color=hue.colour, linewidth=0.9)
        add_tip(axes, x, value, f"{hue.name}, {x:,g}: {value:.3g} {label}")


def log_axes(axes: Axes, x: str, y: str) -> None:
    """Both logarithmic, ticks at powers of ten and numbers without exponents as far as they are short. What
    is drawn is to be drawn before: an axis of less than two powers of ten has ticks at 2 and 5, too."""
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
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def draw_bars(declared: Bars, results: Results, title: str) -> Figure | None:
    timed = [cell for cell in results.where(declared.where) if cell.estimate()]
    groups = {
        results.text(declared.panel, cells[0]): cells
        for cells in results.grouped(timed, *declared.by).values()
    }
    if not groups:
        return None
    figure, panels = stacked(title, {name: len(cells) for name, cells in groups.items()}, 0.19, 1.6)
    values = [*results.grouped(timed, declared.colour)]
    colours = dict(zip(values, cycle(DEVICE_COLOURS), strict=False))
    for axes, cells in zip(panels, groups.values(), strict=True):
        for place, cell in enumerate(cells):
            _bar(axes, place, cell, colours[cell.value(declared.colour)], declared.mark)
        axes.set_yticks(range(len(cells)), [results.text(declared.bar, cell).strip() for cell in cells])
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
    panels[-1].set_xlabel("ms")
    legend_below(figure, [Patch(facecolor=colours[value], label=results.label(value)) for value in values])
    return figure


def _bar(axes: Axes, place: int, cell: DeviceResult, colour: str, mark: str) -> None:
    estimate = cell.estimate()
    assert estimate is not None
    ms = 1e3 * estimate.median
    axes.barh(place, ms, height=0.72, color=colour)
    if estimate.low is not None and estimate.high is not None:
        axes.plot([1e3 * estimate.low, 1e3 * estimate.high], [place] * 2, color=BLACK, linewidth=0.9)
    if mark and cell.estimate(mark):
        axes.plot([1e3 * cell.median(mark)] * 2, [place - 0.36, place + 0.36], color="white", linewidth=1.4)
    add_tip(axes, ms, place, f"{ms:.3g} ms")


def draw_map(declared: BreakEvenMap, results: Results, title: str) -> Figure | None:
    if not results.gpu_arms:
        return None
    cells = results.where(declared.where)
    figure, grid = _panels(title, 0.9 + 3.4 * len(results.gpu_arms), len(results.gpu_arms))
    xs, ys = ([*results.grouped(cells, name)] for name in (declared.x, declared.y))
    answer = BreakEven("", declared.y, where=declared.where, by=declared.x)
    for axes, arm in zip(grid[:, 0], results.gpu_arms, strict=True):
        log_axes(axes, declared.x, declared.y)
        axes.set_xlim(xs[0] / MARGIN, xs[-1] * MARGIN**2)
        axes.set_ylim(ys[0] / MARGIN, ys[-1] * MARGIN)
        axes.set_xticks(xs, labels=[f"{x:,}" for x in xs])
        axes.set_yticks(ys, labels=[f"{y:,}" for y in ys])
        found = ratios(results, cells, arm.where, {"device": "cpu"}, (declared.x, declared.y))
        for (x, y), difference in found.items():
            _ratio(axes, x, y, difference.ratio if difference else None)
        _break_even_line(axes, crossings(answer, results, arm))
        axes.set_title(f"{arm.name} against the CPU threads of least time", loc="left")
    line = Line2D([], [], color=BLACK, marker="D", markersize=4, label="break-even, with its 95% interval")
    gpu = Patch(color=VERMILLION, label="CPU / GPU: less time on the GPU")
    legend_below(figure, [line, gpu, Patch(color=BLUE, label="on the CPU")])
    return figure


def _ratio(axes: Axes, x: float, y: float, ratio: float | None) -> None:
    if ratio is None:
        axes.plot([x], [y], marker="x", color=GREY, markersize=4)
        return
    colour = VERMILLION if ratio > 1 else BLUE
    axes.plot([x], [y], marker="o", color=colour, markersize=2.5)
    offset: Any = {"textcoords": "offset points", "xytext": (6, 0), "verticalalignment": "center"}
    text = times(ratio).removesuffix(" times")
    axes.annotate(text, (x, y), color=colour, fontsize=8, fontweight="bold", zorder=4, **offset)
    add_tip(axes, x, y, f"{x:,}, {y:,}: CPU time / GPU time = {ratio:.3g}")


def _break_even_line(axes: Axes, found: dict[Any, Crossing | None]) -> None:
    known = [(x, one.at, one) for x, one in found.items() if one and one.at is not None]
    look: dict[str, Any] = {"color": BLACK, "zorder": 3}
    xs, ys = [x for x, _, _ in known], [y for _, y, _ in known]
    axes.plot(xs, ys, marker="D", markersize=4, linewidth=1.2, **look)
    floor, ceiling = axes.get_ylim()
    for x, y, one in known:
        add_tip(axes, x, y, f"{x:,}: from {rounded(y)}{one.bounds} on")
        if one.has_interval:
            ends = (floor if one.low is None else one.low, ceiling if one.high is None else one.high)
            axes.plot([x, x], ends, linewidth=5, alpha=0.35, color=GREY)


DRAWN: dict[type, Callable[[Any, Results, str], Figure | None]] = {
    Lines: draw_lines,
    Bars: draw_bars,
    BreakEvenMap: draw_map,
}
