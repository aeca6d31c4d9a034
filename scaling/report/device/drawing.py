"""The figures that a device study declares: lines and bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from scaling.device_studies.declaration import Bars, Lines, Panels, Variant
from scaling.report.device.results import DeviceResult, DeviceResults, fastest
from scaling.report.figures.parts import (
    BLACK,
    DEVICE_COLOURS,
    GREY,
    add_tip,
    legend_below,
    name_bars,
    new_figure,
)

Floats = npt.NDArray[np.float64]
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
ROW_HEIGHT = 2.3


def stacked(title: str, sizes: dict[str, int], row: float, room: float) -> tuple[Figure, list[Axes]]:
    heights = [room + size for size in sizes.values()]
    figure = new_figure(title, 1.0 + row * sum(heights))
    panels = [*figure.subplots(len(sizes), squeeze=False, height_ratios=heights)[:, 0]]
    for axes, name in zip(panels, sizes, strict=True):
        axes.set_title(name, loc="left")
    return figure, panels


def looks_of(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """The CPU's line is dashed where the GPU has one of the same colour."""
    keys, made = [repr({**variant.where, "device": None}) for variant in variants], []
    every_look = zip(cycle(DEVICE_COLOURS), cycle(MARKERS), strict=False)
    looks = dict(zip(dict.fromkeys(keys), every_look, strict=False))
    for variant, key in zip(variants, keys, strict=True):
        colour, marker = looks[key]
        look: dict[str, Any] = {"label": variant.name, "color": colour, "marker": marker, "markersize": 4}
        if keys.count(key) > 1 and variant.where["device"] == "cpu":
            look |= {"linestyle": (0, (4, 2)), "markerfacecolor": "white"}
        made.append(look)
    return made


def lines_of(declared: Lines, results: DeviceResults) -> list[Variant]:
    if isinstance(declared.lines, str):
        values = results.grouped(results.cells, declared.lines)
        return [Variant(results.label(value), {declared.lines: value}) for value in values]
    return [*(declared.lines or results.arms)]


def points_of(
    declared: Lines, results: DeviceResults, panel: Panels, cells: Iterable[DeviceResult]
) -> tuple[Floats, Floats]:
    """x, and [3, points] of the values with their intervals' ends; NaN where there is none."""
    ordered = sorted(cells, key=lambda cell: cell.value(panel.x) or 0)
    is_relative = declared.over_first or declared.over is not None
    ends = []
    for cell in ordered:
        three: tuple[float | None, ...] = (None,) * 3
        estimate = cell.estimate(panel.phase)
        if is_relative:
            same = {name: cell.value(name) for name in results.report.named}
            base = fastest(results.where({**declared.over, **same})) if declared.over else ordered[0]
            if estimate and cell is base:
                three = (1.0, 1.0, 1.0)
            elif difference := cell.difference(base, panel.phase) if base else None:
                three = (difference.ratio, *(difference.interval or (None, None)))
        elif declared.per:
            three = cell.mean(panel.phase) or three
        elif estimate:
            three = (estimate.median, estimate.low, estimate.high)
        ends.append(three)
    values = np.array(ends, dtype=np.float64).reshape(-1, 3).T
    if declared.per:
        values = np.array([cell.value(declared.per) or np.nan for cell in ordered]) / values[[0, 2, 1]]
    elif not is_relative:
        values = declared.scale * values
    at = [panel.scale * (cell.value(panel.x) or 0) for cell in ordered]
    return np.array(at, dtype=np.float64), values


