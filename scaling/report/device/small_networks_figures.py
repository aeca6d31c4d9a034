"""The figures of small networks, and what they show: sweeps, and the break-even points along them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure

from scaling.measure.statistics import Estimate
from scaling.report.device.common import Arm, gpu_arms
from scaling.report.device.crossover import Crossing, crossing_of
from scaling.report.device.declared import Drawing, Lines
from scaling.report.device.drawing import Panel, panels_by
from scaling.report.device.drawing_break_even import draw_break_even
from scaling.report.device.results import DeviceResult, Results, fastest, grouped

Times = tuple[Estimate | None, Estimate | None]
"""Of a step on the CPU at its fastest number of threads, and on the GPU."""


def grid(results: Results) -> list[DeviceResult]:
    """The cells that vary width and batch."""
    base = results.parameters
    return results.all(network="mlp", equal_parameters=0, inputs=base["inputs"], depth=base["depth"])


def sweep(results: Results, axis: str) -> list[DeviceResult]:
    """The cells that vary one axis, the others as at the base point."""
    return results.all(network="mlp", equal_parameters=0, **base_point(results, axis))


def base_point(results: Results, axis: str) -> dict[str, Any]:
    """The variables of the base point, without the axis."""
    return {name: results.parameters[name] for name in ("inputs", "depth", "width", "batch") if name != axis}


def family(results: Results) -> list[DeviceResult]:
    """Recurrent networks, and the perceptrons that they are compared with."""
    return [cell for cell in results.cells if cell.point["equal_parameters"]]


def base_text(results: Results) -> str:
    """The variables that the grid of widths and batches keeps."""
    return f"{results.parameters['depth']} hidden layers and {results.parameters['inputs']} inputs"


def fastest_threads(cells: Iterable[DeviceResult]) -> Estimate | None:
    """The CPU's fastest; None where it has none, or a number of threads is not measured yet."""
    on_cpu = [cell for cell in cells if cell.device == "cpu"]
    return fastest(on_cpu) if all(cell.is_over for cell in on_cpu) else None


def times_by(cells: Iterable[DeviceResult], gpu: Arm, *names: str) -> dict[Any, Times]:
    """Values of those variables -> the times to compare there."""
    return {
        key: (fastest_threads(same), fastest(gpu.of(same))) for key, same in grouped(cells, *names).items()
    }


def width_crossings(results: Results, gpu: Arm) -> dict[int, Crossing | None]:
    """Batch -> from which width on the GPU is faster."""
    return {
        batch: crossing_of(times_by(cells, gpu, "width"))
        for batch, cells in grouped(grid(results), "batch").items()
    }


def grid_ratios(results: Results, gpu: Arm) -> dict[tuple[int, int], float | None]:
    """(batch, width) -> time on the CPU over that on the GPU; None where one was not measured."""
    times = times_by(grid(results), gpu, "batch", "width")
    return {key: cpu.median / same.median if cpu and same else None for key, (cpu, same) in times.items()}


def thread_crossing(results: Results, batch: int, counts: Sequence[int]) -> Crossing | None:
    """From which width on the most threads are faster than the fewest."""
    widths = grouped([cell for cell in grid(results) if cell.point["batch"] == batch], "width")
    on_cpu = {
        width: [
            fastest(c for c in cells if (c.device, c.threads) == ("cpu", n)) for n in (counts[0], counts[-1])
        ]
        for width, cells in widths.items()
    }
    return crossing_of({width: (few, many) for width, (few, many) in on_cpu.items()})


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


def is_swept(cells: list[DeviceResult], axis: str) -> bool:
    """Whether they have several values of it."""
    return len(grouped(cells, axis)) > 1


def _grid_title(results: Results) -> str:
    return (
        f"perceptrons of {results.parameters['depth']} hidden layers, {results.parameters['inputs']} inputs"
    )


def _sweep_title(results: Results) -> str:
    base = results.parameters
    return f"width {base['width']}, batch {base['batch']}, else {base_text(results)}"


def _sweep_panels(results: Results) -> list[Panel]:
    cells = {axis: sweep(results, axis) for axis in SWEPT}
    return [Panel(cells[x], x, SWEPT[x], doubles=x == "depth") for x in SWEPT if is_swept(cells[x], x)]


def _kind_panels(results: Results) -> list[Panel]:
    kinds = grouped(family(results), "network")
    return [Panel(kinds.get(kind, []), "parameters", title=label) for kind, label in KINDS.items()]


def _draw_break_even(results: Results, title: str) -> Figure | None:
    gpus = gpu_arms(results)
    panels = [(arm, grid_ratios(results, arm), width_crossings(results, arm)) for arm in gpus]
    return draw_break_even(title, panels) if panels else None


PLOTS = (
    Drawing(
        "break-even", BREAK_EVEN, lambda results: f"GPU over CPU, {_grid_title(results)}", _draw_break_even
    ),
    Lines(
        "widths", TIMES, lambda results: f"time over width, {_grid_title(results)}",
        lambda results: panels_by(grid(results), "batch", "width"),
        row_height=2.1, share={"sharex": True},
    ),
    Lines("sweeps", SWEEPS, _sweep_title, _sweep_panels, columns=len),
    Lines(
        "recurrent", FAMILIES,
        lambda results: f"recurrent and feed-forward networks, batch {results.parameters['batch']}",
        _kind_panels, share={"sharey": True},
    ),
)  # fmt: skip
