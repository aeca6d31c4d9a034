"""A results folder as tables, for programs and notebooks: `scaling.load(DIR)`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from scaling.analysis.columns import to_rows
from scaling.analysis.environments import environment_of
from scaling.analysis.explain import explained
from scaling.analysis.explain_view import Known
from scaling.analysis.sample_lines import is_profiled, is_unprofiled
from scaling.analysis.samples import TIMED_KINDS
from scaling.analysis.summary import read_study
from scaling.analysis.summary_findings import summary_findings
from scaling.analysis.verdict import verdicts
from scaling.report.text import text_of
from scaling.store import ResultsFolder, Snapshot


@dataclass(frozen=True)
class Results:
    study: dict[str, Any]  # the resolved study
    environment: dict[str, Any] | None  # where it was measured; None where that was not recorded
    cells: pd.DataFrame  # one row a cell, the columns of summary.csv
    # one row a line of the samples of done runs: `cell_id`, `repeat`, `rank`, then what it has, times in
    # seconds. Results are made of steps that are `timed`: neither of the warm-up nor, in newer folders,
    # `profiled`, which have phases
    samples: pd.DataFrame
    # one row each, verdicts first: `kind`, `cells` (ids), `text`, `values` (a dict, SI units)
    findings: pd.DataFrame


def load(folder: str | os.PathLike[str]) -> Results:
    """Reads a results folder, finished or not, archived or not; StoreError: it is none, or damaged."""
    read = Snapshot.of(ResultsFolder(Path(folder)).require())
    study = read_study(read)
    known = Known.of(to_rows(study.table), study.cells, study.num_cores)
    found = [
        *verdicts(study.table, study.cells, known=known),
        *summary_findings(study.table, known.scatter, known.num_cores, known.lossy),
        *(one for of_cell in explained(known).values() for one in of_cell),
    ]
    findings = [(one.kind, one.cells, text_of(one), dict(one.values)) for one in found]
    columns = ["kind", "cells", "text", "values"]
    return Results(
        read.study(),
        environment_of(read),
        study.table,
        pd.DataFrame(_lines(read)),
        pd.DataFrame(findings, columns=columns),
    )


def _lines(folder: ResultsFolder) -> Iterator[dict[str, Any]]:
    for run in folder.runs():
        if run.state != "done":
            continue
        for rank, lines in enumerate(folder.samples(run.cell_id, run.repeat)):
            for line in lines:
                values = {**line, **(line.get("sample") or {})}
                values.pop("sample", None)
                is_step = run.cell["kind"] in TIMED_KINDS
                values["timed"] = is_step and is_unprofiled(line) and not line["warmup"]
                values["profiled"] = is_step and is_profiled(line, captured=run.cell["step"] == "captured")
                yield {"cell_id": run.cell_id, "repeat": run.repeat, "rank": rank, **values}
