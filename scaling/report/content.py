"""What a report says, before it becomes a page or Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from scaling.analysis.columns import SEPARATOR, Row, to_rows
from scaling.analysis.formats import MISSING
from scaling.analysis.groups import group_rows
from scaling.analysis.reading import num_cores
from scaling.analysis.recommend import Recommendation
from scaling.analysis.summary_findings import summary_findings
from scaling.analysis.wall_time import WallTime
from scaling.report.figures.base import SavedFigure
from scaling.report.page_tables import page_tables
from scaling.report.sections import Section, arrange
from scaling.report.tables import Table
from scaling.report.text import Sentence, sentences_of, text_of


@dataclass(frozen=True)
class Content:
    """All that a report says.

    Attributes:
        name: the study's.
        folder: the results folder's name, for the commands that make it again.
        findings: what was found, the most important first.
        recommendations: the setting to take, one a workload.
        sections: figures and tables.
        wall_time: how the time divided; None where that was not recorded.
        notes, cell_notes: of the study, and of its cells.
        failed: rows of failed cells.
        states: state -> cells, of those that are not failed.
        num_cells: of the study.
        environment: (dotted path, text); None where it was not recorded.
    """

    name: str
    folder: str
    findings: list[Sentence]
    recommendations: Sequence[Recommendation]
    sections: list[Section]
    wall_time: str | None
    notes: list[str]
    cell_notes: list[str]
    failed: list[Row]
    states: dict[str, int]
    num_cells: int
    environment: list[tuple[str, str]] | None


@dataclass(frozen=True)
class Extras:
    """What a report has besides the summary's own.

    Attributes:
        tables, findings: of cells without a model, and of predictions; they stand behind the summary's.
        remarks: (section, what is said there: what is left out, and why).
        recommendations: the setting to take, one a workload.
    """

    tables: list[Table] = field(default_factory=list)
    findings: list[Sentence] = field(default_factory=list)
    remarks: list[tuple[str, str]] = field(default_factory=list)
    recommendations: Sequence[Recommendation] = ()


def content_of(
    study: Mapping[str, Any],
    environment: Mapping[str, Any] | None,
    table: pd.DataFrame,
    figures: Sequence[SavedFigure],
    times: WallTime | None = None,
    extras: Extras | None = None,
    folder: str = "DIR",
) -> Content:
    """Everything that a report of these results says.

    Args:
        study: the resolved study; its name, notes are shown.
        environment: where it was run, nested as it comes; None where it was not recorded.
        table: what `summary_table` made.
        figures: what was drawn.
        times: how the wall time divided; None where that was not recorded.
        extras: what else there is.
        folder: the results folder, as commands name it.
    """
    rows, extras = to_rows(table), extras or Extras()
    groups = group_rows(rows)
    summary = sentences_of(summary_findings(table, num_cores(environment)))
    tables = [table for group in groups for table in page_tables(group, groups)]
    return Content(
        name=str(study.get("name", "study")),
        folder=folder,
        findings=[*summary, *extras.findings],
        recommendations=extras.recommendations,
        sections=arrange(figures, [*tables, *extras.tables], extras.remarks),
        wall_time=text_of(times.finding) if times else None,
        notes=[str(note) for note in study.get("notes") or []],
        cell_notes=_notes(rows),
        failed=[row for row in rows if row["state"] == "failed"],
        states={
            state: sum(row["state"] == state for row in rows) for state in ("planned", "running", "done")
        },
        num_cells=len(rows),
        environment=None if environment is None else flatten(environment),
    )


def flatten(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Nested mappings and lists -> (dotted path, text) rows; a list of plain values stays one row."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        values = value if isinstance(value, list) else [value]
        return [(path, ", ".join(MISSING if item is None else str(item) for item in values) or MISSING)]
    return [row for key, item in items for row in flatten(item, f"{path}.{key}" if path else key)]


def _notes(rows: Sequence[Row]) -> list[str]:
    """The cells' notes, each once, with the cells that it belongs to."""
    cells: dict[str, list[str]] = {}
    for row in rows:
        for note in filter(None, (row["notes"] or "").split(SEPARATOR)):
            cells.setdefault(note, []).append(f"{row['aggregator'] or row['kind']} x {row['world_size']}")
    return [f"{note} ({', '.join(dict.fromkeys(names))})" for note, names in cells.items()]
