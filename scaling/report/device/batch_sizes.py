"""Which mini-batch does a device need? Samples a second and time per iteration over batch sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from scaling.analysis.formats import listed, number
from scaling.report.device.common import (
    Arm,
    Line,
    arms_of,
    columns_of,
    draw_lines,
    handles,
    interval_cell,
    left_out_table,
    log_axes,
    one_launch,
    rate_cell,
    statistic,
    time_cell,
    time_line,
    times,
    times_of,
)
from scaling.report.device.remarks import missing_remark, remarks
from scaling.report.device.results import DeviceResult, Results, fastest
from scaling.report.figures.base import Drawn
from scaling.report.figures.parts import WIDTH, legend_below, set_title
from scaling.report.tables import Table

ENOUGH = 0.9
"""Of the highest throughput: the smallest batch that reaches it is called enough."""

RATES = (
    "Samples a second over the mini-batch, a panel for each network (column samples_per_s; bars: from the "
    "95% interval of iteration_s). Both axes are logarithmic. A line is broken where a batch has no number."
)
TIMES = (
    "Milliseconds of a training step over the mini-batch, a panel for each network (column iteration_s, "
    "with its 95% interval as a bar). Both axes are logarithmic: where a line is flat, a larger batch costs "
    "nothing. A line is broken where a batch has no number."
)


def networks(results: Results) -> list[str]:
    """Those that have a cell, in the study's order."""
    found = {cell.point["model"] for cell in results.cells}
    known = [name for name in results.parameters.get("networks", []) if name in found]
    return known + sorted(found - set(known))


def figures(results: Results) -> Iterator[Drawn]:
    """Throughput and time over the batch."""
    if not any(cell.estimate() for cell in results.cells):
        return
    title = f"{results.experiment}: training steps, {_where(results)}"
    name = f"device-{results.slug}"
    yield Drawn(f"{name}-throughput", title, RATES, _draw(results, title, "samples/s"))
    yield Drawn(f"{name}-time", title, TIMES, _draw(results, title, "ms a step"))


def _where(results: Results) -> str:
    arms = arms_of(results)
    return " and ".join(arm.name for arm in arms) if len(arms) < 3 else "CPU and GPU"


