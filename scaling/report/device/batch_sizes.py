"""Which mini-batch does a device need? Samples a second and time per step over batch sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.decisions import Difference
from scaling.report.device.common import (
    DEVICES,
    arms_of,
    columns_of,
    device_table,
    gpu_arms,
    measured,
    no_gpu,
    remarks,
    variable,
)
from scaling.report.device.comparisons import (
    Reached,
    finding,
    networks_text,
    over_samples,
    reached,
    spread,
    times_of,
)
from scaling.report.device.declared import RATE, DeviceReport, Lines
from scaling.report.device.drawing import Panel
from scaling.report.device.results import DeviceResult, Results, by_network, grouped
from scaling.report.formats import listed, number
from scaling.report.tables import Table

ENOUGH = 0.9
"""Of the highest throughput: the smallest batch that reaches it is called enough."""

RATES = "Column samples_per_s; bars: 95% intervals. Both axes are logarithmic."
TIMES = (
    "Column iteration_s; bars: 95% intervals. Both axes are logarithmic: where a line is flat, a larger "
    "batch costs nothing."
)


def _title(results: Results) -> str:
    arms = arms_of(results)
    return f"training step, {' and '.join(arm.name for arm in arms) if len(arms) < 3 else 'CPU and GPU'}"


def _panels(results: Results) -> list[Panel]:
    return [Panel(cells, "batch", title=name) for name, cells in by_network(results).items()]


def _rows(results: Results) -> Iterator[Table]:
    """A row for each network and batch."""
    columns = [variable("model", "network"), variable("batch")]
    columns += [column for arm in columns_of(results) for column in measured(arm)]
    rows = [row for cells in by_network(results).values() for row in grouped(cells, "batch").values()]
    title = ": a training step over mini-batch sizes"
    yield device_table(results, title, columns, rows, remarks=remarks(results))


def enough(cells: Sequence[DeviceResult]) -> Reached | None:
    """The smallest batch with 90% of the highest throughput, if points not measured yet cannot change it.

    These are the points of smaller batches, below one that is not enough: throughput is taken to rise there.
    """
    need = reached([cell for cell in cells if cell.samples_per_s], "batch", 1 / ENOUGH)
    if need is None:
        return None
    smallest = need.possible.point["batch"]
    lowest = max((cell.point["batch"] for cell in cells if cell.point["batch"] < smallest), default=smallest)
    return need if all(cell.is_over for cell in cells if cell.point["batch"] >= lowest) else None


def _is_largest(need: Reached, cells: Sequence[DeviceResult]) -> bool:
    """Whether no larger batch was measured: then a larger one may be needed."""
    largest = max(cell.point["batch"] for cell in cells if cell.estimate())
    return bool(need.shown.point["batch"] == largest)


def _headline(results: Results) -> str:
    """The smallest and the largest batch that is enough, of each device; how much longer the CPU takes."""
    clauses = []
    for device, name in DEVICES.items():
        same = [
            arm.of(c)
            for c in by_network(results).values()
            for arm in arms_of(results)
            if arm.device == device
        ]
        each = [(need, _is_largest(need, cells)) for cells in same if (need := enough(cells))]
        if each:
            more = " or more" if any(is_bound for _, is_bound in each) else ""
            clauses.append(f"{spread([need.shown.point['batch'] for need, _ in each])}{more} on the {name}")
    if not clauses:
        return ""
    ratios = [difference.ratio for difference in _cpu_over_gpu(results).values()]
    longer = f"; a sample then takes {spread(ratios)} times as long on the CPU" if ratios else ""
    num_networks = networks_text(len(by_network(results)))
    return f"For 90% of the highest throughput, {' and '.join(clauses)}{num_networks}{longer}."


def _answer(results: Results) -> str:
    """The batch that is enough, and how far the GPU is ahead."""
    if not any(cell.estimate() for cell in results.cells):
        return ""
    known = _known(results)
    if not gpu_arms(results):
        return f"{known} What a GPU needs is not answered here. {no_gpu(results)}"
    clauses = [f"{name} {times_of([ratio])}" for name, ratio in _cpu_over_gpu(results).items()]
    before = "At the best measured batch of each, the time of a sample on the CPU over that on the GPU: "
    ahead = [*finding(results, before, clauses)]
    missing = "How far ahead the GPU is is not answered, as no network was measured in full on both."
    return " ".join([known, *(ahead or [missing])])


def _cpu_over_gpu(results: Results) -> dict[str, Difference]:
    """Network -> the least time of a sample on the CPU over the GPU's, if both are measured in full."""
    ratios = {}
    for name, cells in by_network(results).items():
        cpu = enough([cell for cell in cells if cell.device == "cpu"])
        gpus = [enough(arm.of(cells)) for arm in gpu_arms(results)]
        best = [need.best for need in gpus if need]
        if cpu and best and len(best) == len(gpus):
            gpu = max(best, key=lambda cell: cell.samples_per_s or 0.0)
            if (difference := over_samples(gpu, cpu.best)) is not None:
                ratios[name] = difference
    return ratios


def _known(results: Results) -> str:
    """`For 90% ..., on the CPU, 4 threads: fcn-r 64 (100 samples/s), lstm at least 16 (9 samples/s). ...`"""
    clauses, missing = [], []
    for arm in arms_of(results):
        same = {name: arm.of(cells) for name, cells in by_network(results).items()}
        need = {name: known for name, cells in same.items() if (known := enough(cells))}
        each = [f"{name} {_batch(need[name], same[name])}" for name in need]
        clauses += [f"on the {arm.name}: {', '.join(each)}"] if each else []
        unfinished = [name for name, cells in same.items() if not all(cell.is_over for cell in cells)]
        if without := [name for name in unfinished if name not in need]:
            which = "every network" if len(without) == len(same) else listed(without)
            missing.append(f"on the {arm.name} for {which}")
    before = "For 90% of the highest throughput measured (in brackets), "
    unknown = [f"Not answered, as points are missing, {'; '.join(missing)}."] if missing else []
    return " ".join([*finding(results, before, clauses), *unknown])


def _batch(need: Reached, cells: Sequence[DeviceResult]) -> str:
    """The largest that was measured is a lower bound: throughput may rise beyond."""
    batch = need.text("batch", is_bound=_is_largest(need, cells))
    return f"{batch} ({number(need.best.samples_per_s)} samples/s)"


def _lines(name: str, caption: str, what: str, y: str) -> Lines:
    return Lines(
        name, caption, lambda results: f"{what} of a {_title(results)}", _panels,
        y=y, row_height=2.0, share={"sharex": True},
    )  # fmt: skip


REPORT = DeviceReport(
    question="Which mini-batch does a device need?",
    plots=(_lines("throughput", RATES, "throughput", RATE), _lines("time", TIMES, "time", "ms a step")),
    rows=_rows,
    named=("model", "batch"),
    answer=_answer,
    headline=_headline,
)