def draw_lines(declared: Lines, results: DeviceResults, title: str) -> Figure | None:
    panels = [
        (results.text(panel.title, same[0]), panel, same)
        for panel in declared.panels
        for same in results.grouped(results.where(panel.where), *panel.by).values()
        if len(results.grouped(same, panel.x)) > (len(declared.panels) > 1 and not panel.by)
    ]
    timed = [cell for _, panel, cells in panels for cell in cells if cell.estimate(panel.phase)]
    variants = [one for one in lines_of(declared, results) if results.where(one.where, timed)]
    if not variants or (declared.over_first and len(timed) < 2):
        return None
    columns = min(declared.columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(title, 0.9 + (ROW_HEIGHT if len(panels) > 1 else 3.6) * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey="row" if columns > 2 else False)
    looks = looks_of(variants)
    if declared.over_first:
        at = sorted({float(cell.value(panels[0][1].x)) for cell in timed})
        for axes in grid.flat:
            axes.plot(at, [x / at[0] for x in at], color=GREY, linestyle=(0, (5, 2)), linewidth=1.0)
    for axes in grid.flat if declared.over else ():
        axes.axhline(1.0, color=GREY, linewidth=0.8)
    for axes, (name, panel, cells) in zip(grid.flat, panels, strict=False):
        for variant, look in zip(variants, looks, strict=True):
            found = results.where(variant.where, cells)
            _draw_line(axes, look, *points_of(declared, results, panel, found), declared.label)
        log_axes(axes, panel.label or panel.x, declared.label)
        if any(cell.value(panel.x) == 0 for cell in cells):
            axes.set_xscale("symlog", linthresh=1.0)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes.set_title(name, loc="left")
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    legend_below(figure, [Line2D([], [], **look) for look in looks])
    return figure


def _draw_line(axes: Axes, look: dict[str, Any], at: Floats, values: Floats, label: str) -> None:
    if np.isnan(values[0]).all():
        return
    axes.plot(at, values[0], **look, linewidth=1.2)
    for x, (value, low, high) in zip(at, values.T, strict=True):
        if np.isnan(value):
            continue
        if low > 0 and high < np.inf:
            axes.plot([x, x], [low, high], color=look["color"], linewidth=0.9)
        add_tip(axes, x, value, f"{look['label']}, {x:,g}: {value:.3g} {label}")


def log_axes(axes: Axes, x: str, y: str) -> None:
    """After drawing: an axis of less than two powers of ten has ticks at 2 and 5 too."""
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


def draw_bars(declared: Bars, results: DeviceResults, title: str) -> Figure | None:
    timed = [cell for cell in results.where(declared.where) if cell.estimate()]
    every = results.grouped(timed, *declared.by).values()
    groups = {results.text(declared.panel, cells[0]): cells for cells in every}
    if not groups:
        return None
    figure, panels = stacked(title, {name: len(cells) for name, cells in groups.items()}, 0.19, 1.6)
    values = [*results.grouped(timed, declared.colour)]
    colours = dict(zip(values, cycle(DEVICE_COLOURS), strict=False))
    for axes, cells in zip(panels, groups.values(), strict=True):
        for place, cell in enumerate(cells):
            if estimate := cell.estimate():
                ms, low, high = 1e3 * np.array([estimate.median, estimate.low, estimate.high], np.float64)
                axes.barh(place, ms, height=0.72, color=colours[cell.value(declared.colour)])
                axes.plot([low, high], [place] * 2, color=BLACK, linewidth=0.9)
                if mark := cell.estimate(declared.mark):
                    ends = [place - 0.36, place + 0.36]
                    axes.plot([1e3 * mark.median] * 2, ends, color="white", linewidth=1.4)
                add_tip(axes, ms, place, f"{ms:.3g} ms")
        name_bars(axes, range(len(cells)), [results.text(declared.bar, cell).strip() for cell in cells], "")
        axes.invert_yaxis()
        axes.set_xlim(left=0)
    panels[-1].set_xlabel("ms")
    legend_below(figure, [Patch(facecolor=colours[value], label=results.label(value)) for value in values])
    return figure


DRAWN: dict[type, Callable[[Any, DeviceResults, str], Figure | None]] = {Lines: draw_lines, Bars: draw_bars}
