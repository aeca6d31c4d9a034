"""How should an LSTM be written, and in which precision? Speeds, and whether the accuracy changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from scaling.measure.statistics import Estimate
from scaling.report.device.common import (
    DEVICES,
    Cells,
    device_table,
    finding,
    range_of,
    step_of,
    time_and_interval_cell,
    times_of,
    variable,
)
from scaling.report.device.declared import Drawing, Report
from scaling.report.device.drawing import handle, new_figure, short
from scaling.report.device.lstm_accuracy import (
    ACCURACY,
    COLOURS,
    IMPLEMENTATIONS,
    MARKERS,
    PRECISIONS,
    accuracy_answer,
    accuracy_tables,
    accuracy_title,
    draw_accuracies,
    place,
)
from scaling.report.device.remarks import missing_remark, remarks
from scaling.report.device.results import DeviceResult, Results, fastest_on_each, grouped
from scaling.report.figures.parts import add_tip, legend_below
from scaling.report.figures.style import BLACK
from scaling.report.formats import listed, number
from scaling.report.tables import Column, Table

VARIABLES = ("task", "width", "batch", "precision", "implementation")
PHASES = {"step": "training", "evaluate": "evaluation", "predict": "prediction"}
NAMES = {"elementary": "elementary operations", "cell": "LSTMCell loop", "fused": "fused nn.LSTM"}
OTHERS = {"cell": "a loop over LSTMCell", "elementary": "elementary operations"}
DEVICE_LOOKS: dict[str, dict[str, Any]] = {
    "cuda": {"linestyle": "-"},
    "cpu": {"linestyle": (0, (4, 2)), "markerfacecolor": "white"},
}
SPEED = (
    "Samples a second over the mini-batch, a column of panels for each precision (columns batch, precision; "
    "batch over iteration_s, evaluate_seconds and predict_seconds). Both axes are logarithmic. Training: an "
    "optimizer update on samples on the device. Evaluation: forward pass, loss and right answers there. "
    "Prediction: from host memory to host memory. A line is broken where a batch has no number."
)


def rate(cell: DeviceResult | None, phase: str) -> float | None:
    """Samples a second of a phase; None where it was not measured."""
    estimate = cell.estimate(phase) if cell else None
    return cell.point["batch"] / estimate.median if cell and estimate and estimate.median > 0 else None


def timed(results: Results) -> dict[str, Any]:
    """Task and width of the cells whose speed is shown over the batches; {} where there are none."""
    width = results.parameters["width"]
    real = [cell.point["task"] for cell in results.all(width=width) if cell.point["task"].endswith("-rows")]
    return {"task": real[0], "width": width} if real else {}


def _rows(results: Results) -> Iterator[Table]:
    """Speeds and accuracies."""
    devices = [name for name in DEVICES if results.all(name) or name in results.missing]
    yield device_table(
        results,
        ": speed of one LSTM layer",
        [*map(variable, VARIABLES), *(column for device in devices for column in _device_columns(device))],
        sorted(grouped(results.cells, *VARIABLES).values(), key=lambda cells: place(cells[0])),
        remarks=remarks(results),
    )
    yield from accuracy_tables(results)


def _device_columns(device: str) -> Iterator[Column[Cells]]:
    def of(cells: Cells) -> DeviceResult | None:
        return next((cell for cell in cells if cell.device == device), None)

    name = DEVICES[device]
    yield Column(f"{name}: ms a training step", lambda cells: time_and_interval_cell(step_of(of(cells))))
    for phase in PHASES:
        yield Column(
            f"{name}: {PHASES[phase]}, samples/s",
            lambda cells, phase=phase: number(rate(of(cells), phase)),  # type: ignore[misc]
        )


def _title(results: Results) -> str:
    chosen = timed(results)
    return f"speed on {chosen.get('task')}, width {chosen.get('width')}"


def _draw_speeds(results: Results, title: str) -> Figure | None:
    chosen = timed(results)
    if not chosen or not any(cell.estimate() for cell in results.all(**chosen)):
        return None
    precisions = [name for name in PRECISIONS if results.all(**chosen, precision=name)]
    figure, panels = new_figure(title, 6.2, len(PHASES), len(precisions), sharex=True, sharey="row")
    batches = sorted({cell.point["batch"] for cell in results.all(**chosen)})
    for row, (phase, name) in enumerate(PHASES.items()):
        for axes, precision in zip(panels[row], precisions, strict=True):
            _speed_lines(axes, results, {**chosen, "precision": precision}, phase)
            _speed_axes(axes, batches)
        panels[row][0].set_ylabel(f"{name}, samples/s")
    for axes, precision in zip(panels[0], precisions, strict=True):
        axes.set_title(precision, loc="left")
    for axes in panels[-1]:
        axes.set_xlabel("batch")
    ways = [way for way in IMPLEMENTATIONS if results.all(implementation=way)]
    looks = {DEVICES[name]: look for name, look in DEVICE_LOOKS.items() if results.all(name)}
    entries = [handle(NAMES[way], color=COLOURS[way], marker=MARKERS[way]) for way in ways]
    entries += [handle(name, color=BLACK, marker="o", **look) for name, look in looks.items()]
    legend_below(figure, entries)
    return figure


def _speed_axes(axes: Axes, batches: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(batches)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())


def _speed_lines(axes: Axes, results: Results, chosen: dict[str, Any], phase: str) -> None:
    for device, way in product(DEVICES, IMPLEMENTATIONS):
        groups = grouped(results.all(device, **chosen, implementation=way), "batch")
        rates = {batch: rate(cells[0], phase) for batch, cells in groups.items()}
        look = {"color": COLOURS[way], "marker": MARKERS[way], **DEVICE_LOOKS[device]}
        values = [value or math.nan for value in rates.values()]
        axes.plot([*rates], values, markersize=4, linewidth=1.2, **look)
        for batch, value in rates.items():
            if value:
                name = f"{DEVICES[device]}, {NAMES[way]}"
                add_tip(axes, batch, value, f"{name}, {batch}: {value:,.0f} samples/s")


def _findings(results: Results) -> Iterator[str]:
    """Speeds by implementation, precision and device."""
    if chosen := timed(results):
        for device in DEVICES:
            yield from _implementations(results, chosen, device)
            yield from _precisions(results, chosen, device)
        yield from _devices(results, chosen)
    yield from missing_remark(results)


Pairs = dict[int, tuple[Estimate, Estimate]]
"""Batch -> a phase's time of the other way and of fused in float32, where both were measured; ascending."""


