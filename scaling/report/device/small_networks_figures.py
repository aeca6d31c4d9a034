"""The figures of small networks: the break-even line, times over width, depth, inputs and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from scaling.report.device.common import Arm, arms_of, draw_lines, handles, log_axes, time_line
from scaling.report.device.drawing_break_even import draw_break_even
from scaling.report.device.results import DeviceResult, Results
from scaling.report.device.small_networks_data import (
    base_text,
    batches_of,
    family,
    grid,
    grid_ratios,
    sweep,
    sweep_values,
    width_crossings,
)
from scaling.report.figures.base import Drawn
from scaling.report.figures.parts import WIDTH, legend_below, set_title

TIMES = (
    "Milliseconds of a training step over the width of the hidden layers, a panel for each batch (column "
    "iteration_s, with its 95% interval as a bar). All axes are logarithmic. A line is broken where a width "
    "has no number."
)
BREAK_EVEN = (
    "Each number is the time of a step on the CPU, with the number of threads that is fastest there, over "
    "that on the GPU (column iteration_s): above 1 the GPU wins. The line is the width from which on it "
    "wins at each batch, interpolated between two measured widths; the band is its 95% interval, and ends "
    "at the plot's edge where it is open. A batch at which the GPU wins at every width has none. A cross: no "
    "number for one of the two, or not every number of threads measured yet."
)
SWEEPS = (
    "Milliseconds of a training step over the number of hidden layers and of input features (column "
    "iteration_s, with its 95% interval as a bar), other variables as in the title."
)
FAMILIES = (
    "Milliseconds of a training step over trainable parameters (columns parameters and iteration_s): a "
    "recurrent network over a sequence, and a perceptron of as many parameters that takes the whole "
    "sequence at once."
)


def figures(results: Results) -> Iterator[Drawn]:
    """The break-even line where there is a GPU; times over width, depth, inputs and parameters."""
    gpus = [arm for arm in arms_of(results) if arm.device == "cuda"]
    base = results.parameters
    title = f"{results.experiment}: perceptrons of {base['depth']} hidden layers, {base['inputs']} inputs"
    name = f"device-{results.slug}"
    if gpus:
        figure = draw_break_even(
            title, [(arm, grid_ratios(results, arm), width_crossings(results, arm)) for arm in gpus]
        )
        yield Drawn(f"{name}-break-even", title, BREAK_EVEN, figure)
    if any(cell.estimate() for cell in grid(results)):
        yield Drawn(f"{name}-widths", title, TIMES, draw_widths(results, title))
    sweeps = [axis for axis in ("depth", "inputs") if len(sweep_values(results, axis)) > 1]
    if sweeps:
        title = (
            f"{results.experiment}: width {base['width']}, batch {base['batch']}, else {base_text(results)}"
        )
        yield Drawn(f"{name}-sweeps", title, SWEEPS, draw_sweeps(results, sweeps, title))
    if any(cell.estimate() for cell in family(results)):
        title = f"{results.experiment}: recurrent and feed-forward networks, batch {base['batch']}"
        yield Drawn(f"{name}-recurrent", title, FAMILIES, draw_families(results, title))


def draw_widths(results: Results, title: str) -> Figure:
    """A panel a batch."""
    cells, arms = grid(results), arms_of(results)
    batches = batches_of(cells)
    rows = -(-len(batches) // 2)
    figure = Figure(figsize=(WIDTH, 0.9 + 2.1 * rows), layout="constrained")
    set_title(figure, title)
    panels = list(figure.subplots(rows, 2, squeeze=False, sharex=True).flat)
    for axes, batch in zip(panels, batches, strict=False):
        own = [cell for cell in cells if cell.point["batch"] == batch]
        _draw_times(axes, own, arms, "width")
        log_axes(axes, "width", "ms a step")
        axes.tick_params(labelbottom=True)
        axes.set_title(f"batch {batch:,}", loc="left")
    for axes in panels[len(batches) :]:
        axes.set_axis_off()
    legend_below(figure, handles(arms))
    return figure


def _draw_times(axes: Any, cells: Sequence[DeviceResult], arms: Sequence[Arm], axis: str) -> None:
    lines = [time_line(arm, [(cell.point[axis], cell) for cell in cells if arm.holds(cell)]) for arm in arms]
    draw_lines(axes, [line for line in lines if not line.is_empty], "ms")


def draw_sweeps(results: Results, sweeps: Sequence[str], title: str) -> Figure:
    """A panel for each axis."""
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    set_title(figure, title)
    arms = arms_of(results)
    labels = {"depth": "hidden layers", "inputs": "input features"}
    for axes, axis in zip(figure.subplots(1, len(sweeps), squeeze=False)[0], sweeps, strict=True):
        _draw_times(axes, sweep(results, axis), arms, axis)
        log_axes(axes, labels[axis], "ms a step")
        if axis == "depth":
            axes.set_xscale("log", base=2)
            axes.set_xticks(sweep_values(results, axis), labels=[str(v) for v in sweep_values(results, axis)])
    legend_below(figure, handles(arms))
    return figure


def draw_families(results: Results, title: str) -> Figure:
    """A panel for each kind of network."""
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    set_title(figure, title)
    arms = arms_of(results)
    kinds = {"lstm": "recurrent (LSTM)", "mlp": "feed-forward (perceptron)"}
    for axes, (kind, label) in zip(figure.subplots(1, 2, sharey=True), kinds.items(), strict=True):
        own = [cell for cell in family(results) if cell.point["network"] == kind]
        lines = [
            time_line(arm, [(cell.fact("parameters") or 0, cell) for cell in own if arm.holds(cell)])
            for arm in arms
        ]
        draw_lines(axes, [line for line in lines if not line.is_empty], "ms")
        log_axes(axes, "parameters", "ms a step")
        axes.set_title(label, loc="left")
    legend_below(figure, handles(arms))
    return figure
