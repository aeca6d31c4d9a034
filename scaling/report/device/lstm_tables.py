"""The tables of `lstm-fused`: speeds, accuracies, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.formats import MISSING, number, percent
from scaling.report.device.common import DEVICES, left_out_table, statistic, time_and_interval_cell
from scaling.report.device.lstm_data import PHASES, Accuracy, Comparison, comparisons, ordered, rate
from scaling.report.device.remarks import remarks
from scaling.report.device.results import DeviceResult, Results
from scaling.report.tables import Table

VARIABLES = ("task", "width", "batch", "precision", "implementation")


def tables(results: Results) -> Iterator[Table]:
    """Speeds, accuracies, and what was left out."""
    yield _speed_table(results)
    if compared := comparisons(results):
        yield _accuracy_table(results, compared)
    yield from left_out_table(results, VARIABLES)


def _speed_table(results: Results) -> Table:
    cells = ordered(results.cells)
    points = list(dict.fromkeys(tuple(cell.point[name] for name in VARIABLES) for cell in cells))
    devices = [name for name in DEVICES if results.all(name) or name in results.missing]
    rows, ids = [], []
    for key in points:
        row = [str(key[0]), f"{key[1]:,}", f"{key[2]:,}", *map(str, key[3:])]
        own = [results.find(device, **dict(zip(VARIABLES, key, strict=True))) for device in devices]
        for cell in own:
            row += [time_and_interval_cell(cell.estimate() if cell else None)]
            row += [number(rate(cell, phase)) for phase in PHASES]
        rows.append(row)
        ids.append([cell.cell_id for cell in own if cell])
    headings = [
        f"{DEVICES[device]}: {what}"
        for device in devices
        for what in ("ms a training step", *(f"{name}, samples/s" for name in PHASES.values()))
    ]
    return Table(
        f"{results.experiment}: speed of one LSTM layer",
        statistic(results),
        [*VARIABLES, *headings],
        rows,
        remarks(results),
        cells=ids,
        section="devices",
    )


def _accuracy_table(results: Results, compared: Sequence[Comparison]) -> Table:
    rows, ids, left_out = [], [], []
    for one in compared:
        for accuracy in one.accuracies:
            rows.append(_accuracy_row(one, accuracy))
            ids.append([accuracy.cell.cell_id])
        left_out += [_left_out(cell) for cell in one.left_out]
    seeds = len(results.parameters["seeds"])
    return Table(
        f"{results.experiment}: accuracy on held-out samples after {results.parameters['steps']} steps",
        f"Mean over {seeds} seeds with its standard deviation; difference: mean over the seeds of what it is "
        "above that of the fused implementation in float32 on the same device. Logits: largest difference "
        "from float64, untrained.",
        ["task", "on", "precision", "implementation", "accuracy", "difference, points", "logits"],
        rows,
        left_out,
        cells=ids,
        section="devices",
    )


def _accuracy_row(compared: Comparison, one: Accuracy) -> list[str]:
    way, precision = one.way
    difference = one.difference(compared.reference) if compared.reference else None
    logits = one.cell.fact("logit_difference")
    return [
        compared.task,
        DEVICES[compared.device],
        precision,
        way,
        score_text(one),
        MISSING if difference is None else f"{100 * difference:+.2f}",
        MISSING if logits is None else f"{logits:.1e}",
    ]


def score_text(one: Accuracy) -> str:
    """Of the seeds: their mean with its deviation."""
    sd = one.sd
    return percent(one.mean, 2) if sd is None else f"{percent(one.mean, 2)} ± {100 * sd:.2f}"


def _left_out(cell: DeviceResult) -> str:
    point = cell.point
    way = f"{point['task']}, {DEVICES[cell.device]}, {point['implementation']}, {point['precision']}"
    return f"No accuracy of {way}: {cell.fact('accuracy_left_out')}."
