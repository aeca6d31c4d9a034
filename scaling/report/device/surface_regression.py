"""Is a GPU worth it for a surface and a small network? Epochs over points, trainings, and the fit."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from scaling.analysis.decisions import Difference
from scaling.analysis.study_scatter import CellTimes, study_scatter
from scaling.report.device.common import (
    NO_ROWS,
    Arm,
    Cells,
    device_table,
    measured,
    no_gpu,
    plain,
    remarks,
    variable,
)
from scaling.report.device.comparisons import (
    crossing,
    crossing_text,
    finding,
    is_longer,
    rounded,
    times_of,
)
from scaling.report.device.declared import DeviceReport, Drawing, Lines
from scaling.report.device.drawing import Panel, log_axes
from scaling.report.device.results import DeviceResult, Results, grouped, paired
from scaling.report.figures.parts import WIDTH, legend_below, set_title
from scaling.report.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILLION
from scaling.report.formats import listed, milliseconds, number
from scaling.report.tables import Column, Table

Grid = NDArray[np.float64]

EXTENT = 3.0


WAYS = (
    Arm("cpu", "eager", None, BLUE, "o", ("data", "device"), "CPU eager"),
    Arm("cpu", "compiled", None, SKY_BLUE, "P", ("data", "device"), "CPU compiled"),
    Arm("cpu", "eager", None, GREEN, "v", ("data", "loader"), "CPU eager, DataLoader"),
    Arm("cuda", "eager", None, ORANGE, "s", ("data", "device"), "GPU eager"),
    Arm("cuda", "compiled", None, PURPLE, "X", ("data", "device"), "GPU compiled"),
    Arm("cuda", "captured", None, VERMILLION, "D", ("data", "device"), "GPU captured"),
    Arm("cuda", "eager", None, BLACK, "<", ("data", "host"), "GPU eager, data in host memory"),
    Arm("cuda", "eager", None, GREY, "^", ("data", "loader"), "GPU eager, DataLoader"),
)


def activation(results: Results) -> str:
    """The network's; folders of before it was a parameter had tanh."""
    return str(results.parameters.get("activation", "tanh"))


def ways_of(results: Results) -> dict[Arm, list[DeviceResult]]:
    """Each that has a cell -> its cells by their number of points."""
    cells = sorted(results.cells, key=lambda cell: cell.point["points"])
    return {way: timed for way in WAYS if (timed := way.of(cells))}


def way_named(results: Results, device: str, step: str, data: str = "device") -> list[DeviceResult]:
    """The cells of that way; [] unless one has an epoch's time."""
    for way, cells in ways_of(results).items():
        if (way.device, way.step, way.part) == (device, step, ("data", data)):
            return cells if any(cell.estimate() for cell in cells) else []
    return []


@dataclass(frozen=True)
class FitTraining:
    """A complete training.

    Attributes:
        way: how it was computed.
        cell: what it is of.
        seconds: of all epochs.
        made_s: seconds of compiling or capturing, which come on top; None where nothing is made.
        total_by_launch: repeat -> seconds of both.
        losses: (epoch, mean squared error before its update).
    """

    way: Arm
    cell: DeviceResult
    seconds: float
    made_s: float | None
    total_by_launch: Mapping[Hashable, float]
    losses: tuple[list[float], list[float]]

    @property
    def total_s(self) -> float:
        """With compiling or capturing."""
        return self.seconds + (self.made_s or 0.0)

    @property
    def epochs(self) -> int:
        """How many."""
        return int(self.cell.fact("epochs"))

    @property
    def rms_residual(self) -> float:
        """Of the fit, at the points of the training."""
        return float(self.cell.fact("rms_residual"))

    @property
    def fit(self) -> Grid | None:
        """The network's values on a square grid; the first axis is x."""
        rows = next((row["grid"] for row in self.cell.facts("fit") if "grid" in row), None)
        return None if rows is None else np.asarray(rows, dtype=float)


def trainings(results: Results) -> list[FitTraining]:
    """All that were carried through, in the order of the ways."""
    every = []
    for way, cells in ways_of(results).items():
        for cell in cells:
            whole = cell.estimate("train")
            if whole is None or cell.fact("rms_residual") is None:
                continue
            phase = "capture" if "capture" in cell.phases else "compile"
            made, made_by_launch = cell.estimate(phase), cell.seconds(phase)
            totals: dict[Hashable, float] = {
                repeat: median(seconds) + median(made_by_launch.get(repeat, [0.0]))
                for repeat, seconds in cell.seconds("train").items()
            }
            made_s = made.median if made else None
            every.append(FitTraining(way, cell, whole.median, made_s, totals, _losses(cell)))
    return every


def total_difference(first: FitTraining, second: FitTraining, every: Sequence[FitTraining]) -> Difference:
    """The second's whole time over the first's, with the scatter of all trainings."""
    times: dict[Hashable, CellTimes] = {
        one.cell.cell_id: CellTimes(one.way.device, one.total_by_launch) for one in every
    }
    return study_scatter(times).difference(first.cell.cell_id, second.cell.cell_id)


def _losses(cell: DeviceResult) -> tuple[list[float], list[float]]:
    return next(((row["x"], row["y"]) for row in cell.facts("loss") if "x" in row), ([], []))