def _draw(results: Results, title: str, label: str) -> Figure:
    names, arms = networks(results), arms_of(results)
    rows = -(-len(names) // 2)
    figure = Figure(figsize=(WIDTH, 0.9 + 2.0 * rows), layout="constrained")
    set_title(figure, title)
    panels = list(figure.subplots(rows, 2, squeeze=False, sharex=True).flat)
    for axes, name in zip(panels, names, strict=False):
        own = results.all(model=name)
        lines = [_line(arm, own, rates=label == "samples/s") for arm in arms]
        draw_lines(axes, [line for line in lines if not line.is_empty], label)
        log_axes(axes, "batch", label)
        axes.tick_params(labelbottom=True)
        axes.set_title(name, loc="left")
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    legend_below(figure, handles(arms))
    return figure


def _line(arm: Arm, cells: Sequence[DeviceResult], *, rates: bool) -> Line:
    line = time_line(arm, [(cell.point["batch"], cell) for cell in cells if arm.holds(cell)])
    return _as_rates(line) if rates else line


def _as_rates(line: Line) -> Line:
    """A time's lower bound is the rate's upper one."""

    def rate(batch: float, milliseconds: float | None) -> float | None:
        return 1e3 * batch / milliseconds if milliseconds and milliseconds > 0 else None

    return replace(
        line,
        values=[1e3 * at / value for at, value in zip(line.at, line.values, strict=True)],
        low=[rate(at, high) for at, high in zip(line.at, line.high, strict=True)],
        high=[rate(at, low) for at, low in zip(line.at, line.low, strict=True)],
    )


def tables(results: Results) -> Iterator[Table]:
    """A row for each network and batch."""
    arms = columns_of(results)
    rows, ids = [], []
    for name in networks(results):
        for batch in sorted({cell.point["batch"] for cell in results.all(model=name)}):
            own = results.all(model=name, batch=batch)
            row = [name, f"{batch:,}"]
            for arm in arms:
                cell = next((cell for cell in own if arm.holds(cell)), None)
                estimate = cell.estimate() if cell else None
                row += [time_cell(estimate), interval_cell(estimate), rate_cell(cell)]
            rows.append(row)
            ids.append([cell.cell_id for cell in own])
    headings = [
        f"{arm.name}: {what}" for arm in arms for what in ("ms a step", "95% interval, ms", "samples/s")
    ]
    yield Table(
        f"{results.experiment}: a training step over mini-batch sizes",
        statistic(results),
        ["network", "batch", *headings],
        rows,
        remarks(results),
        cells=ids,
        section="devices",
    )
    yield from left_out_table(results, ("model", "batch"))


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
    found = enough(cells)
    if found is None:
        return None
    below = [cell.point["batch"] for cell in cells if cell.point["batch"] < found[0]]
    lowest = max(below, default=found[0])
    return found if all(cell.is_over for cell in cells if cell.point["batch"] >= lowest) else None


def sentences(results: Results) -> Iterator[str]:
    """The highest throughputs; last, the batch that is enough, and how far the GPU is ahead."""
    arms = arms_of(results)
    if not any(cell.estimate() for cell in results.cells):
        return
    for arm in arms:
        told = []
        for name in networks(results):
            own = [cell for cell in results.all(model=name) if arm.holds(cell)]
            found = settled(own)
            if found is not None:
                batch, best, largest = found
                bound = ", the largest measured" if batch == largest else ""
                told.append(f"{name} {batch:,}{bound} ({number(best)} samples/s at best)")
        if told:
            yield (
                "The smallest mini-batch that reaches 90% of the highest throughput measured, on the "
                f"{arm.name}: {'; '.join(told)}{one_launch(results)}."
            )
    gpus = [arm for arm in arms if arm.device == "cuda"]
    if gpus:
        yield _against(results, gpus)
    else:
        missing = " ".join(missing_remark(results)) or "The study did not ask for a GPU."
        yield (
            f"Which mini-batch does a device need? {_known(results)} What a GPU needs is not answered here. "
            f"{missing}"
        )


def _against(results: Results, gpus: Sequence[Arm]) -> str:
    """For which networks the batch is known, and the GPU over the CPU, each at its highest throughput."""
    told = []
    for name in networks(results):
        own = results.all(model=name)
        cpu = settled([cell for cell in own if cell.device == "cpu"])
        each = [settled([cell for cell in own if arm.holds(cell)]) for arm in gpus]
        rates = [found[1] for found in each if found is not None]
        if cpu and len(rates) == len(gpus):
            told.append(f"{name} {times(max(rates) / cpu[1])}")
    question = f"Which mini-batch does a device need? {_known(results)}"
    if told:
        return (
            f"{question} At the best measured batch of each, the GPU's samples a second over the CPU's: "
            f"{'; '.join(told)}{one_launch(results)}."
        )
    alike = _alike(results)
    compared = ""
    if alike:
        compared = (
            f"; at the largest batch that both have, its samples a second over the CPU's: {'; '.join(alike)}"
        )
    return (
        f"{question} How far ahead the GPU is at the best batch of each is not answered, as no network was "
        f"measured in full on both{compared}{one_launch(results) if alike else ''}."
    )


def _known(results: Results) -> str:
    """`For 90% ..., on the CPU, 4 threads: fcn-r 64, lstm at least 16. Not answered, as ...`"""
    told, missing = [], []
    for arm in arms_of(results):
        own = {
            name: [cell for cell in results.all(model=name) if arm.holds(cell)] for name in networks(results)
        }
        each = [f"{name} {_batch(found)}" for name, cells in own.items() if (found := settled(cells))]
        told += [f"on the {arm.name}: {', '.join(each)}"] if each else []
        without = [
            name
            for name, cells in own.items()
            if settled(cells) is None and not all(cell.is_over for cell in cells)
        ]
        if without:
            which = "every network" if len(without) == len(own) else listed(without)
            missing.append(f"on the {arm.name} for {which}")
    known = f"For 90% of the highest throughput measured, {'; '.join(told)}." if told else ""
    unknown = f"Not answered, as points are missing, {'; '.join(missing)}." if missing else ""
    return f"{known} {unknown}".strip()


def _batch(found: tuple[int, float, int]) -> str:
    """The largest that was measured is a lower bound: throughput may rise beyond."""
    batch, _, largest = found
    return f"at least {batch:,}" if batch == largest else f"{batch:,}"


def _alike(results: Results) -> list[str]:
    """The fastest of the GPU over the CPU at the largest batch that both have, of each network."""
    told = []
    for name in networks(results):
        sizes = sorted({cell.point["batch"] for cell in results.all(model=name)}, reverse=True)
        for batch in sizes:
            pair = [fastest(results.all(device, model=name, batch=batch)) for device in ("cpu", "cuda")]
            if pair[0] and pair[1]:
                told.append(f"{name} {times_of(pair[0][1], pair[1][1])} at {batch:,}")
                break
    return told
