"""Is a GPU worth it for a surface and a small network? Epochs over points, trainings, and the fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scaling.analysis.formats import listed, milliseconds, number
from scaling.measure.statistics import Estimate
from scaling.report.device.common import (
    Cells,
    device_table,
    finding,
    measured,
    one_launch,
    plain,
    times_of,
    variable,
)
from scaling.report.device.crossover import Crossing, crossing_text, overlap, rounded
from scaling.report.device.declared import Report
from scaling.report.device.remarks import NO_ROWS, no_gpu, remarks
from scaling.report.device.results import DeviceResult, Results, grouped
from scaling.report.device.surface_figures import (
    PLOTS,
    Training,
    activation,
    break_even,
    common,
    trainings,
    way_named,
    ways_of,
)
from scaling.report.tables import Column, Table


def _rows(results: Results) -> Iterator[Table]:
    """Epochs and trainings."""
    names = {cell.cell_id: way.name for way, cells in ways_of(results).items() for cell in cells}
    on: Column[Cells] = Column("on", lambda cells: names[cells[0].cell_id])
    yield device_table(
        results,
        ": an epoch over the number of points",
        [on, variable("points"), *measured(step="ms an epoch", rate="points/s")],
        [[cell] for cells in ways_of(results).values() for cell in cells],
        remarks=remarks(results, NO_ROWS),
    )
    if found := trainings(results):
        yield _training_table(results, found)


def _training_table(results: Results, found: Sequence[Training]) -> Table:
    height = next((value for one in found if (value := one.cell.fact("rms_height"))), None)
    columns: list[Column[Training]] = [
        Column("on", lambda one: one.way.name),
        Column("points", lambda one: plain(one.cell.point["points"])),
        Column("epochs", lambda one: plain(one.epochs)),
        Column("compile or capture, s", lambda one: number(one.made_s)),
        Column("all epochs, s", lambda one: number(one.seconds)),
        Column("together, s", lambda one: number(one.total_s)),
        Column("rms residual", lambda one: number(one.rms_residual)),
        Column("largest", lambda one: number(one.cell.fact("largest_residual"))),
    ]
    return device_table(
        results,
        f": a complete training, {activation(results)}, Adam {results.parameters['learning_rate']:g}",
        columns,
        found,
        cells_of=lambda one: [one.cell],
        statistic="Seconds of one training (median over launches). Residuals are the surface's heights less "
        f"the network's; the heights' own root mean square about their mean is {number(height)}. They are "
        "those of one seed: other initial weights end at other residuals.",
    )


def _findings(results: Results) -> Iterator[str]:
    """The DataLoader, compiling and capturing, the fit."""
    yield from _loader_sentences(results)
    found = trainings(results)
    yield from _made_sentences(found)
    if found:
        residuals = sorted(one.rms_residual for one in found)
        height = number(found[0].cell.fact("rms_height"))
        between = number(residuals[0])
        if residuals[0] != residuals[-1]:
            between = f"between {between} and {number(residuals[-1])}"
        yield (
            f"{results.experiment}: after {found[0].epochs:,} epochs the root mean square of the residual "
            f"with {activation(results)} is {between}, on a surface of heights that deviate by {height}."
            f"{_swing(found)}"
        )


def _swing(found: Sequence[Training]) -> str:
    """What the residual does in the last half of the epochs, of every way alike."""
    late = [
        math.sqrt(loss)
        for one in found
        for epoch, loss in zip(*one.losses, strict=True)
        if 2 * epoch >= one.epochs
    ]
    if len(late) < 2:
        return ""
    return (
        f" Over the last half of the epochs it moves between {number(min(late))} and {number(max(late))}: "
        "a smaller difference of two ways tells where the last epoch fell, not which way fits better."
    )


def _training(one: Training) -> str:
    apart = f" after {number(one.made_s)} s of compiling" if one.made_s is not None else ""
    return f"{one.way.name}: {number(one.seconds)} s for {one.epochs:,} epochs{apart}."


def _loader_sentences(results: Results) -> Iterator[str]:
    told = []
    for device, name in (("cpu", "CPU"), ("cuda", "GPU")):
        near, loader = (way_named(results, device, "eager", place) for place in ("device", "loader"))
        if both := common(near, loader):
            ratios = [f"{times_of(other, own)} at {at:,} points" for at, (own, other) in both.items()]
            told.append(f"on the {name} {listed(ratios)}")
    before = "How much longer an epoch takes whose batch a DataLoader puts together point by point than one"
    yield from finding(results, f"{before} whose data is on the device: ", told)


def _made_sentences(found: Sequence[Training]) -> Iterator[str]:
    """After how many epochs compiling or capturing has paid for itself."""
    eager = {one.way.device: one for one in found if one.way.step == "eager"}
    for one in found:
        base = eager.get(one.way.device)
        if one.made_s is not None and base is not None:
            verb = "Capturing" if one.way.step == "captured" else "Compiling"
            device = one.way.name.split()[0]
            yield f"{verb} on the {device} takes {number(one.made_s)} s once; {_paid(one, base)}."


def _paid(one: Training, base: Training) -> str:
    """From the times of an epoch by itself, with their intervals; the complete trainings have to agree."""
    own, eager = one.cell.estimate(), base.cell.estimate()
    trained_ms = [1e3 * each.seconds / each.epochs for each in (one, base)]
    if own is None or eager is None:
        return "whether it is paid for is not known, as an epoch by itself was not timed"
    is_shorter = own.median < eager.median and not overlap(own, eager)
    if is_shorter != (trained_ms[0] < trained_ms[1]):
        return (
            "whether it is ever paid for is open: an epoch by itself took "
            f"{milliseconds(own.median)} ms instead of {milliseconds(eager.median)} ms, one of the complete "
            f"training {number(trained_ms[0])} ms instead of {number(trained_ms[1])} ms"
        )
    if not is_shorter:
        return "it is not paid for in this training, as its epochs were not shorter than eager ones"
    made_s = one.made_s or 0.0
    epochs = rounded(made_s / (eager.median - own.median))
    bounds = ""
    if None not in (own.low, own.high, eager.low, eager.high):
        most, least = (eager.high or 0.0) - (own.low or 0.0), (eager.low or 0.0) - (own.high or 0.0)
        bounds = f" [{rounded(made_s / most)}, {rounded(made_s / least)}]"
    return f"it is paid for after {epochs} epochs{bounds}"


def _answer(results: Results) -> str:
    """Whether the GPU is worth it."""
    found = trainings(results)
    if "cuda" in results.missing or not results.all("cuda"):
        each = [_training(one) for one in found]
        return " ".join(["That is not answered here.", no_gpu(results, NO_ROWS), *each])
    cpu = way_named(results, "cpu", "eager")
    told = []
    for step in ("eager", "captured"):
        gpu = way_named(results, "cuda", step)
        if cpu and gpu:
            told.append(f"{step} {_faster(common(cpu, gpu), break_even(cpu, gpu))}")
    whole = [f"{number(one.total_s)} s on {one.way.name}{_made(one)}" for one in found]
    training = f" A complete training takes {listed(whole)}." if whole else ""
    without = [
        f"{way.name} at {listed([f'{count:,}' for count in points])}"
        for way, cells in ways_of(results).items()
        if way.name in ("CPU eager", "GPU eager", "GPU captured")
        and (points := [cell.point["points"] for cell in cells if not cell.is_over])
    ]
    missing = f" Not measured yet, in numbers of points: {'; '.join(without)}." if without else ""
    return (
        f"By the time of an epoch it is faster than the CPU{_cores(cpu)}, in numbers of points: "
        f"{'; '.join(told) or 'not measured on both'}{one_launch(results)}.{training}{missing}"
    )


def _made(one: Training) -> str:
    """` (52.3 s of it compiling)`."""
    if one.made_s is None:
        return ""
    verb = "capturing" if one.way.step == "captured" else "compiling"
    return f" ({number(one.made_s)} s of it {verb})"


def _cores(cpu: Sequence[DeviceResult]) -> str:
    """` (eager, 16 threads)`."""
    threads = [*grouped(cpu, "threads")]
    return f" (eager, {threads[0]} threads)" if len(threads) == 1 and threads[0] > 1 else " (eager)"


def _faster(both: dict[int, tuple[Estimate, Estimate]], found: Crossing | None) -> str:
    """The break-even point, or at which one number of points the GPU is ahead or behind."""
    if len(both) != 1:
        return crossing_text(found)
    ((points, (cpu, gpu)),) = both.items()
    ahead = f"{times_of(cpu, gpu)} as fast as the CPU at {points:,}, the only number measured on both"
    return f"not answered ({ahead})"


REPORT = Report(
    question="Is a GPU worth it for the surface, with a network of 171 parameters?",
    plots=PLOTS,
    rows=_rows,
    named=("points", "step", "data"),
    findings=_findings,
    answer=_answer,
)