def _implementations(results: Results, chosen: dict[str, Any], device: str) -> Iterator[str]:
    pairs = {
        (phase, way): both
        for phase in PHASES
        for way in OTHERS
        if (both := _pairs(results, chosen, device, phase, implementation=way))
    }
    where, batches = _at(results, chosen, pairs)
    phases: dict[str, list[str]] = {}
    for (phase, way), both in pairs.items():
        ratio = range_of([*both.values()])
        phases.setdefault(phase, []).append(f"{ratio} as fast as {OTHERS[way]}{batches[phase, way]}")
    clauses = [f"in {PHASES[phase]} {listed(ratios)}" for phase, ratios in phases.items()]
    yield from finding(results, f"{_where(chosen, device)}, float32{where}: the fused LSTM is ", clauses)


def _precisions(results: Results, chosen: dict[str, Any], device: str) -> Iterator[str]:
    pairs = {
        precision: both
        for precision in ("float64", "float16")
        if (both := _pairs(results, chosen, device, "step", precision=precision))
    }
    where, batches = _at(results, chosen, pairs)
    clauses = []
    for precision, both in pairs.items():
        ratio = range_of([(fused, other) for other, fused in both.values()])
        clauses.append(f"{ratio} as fast in {precision} as in float32{batches[precision]}")
    together = [listed(clauses)] if clauses else []
    yield from finding(results, f"{_where(chosen, device)}{where}: the fused LSTM trains ", together)


def _where(chosen: dict[str, Any], device: str) -> str:
    return f"{chosen['task']}, width {chosen['width']}, on the {DEVICES[device]}"


def _at(results: Results, chosen: dict[str, Any], pairs: Mapping[Any, Pairs]) -> tuple[str, dict[Any, str]]:
    """`, at batch 1,024`, if all comparisons are of these batches, and what each needs to be told.

    Nothing is told where these are all batches of the study.
    """
    every = {cell.point["batch"] for cell in results.all(**chosen)}
    each = {
        key: "" if both.keys() == every else f" at batch {listed([f'{batch:,}' for batch in both])}"
        for key, both in pairs.items()
    }
    if len(set(each.values())) == 1 and any(each.values()):
        return f",{next(iter(each.values()))}", dict.fromkeys(each, "")
    return "", each


def _pairs(results: Results, chosen: dict[str, Any], device: str, phase: str, **other: str) -> Pairs:
    reference = {**chosen, "implementation": "fused", "precision": "float32"}
    fused, others = (
        {
            cell.point["batch"]: estimate
            for cell in results.all(device, **point)
            if (estimate := cell.estimate(phase))
        }
        for point in (reference, {**reference, **other})
    )
    return {batch: (others[batch], fused[batch]) for batch in sorted(fused.keys() & others.keys())}


def _devices(results: Results, chosen: dict[str, Any]) -> Iterator[str]:
    """The GPU over the CPU, each with its fastest implementation in float32."""
    ratios, is_whole = [], True
    for batch, cells in grouped(results.all(**chosen, precision="float32"), "batch").items():
        cpu, gpu = fastest_on_each(cells)
        if cpu and gpu:
            ratios.append(f"{times_of(cpu, gpu)} at batch {batch:,}")
            is_whole = is_whole and all(cell.is_over for cell in cells)
    which = "" if is_whole else " of those measured so far"
    before = (
        f"{chosen['task']}, width {chosen['width']}, float32, the fastest implementation{which} on each: "
        "training on the GPU over the CPU, in samples a second, "
    )
    yield from finding(results, before, [listed(ratios)] if ratios else [])


REPORT = Report(
    question="Does the accuracy change with the implementation or the precision?",
    plots=(
        Drawing("speed", SPEED, _title, _draw_speeds),
        Drawing("accuracy", ACCURACY, accuracy_title, draw_accuracies),
    ),
    rows=_rows,
    named=VARIABLES,
    findings=_findings,
    answer=accuracy_answer,
)
