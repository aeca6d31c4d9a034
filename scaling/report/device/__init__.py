"""The reports of `kind: device`: figures, tables and the sentences that answer an experiment's question.

The module of an experiment (`REPORTS`) declares its report (`declared.Report`); the answer to its question
stands first on the page. Experiments of other packages have a plain table (`plain`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd

from scaling.analysis.columns import columns
from scaling.analysis.decisions import FEWEST
from scaling.report.device import (
    batch_sizes,
    cpu_threads,
    kernel_choices,
    lstm_fused,
    small_networks,
    surface_regression,
)
from scaling.report.device.common import DEVICES
from scaling.report.device.comparisons import LEAD
from scaling.report.device.declared import DeviceReport, plain_report
from scaling.report.device.results import STEP, DeviceResult, Results, grouped, read_devices
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.tables import Table
from scaling.store.files import fitting

__all__ = [
    "Results",
    "device_headline",
    "device_sentences",
    "device_tables",
    "experiments",
    "read_devices",
    "with_devices",
]

SECTION = "devices"


REPORTS: Mapping[str, DeviceReport] = {
    "batch-sizes": batch_sizes.REPORT,
    "cpu-threads": cpu_threads.REPORT,
    "kernel-choices": kernel_choices.REPORT,
    "lstm-fused": lstm_fused.REPORT,
    "small-networks": small_networks.REPORT,
    "surface-regression": surface_regression.REPORT,
}


def report_of(results: Results) -> DeviceReport:
    """The experiment's own report, or the plain one."""
    return REPORTS.get(results.experiment) or plain_report(results)


T = TypeVar("T")


def _of_all(
    experiments: Sequence[Results], say: Callable[[DeviceReport, Results], Iterable[T]]
) -> Iterator[T]:
    """What the reports of all experiments have of something."""
    for results in experiments:
        with _fitting(results):
            made = [*say(report_of(results), results)]
        yield from made


@figure(section=SECTION)
def experiments(data: FigureInput) -> Iterator[Drawn]:
    """The figures of all experiments."""
    return _of_all(data.experiments, DeviceReport.figures)


def device_tables(experiments: Sequence[Results]) -> list[Table]:
    """The page's tables of all experiments."""
    return [replace(table, section=SECTION) for table in _of_all(experiments, DeviceReport.tables)]


def device_sentences(experiments: Sequence[Results]) -> list[str]:
    """What was found, of all experiments: of each what is unfinished, its answer, then the rest."""

    def sentences(report: DeviceReport, results: Results) -> list[str]:
        *others, answer = [*report.sentences(results)] or [""]
        return [*_unfinished(results), *([answer] if answer else []), *others]

    return [*_of_all(experiments, sentences)]


def device_headline(experiments: Sequence[Results]) -> str:
    """Question and answer of all experiments, each in one short sentence; "" where one has none."""
    sentences = []
    for results in experiments:
        report = report_of(results)
        with _fitting(results):
            headline = report.short_answer(results)
        if not headline:
            return ""
        if headline.startswith(LEAD):
            headline += f" (repeats={FEWEST} to decide.)"
        sentences.append(" ".join([report.question, headline, *_unfinished(results)]))
    return " ".join(sentences)


def _fitting(results: Results) -> AbstractContextManager[None]:
    """An experiment's report takes points and facts to be those that the experiment records."""
    where = f"{results.folder}: experiment {results.experiment!r}: points or facts of its cells"
    return fitting(where, "delete the runs of its cells, and `scaling run` measures them again")


def _unfinished(results: Results) -> Iterator[str]:
    """What makes all that follows preliminary."""
    num = sum(not cell.is_over for cell in results.cells)
    if not num:
        return
    each = [
        f"{DEVICES[device]}: {sum(not cell.is_over for cell in cells)} of {len(cells)}"
        for device, cells in grouped(results.cells, "device").items()
    ]
    split = f" ({'; '.join(each)})" if len(each) > 1 else ""
    yield (
        f"{results.experiment}: {num} of {len(results.cells)} points are not measured yet{split}; what is "
        "said of it is of the others, and may change."
    )


def with_devices(table: pd.DataFrame, experiments: Sequence[Results]) -> pd.DataFrame:
    """The summary with what device cells have: columns of a step's time filled, others appended.

    Appended are `experiment`, the points' variables, `<phase>_seconds` with `_low` and `_high` for what was
    timed besides the step, and the facts; one whose name the summary has already stands there.
    """
    if not experiments:
        return table
    filled = table.astype(object).where(table.notna(), None)
    rows = {str(row["cell_id"]): row for row in filled.to_dict("records")}
    names = list(filled.columns)
    for results in experiments:
        for cell in results.cells:
            values = {"experiment": results.experiment, **_values(cell)}
            rows[cell.cell_id].update(values)
            names += [name for name in values if name not in names]
    wide = pd.DataFrame([{name: row.get(name) for name in names} for row in rows.values()], columns=names)
    types = {name: kind for name, kind in columns().items() if name in wide}
    with _fitting(experiments[0]):
        return wide.astype(types).convert_dtypes()


def _values(cell: DeviceResult) -> dict[str, Any]:
    """A cell's columns beyond those that every row has."""
    values: dict[str, Any] = dict(cell.point)
    for phase in cell.phases:
        estimate = cell.estimate(phase)
        if estimate is None:
            continue
        low, median, high = estimate.low, estimate.median, estimate.high
        if phase == STEP:
            values |= {
                "iterations": estimate.num_samples,
                "iteration_s": median,
                "iteration_s_low": low,
                "iteration_s_high": high,
                "interval_method": estimate.method,
                "samples_per_s": cell.samples_per_s,
            }
        else:
            name = f"{phase}_seconds"
            values |= {name: median, f"{name}_low": low, f"{name}_high": high}
    return {**cell.scalars, **values}
