"""What the report of small networks is made of: its sweeps, and the break-even points along them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scaling.measure.statistics import Estimate
from scaling.report.device.common import Arm
from scaling.report.device.crossover import Crossing, crossing_of
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
    return {key: (fastest_threads(own), fastest(gpu.of(own))) for key, own in grouped(cells, *names).items()}


def width_crossings(results: Results, gpu: Arm) -> dict[int, Crossing | None]:
    """Batch -> from which width on the GPU is faster."""
    return {
        batch: crossing_of(times_by(cells, gpu, "width"))
        for batch, cells in grouped(grid(results), "batch").items()
    }


def grid_ratios(results: Results, gpu: Arm) -> dict[tuple[int, int], float | None]:
    """(batch, width) -> time on the CPU over that on the GPU; None where one was not measured."""
    times = times_by(grid(results), gpu, "batch", "width")
    return {key: cpu.median / own.median if cpu and own else None for key, (cpu, own) in times.items()}


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
