"""What the report of small networks is made of: its sweeps, and the break-even points along them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaling.measure.statistics import Estimate
from scaling.report.device.common import Arm
from scaling.report.device.crossover import Crossing, crossing, ratio_of
from scaling.report.device.results import DeviceResult, Results, fastest


def grid(results: Results) -> list[DeviceResult]:
    """The cells that vary width and batch."""
    base = results.parameters
    return results.all(network="mlp", equal_parameters=0, inputs=base["inputs"], depth=base["depth"])


def batches_of(cells: Sequence[DeviceResult]) -> list[int]:
    """Ascending."""
    return sorted({cell.point["batch"] for cell in cells})


def fastest_threads(cells: Sequence[DeviceResult]) -> tuple[DeviceResult, Estimate] | None:
    """The CPU's fastest; None where it has none, or a number of threads is not measured yet."""
    own = [cell for cell in cells if cell.device == "cpu"]
    return fastest(own) if all(cell.is_over for cell in own) else None


def break_even(results: Results, gpu: Arm, axis: str, **fixed: Any) -> Crossing | None:
    """From which value of `axis` on the GPU is faster than the CPU at its fastest number of threads."""
    alike = results.all(network="mlp", equal_parameters=0, **fixed)
    ratios = []
    for value in sorted({cell.point[axis] for cell in alike}):
        here = [cell for cell in alike if cell.point[axis] == value]
        cpu = fastest_threads(here)
        own = fastest([cell for cell in here if gpu.holds(cell)])
        if cpu and own:
            ratios.append(ratio_of(value, cpu[1], own[1]))
    return crossing(ratios)


def width_crossings(results: Results, gpu: Arm) -> dict[int, Crossing | None]:
    """Batch -> the break-even width."""
    base = results.parameters
    fixed = {"inputs": base["inputs"], "depth": base["depth"]}
    return {
        batch: break_even(results, gpu, "width", batch=batch, **fixed) for batch in batches_of(grid(results))
    }


def base_text(results: Results) -> str:
    """The variables that the grid of widths and batches keeps."""
    base = results.parameters
    return f"{base['depth']} hidden layers and {base['inputs']} inputs"


def grid_ratios(results: Results, gpu: Arm) -> dict[tuple[int, int], float | None]:
    """(batch, width) -> time on the CPU over that on the GPU; None where one was not measured."""
    found: dict[tuple[int, int], float | None] = {}
    cells = grid(results)
    for key in {(cell.point["batch"], cell.point["width"]) for cell in cells}:
        here = [cell for cell in cells if (cell.point["batch"], cell.point["width"]) == key]
        cpu = fastest_threads(here)
        own = fastest([cell for cell in here if gpu.holds(cell)])
        found[key] = cpu[1].median / own[1].median if cpu and own else None
    return found


def sweep(results: Results, axis: str) -> list[DeviceResult]:
    """The cells that vary one axis, the others as at the base point."""
    base = {name: results.parameters[name] for name in ("inputs", "depth", "width", "batch") if name != axis}
    return results.all(network="mlp", equal_parameters=0, **base)


def sweep_values(results: Results, axis: str) -> list[int]:
    """What the axis has been set to, ascending."""
    return sorted({cell.point[axis] for cell in sweep(results, axis)})


def family(results: Results) -> list[DeviceResult]:
    """Recurrent networks, and the perceptrons that they are compared with."""
    return [cell for cell in results.cells if cell.point["equal_parameters"]]


def perceptrons(results: Results) -> list[DeviceResult]:
    """All others."""
    return [cell for cell in results.cells if not cell.point["equal_parameters"]]


def thread_crossing(results: Results, batch: int, counts: Sequence[int]) -> Crossing | None:
    """From which width on the most threads are faster than the fewest."""
    ratios = []
    own = [cell for cell in grid(results) if cell.point["batch"] == batch]
    for width in sorted({cell.point["width"] for cell in own}):
        few, many = (
            fastest([c for c in own if c.device == "cpu" and c.threads == n and c.point["width"] == width])
            for n in (counts[0], counts[-1])
        )
        if few and many:
            ratios.append(ratio_of(width, few[1], many[1]))
    return crossing(ratios)
