"""Predicted and measured: what was simulated before a cell was measured, and how far off it was.

Predicted values are read from predictions.json, which `scaling run` writes before it starts a launch. They
stand in columns of their own, which say so: none ever enters summary.csv.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scaling.analysis.budgets import EXPOSED
from scaling.analysis.columns import Row
from scaling.analysis.findings import Finding
from scaling.analysis.summary import table_csv
from scaling.axes import axis
from scaling.report.formats import MISSING, interval, milliseconds
from scaling.report.tables import Column, Table, table_of
from scaling.report.text import sentences_of, text_of
from scaling.store import ResultsFolder

SOURCE = "predictions.json"
DIGITS = 9  # significant ones in predicted.csv
CSV_COLUMNS = (
    *("cell_id", "model", "dataset", "aggregator", "step", "world_size", "local_batch", "peer_access"),
    *("precision", "memory_format", "augmentation"),
    *("topology", "simulated_s", "simulated_s_low", "simulated_s_high"),
    *("measured_s", "measured_s_low", "measured_s_high", "error_ratio", "is_inside", "failed_assumption"),
)
COMPUTE = ("input_s", "h2d_s", "forward_s", "backward_s", "update_s")


@dataclass(frozen=True)
class PredictedCell:
    """One predicted cell. Seconds."""

    cell_id: str
    name: str
    predicted: Mapping[str, Any]
    measured: Row | None

    @property
    def error_ratio(self) -> float | None:
        """Predicted over measured, less one: positive where the prediction is too long."""
        measured_s = self.measured["iteration_s"] if self.measured else None
        return self.predicted["iteration_s"] / measured_s - 1 if measured_s else None

    @property
    def is_inside(self) -> bool | None:
        measured_s = self.measured["iteration_s"] if self.measured else None
        if not measured_s:
            return None
        return bool(self.predicted["iteration_s_low"] <= measured_s <= self.predicted["iteration_s_high"])

    def largest_error(self) -> dict[str, Any]:
        """The part of the step that explains most of the error, and what was assumed of it."""
        assert self.measured is not None
        compute_s = sum(self.measured.get(name) or 0.0 for name in COMPUTE)
        if not compute_s:
            return {"part": "unknown"}
        off_s = self.predicted["iteration_s"] - self.measured["iteration_s"]
        exchange_s = sum(self.measured.get(name) or 0.0 for name in EXPOSED)
        off_compute_s = self.predicted["compute_s"] - compute_s
        off_exchange_s = self.predicted["exposed_comm_s"] - exchange_s
        rest_s = off_s - off_compute_s - off_exchange_s
        if abs(rest_s) > max(abs(off_compute_s), abs(off_exchange_s)):
            return {"part": "other_steps", "marked_s": compute_s + exchange_s}
        part, off_s = max(
            ("computation", off_compute_s), ("exchange", off_exchange_s), key=lambda part: abs(part[1])
        )
        compute_notes = self.predicted["compute_notes"]
        apart = [*compute_notes, *(self.predicted.get("remarks") or [])]
        others = [note for note in self.predicted.get("notes") or [] if note not in apart]
        notes = compute_notes if part == "computation" else others
        return {"part": part, "off_s": off_s, "notes": notes, "transport": self.predicted.get("transport")}

    def failed_assumption(self) -> str:
        return text_of(Finding("failed_assumption", (self.cell_id,), self.largest_error()))


COLUMNS: tuple[Column[PredictedCell], ...] = (
    Column("cell", lambda cell: cell.name),
    Column("predicted (simulated), ms", lambda cell: milliseconds(cell.predicted["iteration_s"])),
    Column(
        "95% interval, ms",
        lambda cell: interval(cell.predicted["iteration_s_low"], cell.predicted["iteration_s_high"]),
    ),
    Column(
        "measured, ms", lambda cell: milliseconds(cell.measured["iteration_s"]) if cell.measured else MISSING
    ),
    Column("error", lambda cell: MISSING if cell.error_ratio is None else f"{cell.error_ratio:+.1%}"),
    Column("inside", lambda cell: {None: MISSING, True: "yes", False: "no"}[cell.is_inside]),
)


def read_predictions(folder: ResultsFolder, rows: Iterable[Row]) -> list[PredictedCell]:
    measured = {row["cell_id"]: row for row in rows if row.get("state") == "done"}
    return [
        PredictedCell(row["cell_id"], _name(row), row, measured.get(row["cell_id"]))
        for row in folder.predictions()
        if row.get("cell_id") and row.get("iteration_s")
    ]


def predicted_csv(predicted: Sequence[PredictedCell]) -> str:
    rows = []
    for cell in predicted:
        row: Row = {name: cell.predicted.get(name) for name in CSV_COLUMNS}
        for shown in map(axis, ("precision", "memory_format")):
            row[str(shown.key)] = shown.show(shown.value(cell.predicted))
        row |= {f"simulated_s{end}": cell.predicted[f"iteration_s{end}"] for end in ("", "_low", "_high")}
        if cell.measured and cell.error_ratio is not None:
            measured = cell.measured
            row |= {f"measured_s{end}": measured.get(f"iteration_s{end}") for end in ("", "_low", "_high")}
            row |= {"error_ratio": cell.error_ratio, "is_inside": cell.is_inside}
            row["failed_assumption"] = cell.failed_assumption()
        rows.append(row)
    return table_csv(pd.DataFrame(rows, columns=list(CSV_COLUMNS)), digits=DIGITS)


def prediction_tables(predicted: Sequence[PredictedCell]) -> list[Table]:
    if not predicted:
        return []
    topologies = ", ".join(dict.fromkeys(str(cell.predicted["topology"]) for cell in predicted))
    return [
        table_of(
            "Predicted and measured",
            f"Predicted: simulated on {topologies} before the cell was measured, from what was measured by "
            "then; 95% interval of the inputs' uncertainty. Error: predicted / measured - 1.",
            COLUMNS,
            predicted,
            remarks=[sentence.text for sentence in sentences_of(prediction_findings(predicted))],
            cells=[[cell.cell_id] for cell in predicted],
            section="prediction",
            source=SOURCE,
        )
    ]


def prediction_findings(predicted: Sequence[PredictedCell]) -> list[Finding]:
    compared = [(abs(cell.error_ratio), cell) for cell in predicted if cell.error_ratio is not None]
    if not compared:
        return []
    errors = [error for error, _ in compared]
    worst_error, worst = max(compared, key=lambda pair: pair[0])
    values = {
        "num_cells": len(errors),
        "median_error_ratio": float(np.median(errors)),
        "error_ratio_95": float(np.percentile(errors, 95)),
        "worst": worst.name,
        "worst_error_ratio": worst_error,
        **worst.largest_error(),
    }
    return [Finding("prediction_errors", tuple(cell.cell_id for _, cell in compared), values)]


def _name(row: Mapping[str, Any]) -> str:
    marks = {
        ", host-only": row.get("peer_access") is False,
        ", channels_last": row.get("memory_format") == "channels_last",
        ", tf32": row.get("tf32"),
        ", augmented": row.get("augmentation") == "standard",
    }
    more = "".join(mark for mark, is_so in marks.items() if is_so)
    return f"{row['model']}, {row['aggregator']}, {row['step']}, {row['world_size']} workers{more}"
