"""The report of an experiment that has none of its own: one table of all that was measured."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.report.device.common import device_table, interval_cell, time_cell
from scaling.report.device.declared import DeviceReport
from scaling.report.device.remarks import NO_ROWS, remarks
from scaling.report.device.results import DeviceResult, Results
from scaling.report.formats import MISSING, number
from scaling.report.tables import Column, Table


def _rows(results: Results) -> Iterator[Table]:
    """A row for each point, device and phase."""
    variables = _variables(results)
    columns: list[Column[tuple[DeviceResult, str]]] = [
        *(Column(name, lambda row, name=name: str(row[0].point.get(name, MISSING))) for name in variables),  # type: ignore[misc]
        Column("device", lambda row: row[0].device),
        Column("threads", lambda row: str(row[0].threads)),
        Column("what", lambda row: row[1]),
        Column("ms", lambda row: time_cell(row[0].estimate(row[1]))),
        Column("95% interval, ms", lambda row: interval_cell(row[0].estimate(row[1]))),
        Column("samples/s", lambda row: number(row[0].samples_per_s)),
        Column("facts", lambda row: ", ".join(f"{name} {value}" for name, value in row[0].scalars.items())),
    ]
    rows = [(cell, phase) for cell in results.cells for phase in cell.phases or [""]]
    below = remarks(results, NO_ROWS)
    yield device_table(results, "", columns, rows, cells_of=lambda row: [row[0]], remarks=below)


def _variables(results: Results) -> list[str]:
    return list(dict.fromkeys(name for cell in results.cells for name in cell.point))


def _answer(results: Results) -> str:
    """How much was measured: what it means is the experiment's own."""
    measured = sum(bool(cell.phases) for cell in results.cells)
    return f"{results.experiment}: {measured} of {len(results.cells)} points were measured; see its table."


def report(results: Results) -> DeviceReport:
    """Without figures: nothing is known of its variables."""
    return DeviceReport(question="", plots=(), rows=_rows, named=_variables(results), answer=_answer)