def surface(side: int) -> Grid:
    """The surface on a grid of `side` x `side`, the first axis being x.

    The formula is that of `scaling.experiments.surface`, which needs torch.
    """
    axis = np.linspace(-EXTENT, EXTENT, side)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    return np.asarray(
        3 * (1 - x) ** 2 * np.exp(-(x**2) - (y + 1) ** 2)
        - 10 * (x / 5 - x**3 - y**5) * np.exp(-(x**2) - y**2)
        - np.exp(-((x + 1) ** 2) - y**2) / 3
    )


def shown(every: Sequence[FitTraining]) -> FitTraining | None:
    """The training whose fit is shown as a picture: that with the least total time that has one."""
    with_fit = [training for training in every if training.fit is not None]
    return min(with_fit, key=lambda training: training.total_s, default=None)


EPOCHS = (
    "Milliseconds of an epoch, which is one update on all points, over the number of points (columns points "
    "and iteration_s, with its 95% interval as a bar; step, data). Both axes are logarithmic. On the GPU a "
    "line is flat as long as launching kernels, not computing, decides. A line is broken where a number of "
    "points has no time."
)
PICTURE = (
    "The surface, what the network makes of it after the training, and the surface less that, over x (to the "
    "right) and y (upwards); of the training with the least time (columns rms_residual, largest_residual). "
    "Below, the mean squared error over the epochs, of every training; where ways compute the same, the "
    "lines cover each other."
)


def _timed(results: Results) -> list[Arm]:
    return [arm for arm, cells in ways_of(results).items() if any(cell.estimate() for cell in cells)]


def _fit_title(results: Results) -> str:
    best = shown(trainings(results))
    how = f"{best.way.name}, {activation(results)}, {best.epochs:,} epochs" if best else "none"
    return f"surface, fit and residual ({how})"


def _fit(results: Results, title: str) -> Figure | None:
    every = trainings(results)
    best = shown(every)
    if best is None or best.fit is None:
        return None
    truth = surface(len(best.fit))
    residual = truth - best.fit
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    set_title(figure, title)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.0, 1.15])[:, 0]
    panels = above.subplots(1, 3, sharex=True, sharey=True)
    height, largest = float(np.abs(truth).max()), float(np.abs(residual).max())
    pictures = (("surface", truth, height), ("fit", best.fit, height), ("residual", residual, largest))
    for axes, (name, values, limit) in zip(panels, pictures, strict=True):
        _picture(axes, values, limit)
        axes.set_title(name, loc="left")
        axes.set_xlabel("x")
    panels[0].set_ylabel("y")
    axes = below.subplots()
    for training in every:
        axes.plot(*training.losses, color=training.way.colour, linewidth=1.2)
    log_axes(axes, "epoch", "mean squared error")
    ways = dict.fromkeys(training.way for training in every)
    legend_below(below, [Line2D([], [], color=way.colour, label=way.name) for way in ways])
    return figure


def _picture(axes: Axes, values: Grid, limit: float) -> None:
    extent = (-EXTENT, EXTENT, -EXTENT, EXTENT)
    image = axes.imshow(values.T, origin="lower", extent=extent, cmap="RdBu_r", vmin=-limit, vmax=limit)
    axes.grid(visible=False)
    axes.figure.colorbar(image, ax=axes, location="bottom", shrink=0.9, aspect=14)


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


def _loader_sentences(results: Results) -> Iterator[str]:
    clauses = []
    for device, name in (("cpu", "CPU"), ("cuda", "GPU")):
        near, loader = (way_named(results, device, "eager", place) for place in ("device", "loader"))
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
    eager = {training.way.device: training for training in trained if training.way.step == "eager"}
    for training in trained:
        base = eager.get(training.way.device)
        if training.made_s is not None and base is not None:
            where = f"{_verb(training)} on the {training.way.name.split()[0]}"
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
    shortest: dict[str, FitTraining] = {}
    for training in sorted(every, key=lambda training: training.total_s):
        shortest.setdefault(training.way.device, training)
    if len(shortest) < 2:
        return ""
    cpu, gpu = shortest["cpu"], shortest["cuda"]
    difference = total_difference(gpu, cpu, every)
    times = f"{number(gpu.total_s)} s on {gpu.way.name} and {number(cpu.total_s)} s on {cpu.way.name}"
    return f"{_verdict(difference)}a complete training takes {times}."


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
        f"{number(training.total_s)} s on {training.way.name}"
        + (f" ({number(training.made_s)} s of it {_verb(training).lower()})" if training.made_s else "")
        for training in trainings(results)
    ]
    complete = [*finding(results, "A complete training takes ", [listed(whole)] if whole else [])]
    if "cuda" in results.missing or not results.all("cuda"):
        return " ".join(["That is not answered here.", no_gpu(results, NO_ROWS), *complete])
    cpu, clauses = way_named(results, "cpu", "eager"), []
    for step in ("eager", "captured"):
        if cpu and (gpu := way_named(results, "cuda", step)):
            clauses.append(f"{step} {crossing_text(crossing(paired(gpu, cpu, 'points')))}")
    before = f"An epoch takes less time than on the CPU{_cores(cpu)}, in numbers of points: "
    return " ".join([*finding(results, before, clauses or ["not measured on both"]), *complete])


def _verb(training: FitTraining) -> str:
    return "Capturing" if training.way.step == "captured" else "Compiling"


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
            y="ms an epoch", hues=_timed, columns=lambda _: 1, row_height=3.9,
        ),
        Drawing("fit", PICTURE, _fit_title, _fit),
    ),
    rows=_rows,
    named=("points", "step", "data"),
    findings=_findings,
    answer=_answer,
    headline=_headline,
)  # fmt: skip
