"""Is a GPU worth it for a surface and a small network? Epochs over points, trainings, and the fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scaling.analysis.decisions import Difference
from scaling.analysis.study_scatter import study_scatter
from scaling.report.device.common import (
    NO_ROWS,
    Cells,
    device_table,
    measured,
    no_gpu,
    plain,
    remarks,
    variable,
)
from scaling.report.device.comparisons import crossing, crossing_text, finding, is_longer, rounded, times_of
from scaling.report.device.declared import DeviceReport, Lines
from scaling.report.device.drawing import Panel
from scaling.report.device.results import DeviceResult, Results, grouped, paired
from scaling.report.device.surface_fit import FIT, FitTraining, activation, cells_by_arm, trainings
from scaling.report.formats import listed, milliseconds, number
from scaling.report.tables import Column, Table


def _cells_of(results: Results, device: str, step: str, data: str = "device") -> list[DeviceResult]:
    """The cells of that arm; [] unless one has an epoch's time."""
    for arm, cells in cells_by_arm(results).items():
        if (arm.device, arm.step, arm.part) == (device, step, ("data", data)):
            return cells if any(cell.estimate() for cell in cells) else []
    return []


EPOCHS = (
    "Milliseconds of an epoch, which is one update on all points, over the number of points (columns points "
    "and iteration_s, with its 95% interval as a bar; step, data). Both axes are logarithmic. On the GPU a "
    "line is flat as long as launching kernels, not computing, decides. A line is broken where a number of "
    "points has no time."
)


def _rows(results: Results) -> Iterator[Table]:
    """Epochs and trainings."""
    names = {cell.cell_id: arm.name for arm, cells in cells_by_arm(results).items() for cell in cells}
    on: Column[Cells] = Column("on", lambda cells: names[cells[0].cell_id])
    yield device_table(
        results,
        ": an epoch over the number of points",
        [on, variable("points"), *measured(step="ms an epoch", rate="points/s")],
        [[cell] for cells in cells_by_arm(results).values() for cell in cells],
        remarks=remarks(results, NO_ROWS),
    )
    if trained := trainings(results):
        yield _training_table(results, trained)


