"""Is a GPU worth it for a surface and a small network? Epochs over points, trainings, and the fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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
from scaling.report.device.declared import DeviceReport
from scaling.report.device.remarks import NO_ROWS, no_gpu, remarks
from scaling.report.device.results import DeviceResult, Results, grouped, paired
from scaling.report.device.surface_figures import (
    PLOTS,
    FitTraining,
    activation,
    break_even,
    trainings,
    way_named,
    ways_of,
)
from scaling.report.formats import listed, milliseconds, number
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
    if trained := trainings(results):
        yield _training_table(results, trained)


def _training_table(results: Results, trained: Sequence[FitTraining]) -> Table:
    height = next((value for training in trained if (value := training.cell.fact("rms_height"))), None)
    columns: list[Column[FitTraining]] = [
        Column("on", lambda training: training.way.name),
        Column("points", lambda training: plain(training.cell.point["points"])),
        Column("epochs", lambda training: plain(training.epochs)),
        Column("compile or capture, s", lambda training: number(training.made_s)),
        Column("all epochs, s", lambda training: number(training.seconds)),
        Column("together, s", lambda training: number(training.total_s)),
        Column("rms residual", lambda training: number(training.rms_residual)),
        Column("largest", lambda training: number(training.cell.fact("largest_residual"))),
    ]
    return device_table(
        results,
        f": a complete training, {activation(results)}, Adam {results.parameters['learning_rate']:g}",
        columns,
        trained,
        cells_of=lambda training: [training.cell],
        statistic="Seconds of one training (median over launches). Residuals are the surface's heights less "
        f"the network's; the heights' own root mean square about their mean is {number(height)}. They are "
        "those of one seed: other initial weights end at other residuals.",
    )


def _findings(results: Results) -> Iterator[str]:
    """The DataLoader, compiling and capturing, the fit."""
    yield from _loader_sentences(results)
    trained = trainings(results)
    yield from _made_sentences(trained)
    if trained:
        residuals = sorted(training.rms_residual for training in trained)
        height = number(trained[0].cell.fact("rms_height"))
        between = number(residuals[0])
        if residuals[0] != residuals[-1]:
            between = f"between {between} and {number(residuals[-1])}"
        yield (
            f"{results.experiment}: after {trained[0].epochs:,} epochs the root mean square of the residual "
            f"with {activation(results)} is {between}, on a surface of heights that deviate by {height}."
            f"{_swing(trained)}"
        )


def _swing(trained: Sequence[FitTraining]) -> str:
    """What the residual does in the last half of the epochs, whatever the way."""
    late = [
        math.sqrt(loss)
        for training in trained
        for epoch, loss in zip(*training.losses, strict=True)
        if 2 * epoch >= training.epochs
    ]
    if len(late) < 2:
        return ""
    return (
        f" Over the last half of the epochs it moves between {number(min(late))} and {number(max(late))}: "
        "a smaller difference of two ways tells where the last epoch fell, not which way fits better."
    )


def _training(training: FitTraining) -> str:
    apart = f" after {number(training.made_s)} s of compiling" if training.made_s is not None else ""
    return f"{training.way.name}: {number(training.seconds)} s for {training.epochs:,} epochs{apart}."


def _loader_sentences(results: Results) -> Iterator[str]:
    clauses = []
    for device, name in (("cpu", "CPU"), ("cuda", "GPU")):
        near, loader = (way_named(results, device, "eager", place) for place in ("device", "loader"))
        if both := paired(near, loader, "points"):
            ratios = [f"{times_of(other, timed)} at {at:,} points" for at, (timed, other) in both.items()]
            clauses.append(f"on the {name} {listed(ratios)}")
    before = (
        "An epoch with a DataLoader, which assembles the batch point by point, takes longer than one with"
    )
    yield from finding(results, f"{before} data on the device: ", clauses)


def _made_sentences(trained: Sequence[FitTraining]) -> Iterator[str]:
    """After how many epochs compiling or capturing has paid for itself."""
    eager = {training.way.device: training for training in trained if training.way.step == "eager"}
    for training in trained:
        base = eager.get(training.way.device)
        if training.made_s is not None and base is not None:
            verb = "Capturing" if training.way.step == "captured" else "Compiling"
            device = training.way.name.split()[0]
            yield f"{verb} on the {device} takes {number(training.made_s)} s once; {_paid(training, base)}."


def _paid(training: FitTraining, base: FitTraining) -> str:
    """From the times of an epoch by itself, with their intervals; the complete trainings have to agree."""
    timed, eager = training.cell.estimate(), base.cell.estimate()
    trained_ms = [1e3 * each.seconds / each.epochs for each in (training, base)]
    if timed is None or eager is None:
        return "whether it is paid for is not known, as an epoch by itself was not timed"
    is_shorter = timed.median < eager.median and not overlap(timed, eager)
    if is_shorter != (trained_ms[0] < trained_ms[1]):
        return (
            "whether it is ever paid for is open: an epoch by itself took "
            f"{milliseconds(timed.median)} ms instead of {milliseconds(eager.median)} ms, one of the "
            f"complete training {number(trained_ms[0])} ms instead of {number(trained_ms[1])} ms"
        )
    if not is_shorter:
        return "it is not paid for in this training, as its epochs were not shorter than eager ones"
    made_s = training.made_s or 0.0
    epochs = rounded(made_s / (eager.median - timed.median))
    bounds = ""
    if None not in (timed.low, timed.high, eager.low, eager.high):
        most, least = (
            (eager.high or 0.0) - (timed.low or 0.0),
            (eager.low or 0.0) - (timed.high or 0.0),
        )
        bounds = f" [{rounded(made_s / most)}, {rounded(made_s / least)}]"
    return f"it is paid for after {epochs} epochs{bounds}"


def _headline(results: Results) -> str:
    """The shortest complete training of each device; "" where only one has any."""
    fastest: dict[str, FitTraining] = {}
    for training in sorted(trainings(results), key=lambda training: training.total_s):
        fastest.setdefault(training.way.device, training)
    if len(fastest) < 2:
        return ""
    cpu, gpu = fastest["cpu"], fastest["cuda"]
    answer = "Yes" if gpu.total_s < cpu.total_s else "No"
    return (
        f"{answer}: a complete training takes {number(gpu.total_s)} s on {gpu.way.name} and "
        f"{number(cpu.total_s)} s on {cpu.way.name}."
    )


def _answer(results: Results) -> str:
    """Whether the GPU is worth it."""
    trained = trainings(results)
    if "cuda" in results.missing or not results.all("cuda"):
        each = [_training(training) for training in trained]
        return " ".join(["That is not answered here.", no_gpu(results, NO_ROWS), *each])
    cpu = way_named(results, "cpu", "eager")
    clauses = []
    for step in ("eager", "captured"):
        gpu = way_named(results, "cuda", step)
        if cpu and gpu:
            clauses.append(f"{step} {_faster(paired(cpu, gpu, 'points'), break_even(cpu, gpu))}")
    whole = [f"{number(training.total_s)} s on {training.way.name}{_made(training)}" for training in trained]
    training = f" A complete training takes {listed(whole)}." if whole else ""
    return (
        f"By the time of an epoch it is faster than the CPU{_cores(cpu)}, in numbers of points: "
        f"{'; '.join(clauses) or 'not measured on both'}{one_launch(results)}.{training}"
    )


def _made(training: FitTraining) -> str:
    """` (52.3 s of it compiling)`."""
    if training.made_s is None:
        return ""
    verb = "capturing" if training.way.step == "captured" else "compiling"
    return f" ({number(training.made_s)} s of it {verb})"


def _cores(cpu: Sequence[DeviceResult]) -> str:
    """` (eager, 16 threads)`."""
    threads = [*grouped(cpu, "threads")]
    return f" (eager, {threads[0]} threads)" if len(threads) == 1 and threads[0] > 1 else " (eager)"


def _faster(both: dict[int, tuple[Estimate, Estimate]], trained: Crossing | None) -> str:
    """The break-even point, or at which one number of points the GPU is ahead or behind."""
    if len(both) != 1:
        return crossing_text(trained)
    ((points, (cpu, gpu)),) = both.items()
    ahead = f"{times_of(cpu, gpu)} as fast as the CPU at {points:,}, the only number measured on both"
    return f"not answered ({ahead})"


REPORT = DeviceReport(
    question="Is a GPU worth it for the surface, with a network of 171 parameters?",
    plots=PLOTS,
    rows=_rows,
    named=("points", "step", "data"),
    findings=_findings,
    answer=_answer,
    headline=_headline,
)
