"""Which mini-batch does a device need? Samples a second and time per iteration over batch sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.report.device.common import (
    DEVICES,
    Arm,
    arms_of,
    columns_of,
    device_table,
    finding,
    gpu_arms,
    measured,
    networks_text,
    one_launch,
    spread,
    times,
    variable,
)
from scaling.report.device.declared import RATE, DeviceReport, Lines
from scaling.report.device.drawing import Panel
from scaling.report.device.remarks import no_gpu, remarks
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


def enough(cells: Sequence[DeviceResult]) -> tuple[int, float, int] | None:
    """The smallest batch with 90% of the highest throughput, that throughput, the largest batch measured."""
    rates = sorted((cell.point["batch"], cell.samples_per_s) for cell in cells if cell.samples_per_s)
    if not rates:
        return None
    best = max(rate for _, rate in rates)
    return next(batch for batch, rate in rates if rate >= ENOUGH * best), best, rates[-1][0]


def settled(cells: Sequence[DeviceResult]) -> tuple[int, float, int] | None:
    """`enough`, if points that are not measured yet cannot change it; None otherwise.

    These are the points of smaller batches, below one that is not enough: throughput is taken to rise there.
    """
    reached = enough(cells)
    if reached is None:
        return None
    below = [cell.point["batch"] for cell in cells if cell.point["batch"] < reached[0]]
    lowest = max(below, default=reached[0])
    return reached if all(cell.is_over for cell in cells if cell.point["batch"] >= lowest) else None


def _highest(results: Results) -> Iterator[str]:
    """The batch that is enough and the highest throughput, of each device."""
    for arm in arms_of(results):
        clauses = []
        for name, cells in by_network(results).items():
            if known := settled(arm.of(cells)):
                batch, rate, largest = known
                bound = ", the largest measured" if batch == largest else ""
                clauses.append(f"{name} {batch:,}{bound} ({number(rate)} samples/s at best)")
        smallest = "The smallest mini-batch that reaches 90% of the highest throughput measured, on the"
        yield from finding(results, f"{smallest} {arm.name}: ", clauses)


def _headline(results: Results) -> str:
    """The smallest and the largest batch that is enough, of each device, and how far the GPU is ahead."""
    clauses = []
    for device, name in DEVICES.items():
        arms = [arm for arm in arms_of(results) if arm.device == device]
        each = [
            reached
            for cells in by_network(results).values()
            for arm in arms
            if (reached := settled(arm.of(cells)))
        ]
        if each:
            more = " or more" if any(batch == largest for batch, _, largest in each) else ""
            clauses.append(f"{spread([batch for batch, _, _ in each])}{more} on the {name}")
    if not clauses:
        return ""
    ahead = spread([*ratios.values()]) if (ratios := _gpu_over_cpu(results, gpu_arms(results))) else ""
    faster = f"; the GPU is then {ahead} times as fast as the CPU" if ahead else ""
    num_networks = networks_text(len(by_network(results)))
    return f"For 90% of the highest throughput, {' and '.join(clauses)}{num_networks}{faster}."


def _answer(results: Results) -> str:
    """The batch that is enough, and how far the GPU is ahead."""
    if not any(cell.estimate() for cell in results.cells):
        return ""
    known = _known(results)
    if gpus := gpu_arms(results):
        return f"{known} {_against(results, gpus)}"
    return f"{known} What a GPU needs is not answered here. {no_gpu(results)}"


def _against(results: Results, gpus: Sequence[Arm]) -> str:
    """The GPU over the CPU, each at its highest throughput."""
    clauses = [f"{name} {times(ratio)}" for name, ratio in _gpu_over_cpu(results, gpus).items()]
    if clauses:
        return (
            f"At the best measured batch of each, the GPU's samples a second over the CPU's: "
            f"{'; '.join(clauses)}{one_launch(results)}."
        )
    return "How far ahead the GPU is is not answered, as no network was measured in full on both."


def _gpu_over_cpu(results: Results, gpus: Sequence[Arm]) -> dict[str, float]:
    """Network -> the GPU's highest throughput over the CPU's, where both are measured in full."""
    ratios = {}
    for name, cells in by_network(results).items():
        cpu = settled([cell for cell in cells if cell.device == "cpu"])
        each = [settled(arm.of(cells)) for arm in gpus]
        rates = [reached[1] for reached in each if reached is not None]
        if cpu and rates and len(rates) == len(gpus):
            ratios[name] = max(rates) / cpu[1]
    return ratios


def _known(results: Results) -> str:
    """`For 90% ..., on the CPU, 4 threads: fcn-r 64, lstm at least 16. Not answered, as ...`"""
    clauses, missing = [], []
    for arm in arms_of(results):
        same = {name: arm.of(cells) for name, cells in by_network(results).items()}
        each = [f"{name} {_batch(reached)}" for name, cells in same.items() if (reached := settled(cells))]
        clauses += [f"on the {arm.name}: {', '.join(each)}"] if each else []
        unfinished = {name: cells for name, cells in same.items() if not all(cell.is_over for cell in cells)}
        without = [name for name, cells in unfinished.items() if settled(cells) is None]
        if without:
            which = "every network" if len(without) == len(same) else listed(without)
            missing.append(f"on the {arm.name} for {which}")
    known = f"For 90% of the highest throughput measured, {'; '.join(clauses)}." if clauses else ""
    unknown = f"Not answered, as points are missing, {'; '.join(missing)}." if missing else ""
    return f"{known} {unknown}".strip()


def _batch(reached: tuple[int, float, int]) -> str:
    """The largest that was measured is a lower bound: throughput may rise beyond."""
    batch, _, largest = reached
    return f"at least {batch:,}" if batch == largest else f"{batch:,}"


REPORT = DeviceReport(
    question="Which mini-batch does a device need?",
    plots=(
        Lines(
            "throughput",
            RATES,
            lambda results: f"throughput of a {_title(results)}",
            _panels,
            y=RATE,
            row_height=2.0,
            share={"sharex": True},
        ),
        Lines(
            "time",
            TIMES,
            lambda results: f"time of a {_title(results)}",
            _panels,
            row_height=2.0,
            share={"sharex": True},
        ),
    ),
    rows=_rows,
    named=("model", "batch"),
    findings=_highest,
    answer=_answer,
    headline=_headline,
)