def _training_table(results: Results, trained: Sequence[FitTraining]) -> Table:
    height = next((value for training in trained if (value := training.cell.fact("rms_height"))), None)
    columns: list[Column[FitTraining]] = [
        Column("on", lambda training: training.arm.name),
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
    yield from _made_sentences(results, trained)
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
    """What the residual does in the last half of the epochs, whatever the arm."""
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


def _loader_sentences(results: Results) -> Iterator[str]:
    clauses = []
    for device, name in (("cpu", "CPU"), ("cuda", "GPU")):
        near, loader = (_cells_of(results, device, "eager", place) for place in ("device", "loader"))
        if both := paired(near, loader, "points"):
            ratios = [f"{times_of([difference])} at {at:,} points" for at, difference in both.items()]
            clauses.append(f"on the {name} {listed(ratios)}")
    before = (
        "The time of an epoch with a DataLoader, which assembles the batch point by point, over that of one "
        "with data on the device: "
    )
    yield from finding(results, before, clauses)


def _made_sentences(results: Results, trained: Sequence[FitTraining]) -> Iterator[str]:
    """After how many epochs compiling or capturing has paid for itself."""
    eager = {training.arm.device: training for training in trained if training.arm.step == "eager"}
    for training in trained:
        base = eager.get(training.arm.device)
        if training.made_s is not None and base is not None:
            where = f"{_verb(training)} on the {training.arm.name.split()[0]}"
            yield from finding(
                results, f"{where} takes {number(training.made_s)} s once; ", [_paid(training, base)]
            )


def _paid(training: FitTraining, base: FitTraining) -> str:
    """From the times of an epoch by itself; the complete trainings have to agree."""
    difference = training.cell.difference(base.cell)
    if difference is None:
        return "whether it is paid for is not known, as an epoch by itself was not timed"
    own_s, eager_s = training.cell.median(), base.cell.median()
    trained_ms = [1e3 * each.seconds / each.epochs for each in (training, base)]
    is_shorter = is_longer(difference)
    if is_shorter != (trained_ms[0] < trained_ms[1]):
        return (
            "whether it is ever paid for is open: an epoch by itself took "
            f"{milliseconds(own_s)} ms instead of {milliseconds(eager_s)} ms, one of the "
            f"complete training {number(trained_ms[0])} ms instead of {number(trained_ms[1])} ms"
        )
    if not is_shorter:
        return "it is not paid for in this training, as its epochs were not shorter than eager ones"
    ratios = (difference.ratio, *reversed(difference.interval or ()))
    epochs, *bounds = (rounded((training.made_s or 0.0) / own_s / (ratio - 1)) for ratio in ratios)
    return f"it is paid for after {epochs} epochs{f' [{bounds[0]}, {bounds[1]}]' if bounds else ''}"


def _headline(results: Results) -> str:
    """The shortest complete training of each device; "" where only one has any."""
    every = trainings(results)
    shortest = [
        min(same, key=lambda training: training.total_s)
        for device in ("cuda", "cpu")
        if (same := [training for training in every if training.arm.device == device])
    ]
    if len(shortest) < 2:
        return ""
    gpu, cpu = (training.cell.cell_id for training in shortest)
    scatter = study_scatter({training.cell.cell_id: training.times for training in every})
    times = " and ".join(f"{number(training.total_s)} s on {training.arm.name}" for training in shortest)
    return f"{_verdict(scatter.difference(gpu, cpu))}a complete training takes {times}."


def _verdict(difference: Difference) -> str:
    """Of the CPU's time over the GPU's: a single launch gives none."""
    if difference.error is None:
        return ""
    if not difference.is_significant:
        return f"{'Either' if difference.is_same() else 'Undecided'}: "
    return "Yes: " if difference.is_larger else "No: "


def _answer(results: Results) -> str:
    """Whether the GPU is worth it."""
    whole = [
        f"{number(training.total_s)} s on {training.arm.name}"
        + (f" ({number(training.made_s)} s of it {_verb(training).lower()})" if training.made_s else "")
        for training in trainings(results)
    ]
    complete = [*finding(results, "A complete training takes ", [listed(whole)] if whole else [])]
    if "cuda" in results.missing or not results.all("cuda"):
        return " ".join(["That is not answered here.", no_gpu(results, NO_ROWS), *complete])
    cpu, clauses = _cells_of(results, "cpu", "eager"), []
    for step in ("eager", "captured"):
        if cpu and (gpu := _cells_of(results, "cuda", step)):
            clauses.append(f"{step} {crossing_text(crossing(paired(gpu, cpu, 'points')))}")
    before = f"An epoch takes less time than on the CPU{_cores(cpu)}, in numbers of points: "
    return " ".join([*finding(results, before, clauses or ["not measured on both"]), *complete])


def _verb(training: FitTraining) -> str:
    return "Capturing" if training.arm.step == "captured" else "Compiling"


def _cores(cpu: Sequence[DeviceResult]) -> str:
    """` (eager, 16 threads)`."""
    threads = [*grouped(cpu, "threads")]
    return f" (eager, {threads[0]} threads)" if len(threads) == 1 and threads[0] > 1 else " (eager)"


REPORT = DeviceReport(
    question="Is a GPU worth it for the surface, with a network of 171 parameters?",
    plots=(
        Lines(
            "epochs", EPOCHS, lambda _: "an epoch of the 2-20-5-1 network",
            lambda results: [Panel(results.cells, "points")],
            y="ms an epoch", hues=cells_by_arm, rows=1, row_height=3.9,
        ),
        FIT,
    ),
    rows=_rows,
    named=("points", "step", "data"),
    findings=_findings,
    answer=_answer,
    headline=_headline,
)  # fmt: skip
