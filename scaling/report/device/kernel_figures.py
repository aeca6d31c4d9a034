"""The figures of `kernel-choices`: times by choice as bars, and workspace against speed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scaling.report.device.declared import Drawing
from scaling.report.device.drawing import new_figure, short, stacked
from scaling.report.device.kernel_data import (
    CAPPED,
    CHOICES,
    CONVOLUTION,
    MATMUL,
    NO_CAP,
    PRECISION_NAMES,
    KernelCase,
    cases,
    name_of,
)
from scaling.report.device.results import DeviceResult, Results
from scaling.report.figures.parts import add_tip, legend_below
from scaling.report.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILLION

PRECISION_COLOURS = {"float32": BLUE, "tf32": SKY_BLUE, "bfloat16": ORANGE}
CHOICE_LOOKS = {
    "library": (BLACK, "o"),
    "autotuned": (VERMILLION, "D"),
    "native": (BLUE, "s"),
    "fft": (GREEN, "^"),
    CAPPED: (PURPLE, "P"),
}

PRODUCTS = (
    "Milliseconds of x W^T (column iteration_s, with its 95% interval), for every way to read W and every "
    "precision (columns choice, precision). Transposed first: with the copy; transposed before: without it. "
    "What is not named was not measured."
)
CONVOLUTIONS = (
    "Milliseconds of a convolution's forward and backward pass (column iteration_s, with its 95% interval); "
    "the line inside a bar is the forward pass (forward_seconds). What is not named was not measured."
)
WORKSPACE = (
    "Milliseconds of a convolution's forward pass in float32 (forward_seconds) against the memory that it "
    "takes besides input and output (workspace_bytes): choices of algorithms, and cuDNN's older interface "
    "with its workspace limited (workspace_cap)."
)


Weighed = tuple[DeviceResult, float, float]
"""A cell, its workspace in MB and its forward pass in milliseconds."""


def _draw_bars(operation: str, results: Results, title: str) -> Figure | None:
    """A panel for each case of an operation, a bar a choice."""
    every = cases(results, operation)
    measured = {case.title: timed for case in every if (timed := [c for c in case.cells if c.estimate()])}
    if not measured:
        return None
    figure, panels = stacked(title, {name: len(cells) for name, cells in measured.items()}, 0.19, 1.6)
    for axes, cells in zip(panels, measured.values(), strict=True):
        _bars(axes, cells)
    panels[-1].set_xlabel("ms")
    used = {cell.point["precision"] for cells in measured.values() for cell in cells}
    colours = {PRECISION_NAMES[name]: colour for name, colour in PRECISION_COLOURS.items() if name in used}
    legend_below(figure, [Patch(facecolor=colour, label=name) for name, colour in colours.items()])
    return figure


def _bars(axes: Axes, cells: Sequence[DeviceResult]) -> None:
    for place, cell in enumerate(cells):
        estimate = cell.estimate()
        assert estimate is not None
        colour = PRECISION_COLOURS[cell.point["precision"]]
        axes.barh(place, 1e3 * estimate.median, height=0.72, color=colour)
        if estimate.low is not None and estimate.high is not None:
            axes.plot([1e3 * estimate.low, 1e3 * estimate.high], [place] * 2, color=BLACK, linewidth=0.9)
        if forward := cell.estimate("forward"):
            axes.plot([1e3 * forward.median] * 2, [place - 0.36, place + 0.36], color="white", linewidth=1.4)
        add_tip(axes, 1e3 * estimate.median, place, f"{name_of(cell)}: {1e3 * estimate.median:.3g} ms")
    axes.set_yticks(range(len(cells)), [_short_name(cell) for cell in cells])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")


def _short_name(cell: DeviceResult) -> str:
    point = cell.point
    cap = "" if point["workspace_cap"] == NO_CAP else f", {point['workspace_cap']}"
    return f"{CHOICES[point['choice']]}{cap}"


def _weighed(case: KernelCase) -> list[Weighed]:
    """Those of its cells in float32."""
    shown = []
    for cell in case.cells:
        workspace, forward = cell.fact("workspace_bytes"), cell.estimate("forward")
        if cell.point["precision"] == "float32" and workspace is not None and forward is not None:
            shown.append((cell, workspace / 1e6, 1e3 * forward.median))
    return shown


def _draw_workspace(results: Results, title: str) -> Figure | None:
    """A panel for each layer with several choices, a point a choice."""
    every = [(case.name, _weighed(case)) for case in cases(results, CONVOLUTION)]
    shown = [(name, weighed) for name, weighed in every if len(weighed) > 1]
    if not shown:
        return None
    figure, (panels,) = new_figure(title, 3.4, 1, len(shown))
    for axes, (name, weighed) in zip(panels, shown, strict=True):
        for cell, megabytes, milliseconds in weighed:
            colour, marker = CHOICE_LOOKS[cell.point["choice"]]
            # Points may cover each other: smaller above larger.
            size = 5 if cell.point["choice"] == CAPPED else 9
            axes.plot([megabytes], [milliseconds], color=colour, marker=marker, markersize=size, linestyle="")
            tip = f"{name_of(cell)}: {megabytes:.3g} MB, {milliseconds:.3g} ms"
            add_tip(axes, megabytes, milliseconds, tip)
        _annotate_caps(axes, weighed)
        # 0 and, at least, 1 MB; the highest point is as far below the upper edge as its text needs.
        axes.set_xscale("symlog", linthresh=1.0)
        axes.set_xlim(-0.4, 3 * max(1.0, *(megabytes for _, megabytes, _ in weighed)))
        axes.set_ylim(0, 1.3 * max(milliseconds for _, _, milliseconds in weighed))
        powers = range(int(np.log10(axes.get_xlim()[1])) + 1)
        axes.set_xticks([0, *(10**power for power in powers)])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_title(name, loc="left")
        axes.set_xlabel("workspace, MB")
    panels[0].set_ylabel("ms forward")
    used = {cell.point["choice"] for _, weighed in shown for cell, _, _ in weighed}
    looks = {CHOICES[name]: look for name, look in CHOICE_LOOKS.items() if name in used}
    points = [Line2D([], [], color=c, marker=m, linestyle="", label=name) for name, (c, m) in looks.items()]
    legend_below(figure, points)
    return figure


def _annotate_caps(axes: Axes, weighed: Sequence[Weighed]) -> None:
    """The limits of the workspace next to their points; those of one place, to a per cent, share a text."""
    places: list[tuple[float, float, list[str]]] = []
    for cell, megabytes, milliseconds in weighed:
        if cell.point["choice"] != CAPPED:
            continue
        cap = "no limit" if cell.point["workspace_cap"] == NO_CAP else str(cell.point["workspace_cap"])
        for x, y, names in places:
            if np.isclose(megabytes, x, rtol=0.01, atol=0.1) and np.isclose(milliseconds, y, rtol=0.01):
                names.append(cap)
                break
        else:
            places.append((megabytes, milliseconds, [cap]))
    for x, y, names in places:
        text = "\n".join(names)
        axes.annotate(text, (x, y), (6, 4), textcoords="offset points", fontsize=7)


PLOTS = (
    Drawing(
        "products", PRODUCTS, lambda _: "matrix products by choice and precision",
        partial(_draw_bars, MATMUL),
    ),
    Drawing(
        "convolutions", CONVOLUTIONS, lambda _: "convolutions by choice and precision",
        partial(_draw_bars, CONVOLUTION),
    ),
    Drawing("workspace", WORKSPACE, lambda _: "workspace against speed, GPU, float32", _draw_workspace),
)  # fmt: skip
