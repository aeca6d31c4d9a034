"""How should an LSTM be written, and in which precision? Speeds, and whether the accuracy changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scaling.report.device.common import (
    DEVICES,
    Cells,
    Variant,
    device_table,
    missing_remark,
    remarks,
    time_and_interval_cell,
    variable,
)
from scaling.report.device.comparisons import finding, times_of
from scaling.report.device.declared import RATE, DeviceReport, Drawing, Lines
from scaling.report.device.drawing import Panel
from scaling.report.device.lstm_accuracy import (
    ACCURACY,
    COLOURS,
    IMPLEMENTATIONS,
    MARKERS,
    PRECISIONS,
    accuracy_answer,
    accuracy_headline,
    accuracy_tables,
    accuracy_title,
    draw_accuracies,
    place,
)
from scaling.report.device.results import DeviceResult, Results, fastest, grouped, paired
from scaling.report.figures.style import LineStyle
from scaling.report.formats import listed, number
from scaling.report.tables import Column, Table

VARIABLES = ("task", "width", "batch", "precision", "implementation")
PHASES = {"step": "training", "evaluate": "evaluation", "predict": "prediction"}
NAMES = {"elementary": "elementary operations", "cell": "LSTMCell loop", "fused": "fused nn.LSTM"}
OTHERS = {"cell": "a loop over LSTMCell", "elementary": "elementary operations"}
DASHES: dict[str, LineStyle] = {"cuda": "-", "cpu": (0, (4, 2))}
SPEED = (
    "Samples a second over the mini-batch, with 95% intervals as bars, a column of panels for each precision "
    "(columns batch, precision; "
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
    yield Column(f"{name}: ms a training step", lambda cells: time_and_interval_cell(of(cells)))
    for phase in PHASES:
        yield Column(
            f"{name}: {PHASES[phase]}, samples/s",
            lambda cells, phase=phase: number(rate(of(cells), phase)),  # type: ignore[misc]
        )


def _title(results: Results) -> str:
    chosen = timed(results)
    return f"speed on {chosen.get('task')}, width {chosen.get('width')}"


def _panels(results: Results) -> list[Panel]:
    """A row for each phase, a column for each precision."""
    chosen = timed(results)
    return [
        Panel(cells, "batch", title=f"{name}, {precision}", phase=phase)
        for phase, name in PHASES.items()
        for precision in PRECISIONS
        if chosen and (cells := results.all(**chosen, precision=precision))
    ]


def _arms(results: Results) -> list[Variant]:
    return [
        Variant(
            *(device, "eager", None, COLOURS[name], MARKERS[name], ("implementation", name)),
            label=f"{DEVICES[device]}, {NAMES[name]}",
            dashes=dashes,
        )
        for device, dashes in DASHES.items()
        for name in IMPLEMENTATIONS
        if results.all(device, implementation=name)
    ]


def _findings(results: Results) -> Iterator[str]:
    """Speeds by implementation, precision and device."""
    if chosen := timed(results):
        for device in DEVICES:
            yield from _implementations(results, chosen, device)
            yield from _precisions(results, chosen, device)
        yield from _devices(results, chosen)
    yield from missing_remark(results)


def _implementations(results: Results, chosen: dict[str, Any], device: str) -> Iterator[str]:
    clauses = []
    for phase, what in PHASES.items():
        ratios = {name: _ratios(results, chosen, device, phase, implementation=name) for name in OTHERS}
        if each := [f"{ratio} by {OTHERS[name]}" for name, ratio in ratios.items() if ratio]:
            clauses.append(f"{what} {listed(each)}")
    before = f"{_where(chosen, device)}, float32, in multiples of the fused LSTM's time: "
    yield from finding(results, before, clauses)


def _precisions(results: Results, chosen: dict[str, Any], device: str) -> Iterator[str]:
    ratios = {
        name: _ratios(results, chosen, device, "step", precision=name) for name in ("float64", "float16")
    }
    clauses = [f"{ratio} as long in {name} as in float32" for name, ratio in ratios.items() if ratio]
    before = f"{_where(chosen, device)}: training of the fused LSTM takes "
    yield from finding(results, before, [listed(clauses)] if clauses else [])


def _where(chosen: dict[str, Any], device: str) -> str:
    return f"{chosen['task']}, width {chosen['width']}, on the {DEVICES[device]}"


def _ratios(results: Results, chosen: dict[str, Any], device: str, phase: str, **other: str) -> str:
    """A phase's times over those of fused in float32, and at which batches if not at all of the study."""
    reference = {**chosen, "implementation": "fused", "precision": "float32"}
    others, fused = results.all(device, **{**reference, **other}), results.all(device, **reference)
    ratios = paired(fused, others, "batch", phase)
    if not ratios:
        return ""
    is_whole = ratios.keys() == {cell.point["batch"] for cell in results.all(**chosen)}
    return times_of([*ratios.values()]) + (
        "" if is_whole else f" at batch {listed([f'{b:,}' for b in ratios])}"
    )


def _devices(results: Results, chosen: dict[str, Any]) -> Iterator[str]:
    """The CPU over the GPU, each with its implementation of least time in float32."""
    ratios, is_whole = [], True
    for batch, cells in grouped(results.all(**chosen, precision="float32"), "batch").items():
        cpu, gpu = fastest(cells, "cpu"), fastest(cells, "cuda")
        if cpu and gpu and (difference := gpu.difference(cpu)):
            ratios.append(f"{times_of([difference])} at batch {batch:,}")
            is_whole = is_whole and all(cell.is_over for cell in cells)
    which = "" if is_whole else " of those measured so far"
    before = (
        f"{chosen['task']}, width {chosen['width']}, float32, the implementation of least time{which} on "
        "each: the time of training on the CPU over that on the GPU is "
    )
    yield from finding(results, before, [listed(ratios)] if ratios else [])


REPORT = DeviceReport(
    question="Does the accuracy change with the implementation or the precision?",
    plots=(
        Lines(
            "speed", SPEED, _title, _panels, y=RATE, hues=_arms,
            rows=len(PHASES), row_height=1.8,
            share={"sharex": True, "sharey": "row"},
        ),
        Drawing("accuracy", ACCURACY, accuracy_title, draw_accuracies),
    ),
    rows=_rows,
    named=VARIABLES,
    findings=_findings,
    answer=accuracy_answer,
    headline=accuracy_headline,
    over="seeds",
)  # fmt: skip
