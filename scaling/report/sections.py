"""The order of the page: which figures and tables stand together, under which heading."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from scaling.report.tables import Table


@dataclass(frozen=True)
class SavedFigure:
    name: str
    title: str
    caption: str
    section: str
    svg: Path
    source: str
    kind: str
    group: str = ""


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    figures: list[SavedFigure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


TITLES = {
    "answer": "The answer",
    "speedup": "Every measured cell",
    "budget": "Where a step's time goes",
    "links": "Bytes on the links",
    "choices": "Bucket size, input and costs",
    "training": "Training",
    "prediction": "Predicted and measured",
    "lossy": "What lossy aggregators lose",
    "devices": "One device alone",
    "transfers": "Transfers",
    "more": "More figures",
}
"""Section -> its heading, in the page's order."""


def arrange(
    figures: Iterable[SavedFigure], tables: Iterable[Table], remarks: Iterable[tuple[str, str]] = ()
) -> list[Section]:
    """The sections that hold something, in the page's order."""
    sections = {name: Section(name, title) for name, title in TITLES.items()}
    for figure in figures:
        sections[figure.section].figures.append(figure)
    for table in tables:
        sections[table.section].tables.append(table)
    for name, text in remarks:
        sections[name].remarks.append(text)
    return [section for section in sections.values() if section.figures or section.tables or section.remarks]
