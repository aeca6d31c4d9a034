"""The report of an experiment that has none of its own: one table of all that was measured."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.formats import MISSING
from scaling.report.device.common import interval_cell, left_out_table, rate_cell, statistic, time_cell
from scaling.report.device.remarks import NO_ROWS, remarks
from scaling.report.device.results import DeviceResult, Results
from scaling.report.figures.base import Drawn
from scaling.report.tables import Table


def figures(results: Results) -> Iterator[Drawn]:
    """None: nothing is known of its variables."""
    yield from ()


def tables(results: Results) -> Iterator[Table]:
    """A row for each point, device and phase."""
    variables = list(dict.fromkeys(name for cell in results.cells for name in cell.point))
    headings = [*variables, "device", "threads", "what", "ms", "95% interval, ms", "samples/s", "facts"]
    rows, cells = [], []
    for cell in results.cells:
        for phase in cell.phases or [""]:
            rows.append([*_point(cell, variables), *_measured(cell, phase)])
            cells.append([cell.cell_id])
    yield Table(
        results.experiment,
        statistic(results),
        headings,
        rows,
        remarks(results, NO_ROWS),
        cells=cells,
        section="devices",
    )
    yield from left_out_table(results, variables)


def sentences(results: Results) -> Iterator[str]:
    """How much was measured: what it means is the experiment's own."""
    measured = sum(bool(cell.phases) for cell in results.cells)
    yield f"{results.experiment}: {measured} of {len(results.cells)} points were measured; see its table."


def _point(cell: DeviceResult, variables: list[str]) -> list[str]:
    return [str(cell.point.get(name, MISSING)) for name in variables] + [cell.device, str(cell.threads)]


def _measured(cell: DeviceResult, phase: str) -> list[str]:
    estimate = cell.estimate(phase)
    facts = ", ".join(f"{name} {value}" for name, value in cell.scalars.items())
    return [phase, time_cell(estimate), interval_cell(estimate), rate_cell(cell), facts]
