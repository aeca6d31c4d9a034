"""The figures of small networks: the break-even line, times over width, depth, inputs and parameters."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from scaling.report.device.common import arms_of, gpu_arms
from scaling.report.device.drawing import Panel, draw_panels, panels_by
from scaling.report.device.drawing_break_even import draw_break_even
from scaling.report.device.results import DeviceResult, Results, grouped
from scaling.report.device.small_networks_data import (
    base_text,
    family,
    grid,
    grid_ratios,
    sweep,
    width_crossings,
)
from scaling.report.figures.base import Drawn

SWEPT = {"depth": "hidden layers", "inputs": "input features"}
KINDS = {"lstm": "recurrent (LSTM)", "mlp": "feed-forward (perceptron)"}
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
    base, arms = results.parameters, arms_of(results)
    title = f"{results.experiment}: perceptrons of {base['depth']} hidden layers, {base['inputs']} inputs"
    name = f"device-{results.slug}"
    if gpus := gpu_arms(results):
        panels = [(arm, grid_ratios(results, arm), width_crossings(results, arm)) for arm in gpus]
        yield Drawn(f"{name}-break-even", title, BREAK_EVEN, draw_break_even(title, panels))
    if any(cell.estimate() for cell in grid(results)):
        yield Drawn(f"{name}-widths", title, TIMES, draw_widths(results, title))
    swept = [
        Panel(cells, x, SWEPT[x], doubles=x == "depth")
        for x in SWEPT
        if is_swept(cells := sweep(results, x), x)
    ]
    if swept:
        title = (
            f"{results.experiment}: width {base['width']}, batch {base['batch']}, else {base_text(results)}"
        )
        yield Drawn(f"{name}-sweeps", title, SWEEPS, draw_panels(title, swept, arms, 3.4, columns=len(swept)))
    if any(cell.estimate() for cell in family(results)):
        title = f"{results.experiment}: recurrent and feed-forward networks, batch {base['batch']}"
        kinds = [
            Panel(
                [cell for cell in family(results) if cell.point["network"] == kind], "parameters", title=label
            )
            for kind, label in KINDS.items()
        ]
        yield Drawn(f"{name}-recurrent", title, FAMILIES, draw_panels(title, kinds, arms, 3.4, sharey=True))


def is_swept(cells: list[DeviceResult], axis: str) -> bool:
    """Whether they have several values of it."""
    return len(grouped(cells, axis)) > 1


def draw_widths(results: Results, title: str) -> Figure:
    """A panel a batch."""
    panels = panels_by(grid(results), "batch", "width")
    height = 0.9 + 2.1 * -(-len(panels) // 2)
    return draw_panels(title, panels, arms_of(results), height, sharex=True)
