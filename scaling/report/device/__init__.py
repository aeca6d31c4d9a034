"""The reports of `kind: device`: figures, tables and the sentences that answer an experiment's question, as
declared with it (`scaling.device_studies.declaration`). Code of one study alone is in `accuracy` and
`fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd

from scaling.analysis.columns import columns, to_rows
from scaling.analysis.decisions import FEWEST
from scaling.analysis.rates import MEDIAN_OF_STEPS
from scaling.device_studies.declaration import DEVICES, Lines
from scaling.report.device import accuracy, fit
from scaling.report.device.answers import answer_table
from scaling.report.device.comparisons import LEAD
from scaling.report.device.drawing import DRAWN
from scaling.report.device.findings import sentences as of_findings
from scaling.report.device.findings import short_answer as of_answer
from scaling.report.device.results import STEP, DeviceResult, DeviceResults, read_devices, size_of
from scaling.report.device.tables import declared_table, left_out_table, missing_remark
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.tables import Table
from scaling.store.files import fitting

__all__ = ["DeviceResults", "read_devices"]

SECTION = "devices"

HOW_LINES = (
    "Bars: 95% intervals. All axes are logarithmic. A line is broken where there is no number; dashed: on "
    "the CPU, where the GPU has a line of the same colour."
)

OWN: dict[str, Any] = {"accuracy": accuracy, "fit": fit}
T = TypeVar("T")


def _of_all(experiments: Sequence[DeviceResults], say: Callable[[DeviceResults], Iterable[T]]) -> Iterator[T]:
    for results in experiments:
        with _fitting(results):
            made = [*say(results)]
        yield from made


def _own(results: DeviceResults, name: str) -> Any:
    module = OWN.get(results.report.own)
    return getattr(module, name)(results) if hasattr(module, name) else ()


def figures(results: DeviceResults) -> Iterator[Drawn]:
    for declared in results.report.figures:
        title = f"{results.experiment}: {results.text(declared.title)}"
        if (drawn := DRAWN[type(declared)](declared, results, title)) is not None:
            caption = f"{declared.caption} {HOW_LINES}" if isinstance(declared, Lines) else declared.caption
            yield Drawn(f"device-{results.slug}-{declared.name}", title, caption, drawn)
    yield from _own(results, "figures")


@figure(section=SECTION)
def experiments(data: FigureInput) -> Iterator[Drawn]:
    return _of_all(data.experiments, figures)


def device_tables(experiments: Sequence[DeviceResults]) -> list[Table]:
    def of_one(results: DeviceResults) -> Iterator[Table]:
        for rows in results.report.tables:
            yield from declared_table(results, rows)
        yield from _own(results, "tables")
        yield from left_out_table(results)

    return [replace(table, section=SECTION) for table in _of_all(experiments, of_one)]


def device_answer_table(experiments: Sequence[DeviceResults]) -> Table | None:
    """That of the only experiment; None where it has none."""
    if len(experiments) != 1:
        return None
    return _own(experiments[0], "answer_table") or answer_table(experiments[0])


def short_answer(results: DeviceResults) -> str:
    text = str(_own(results, "short") or of_answer(results.report.answer, results))
    if not text or results.num_launches > 1 or results.report.own == "accuracy":
        return text
    return LEAD + (text[0].lower() if text[1].islower() else text[0]) + text[1:]


def sentences(results: DeviceResults) -> Iterator[str]:
    report = results.report
    yield from of_findings(report.findings, results)
    yield from _own(results, "findings")
    said = [*of_findings(report.answer, results)]
    if report.answer and report.question and not said:
        said = ["That is not answered here."]
    said += _own(results, "answer")
    if not said:
        measured = sum(bool(cell.phases) for cell in results.cells)
        total = len(results.cells)
        said = [f"{results.experiment}: {measured} of {total} points were measured; see its table."]
    said = [report.question, short_answer(results), *said, *missing_remark(results)]
    yield " ".join(filter(None, said))


def device_sentences(experiments: Sequence[DeviceResults]) -> list[str]:
    def of_one(results: DeviceResults) -> list[str]:
        *others, answer = sentences(results)
        return [*_unfinished(results), answer, *others]

    return [*_of_all(experiments, of_one)]


def device_headline(experiments: Sequence[DeviceResults]) -> str:
    def of_one(results: DeviceResults) -> Iterator[str]:
        if headline := short_answer(results):
            to_decide = f" (repeats={FEWEST} to decide.)" if headline.startswith(LEAD) else ""
            said = [results.report.question, headline + to_decide, *_unfinished(results)]
            yield " ".join(filter(None, said))

    every = [*_of_all(experiments, of_one)]
    return " ".join(every) if len(every) == len(experiments) else ""


def _fitting(results: DeviceResults) -> AbstractContextManager[None]:
    where = f"{results.folder}: experiment {results.experiment!r}: points or facts of its cells"
    return fitting(where, "delete the runs of its cells, and `scaling run` measures them again")


def _unfinished(results: DeviceResults) -> Iterator[str]:
    def count(cells: Sequence[DeviceResult]) -> str:
        return f"{sum(not cell.is_over for cell in cells)} of {len(cells)}"

    devices = {device.name: results.where(device.where) for device in DEVICES}
    each = [f"{name}: {count(cells)}" for name, cells in devices.items() if cells]
    split = f" ({'; '.join(each)})" if len(each) > 1 else ""
    if not all(cell.is_over for cell in results.cells):
        yield (
            f"{results.experiment}: {count(results.cells)} points are not measured yet{split}; what is said "
            "of it is of the others, and may change."
        )


def with_devices(table: pd.DataFrame, experiments: Sequence[DeviceResults]) -> pd.DataFrame:
    """The summary with what device cells have: columns of a step's time filled, and appended `experiment`,
    the points' variables, `<phase>_seconds` with `_low` and `_high` for phases besides the step, and the
    facts, where the summary has not such a column already."""
    if not experiments:
        return table
    rows = {str(row["cell_id"]): row for row in to_rows(table)}
    names = dict.fromkeys(table.columns)
    for results in experiments:
        for cell in sorted(results.cells, key=_place):
            values = {"experiment": results.experiment, **_values(cell)}
            rows[cell.cell_id].update(values)
            names |= dict.fromkeys(values)
    wide = pd.DataFrame([{name: row.get(name) for name in names} for row in rows.values()], columns=[*names])
    types = {name: kind for name, kind in columns().items() if name in wide}
    with _fitting(experiments[0]):
        return wide.astype(types).convert_dtypes()


def _place(cell: DeviceResult) -> tuple[Any, ...]:
    return ([size_of(value) for value in cell.point.values()], cell.device, cell.threads, cell.cell_id)


def _values(cell: DeviceResult) -> dict[str, Any]:
    values: dict[str, Any] = dict(cell.point)
    for phase in cell.phases:
        estimate = cell.estimate(phase)
        if estimate is None:
            continue
        name = "iteration_s" if phase == STEP else f"{phase}_seconds"
        values |= {name: estimate.median, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        if phase == STEP:
            values |= {"iterations": estimate.num_samples, "interval_method": estimate.method}
            values |= {"iteration_form": MEDIAN_OF_STEPS, "samples_per_s": cell.per_s()}
    return {**cell.scalars, **values}
