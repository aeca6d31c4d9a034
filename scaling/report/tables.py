"""A table, once for terminal, page and Markdown: what its columns are, and a row's text in each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import rich.table
from rich.text import Text

from scaling.report.formats import MISSING

Item = TypeVar("Item")  # what a row is made of


@dataclass(frozen=True)
class Column(Generic[Item]):
    header: str | None  # on the page and in Markdown, with the unit; None: the column is in terminals alone
    text: Callable[[Item], str]  # what a row has there
    # the header in a terminal, where room is short; None: the column is not there
    terminal: str | None = None
    # of a column of words in a terminal, which are folded; None: numbers, right-aligned
    width: int | None = None


@dataclass(frozen=True)
class Table:
    title: str  # title, statistic: what is in it, and what its values are
    statistic: str
    headings: Sequence[str]  # headings, rows: text
    rows: list[list[str]]
    remarks: Sequence[str] = ()  # remarks, warnings: what stands below it
    warnings: Sequence[str] = ()
    # of each row, the ids of the cells that it is made of; [] where rows are not of cells
    cells: list[list[str]] = field(default_factory=list)
    section: str = "speedup"  # where it stands (`scaling.report.tables`)
    source: str = "summary.csv"  # the file that has the same values in full
    group: str = ""  # key of the comparable cells that it shows; "" where it shows none or several
    bounds: Collection[int] = ()  # numbers of the rows that others are compared with, or that bound them
    best: Collection[int] = ()  # numbers of the rows that the answer names

    @cached_property
    def words(self) -> list[int]:
        """The places of the columns that are aligned to the left: the first, and those with words."""
        columns = enumerate(zip(*self.rows, strict=True))
        return [place for place, texts in columns if not place or any(text[:1].isalpha() for text in texts)]


def table_of(
    title: str, statistic: str, columns: Sequence[Column[Item]], items: Iterable[Item], **more: Any
) -> Table:
    """The table of some items, of the columns that have a header; `more`: further attributes of `Table`."""
    shown = [column for column in columns if column.header is not None]
    rows = [[column.text(item) for column in shown] for item in items]
    return Table(title, statistic, [str(column.header) for column in shown], rows, **more)


def without_empty_columns(table: Table) -> Table:
    columns = [*zip(table.headings, *table.rows, strict=True)]
    kept = [columns[0], *(column for column in columns[1:] if {*column[1:]} - {MISSING, ""})]
    headings, *rows = map(list, zip(*kept, strict=True))
    return replace(table, headings=headings, rows=rows)


def in_terminal(
    title: Text, columns: Sequence[Column[Item]], items: Iterable[Item], gap: int = 2
) -> rich.table.Table:
    """The same in a terminal: the columns that have a header there, so many characters apart."""
    shown = [column for column in columns if column.terminal is not None]
    rendered = bare_table(title, gap)
    for column in shown:
        if column.width is None:
            rendered.add_column(column.terminal or "", justify="right", no_wrap=True)
        else:
            rendered.add_column(column.terminal or "", overflow="fold", max_width=column.width)
    for item in items:
        rendered.add_row(*(Text(column.text(item)) for column in shown))
    return rendered


def bare_table(title: Text, gap: int = 2) -> rich.table.Table:
    return rich.table.Table(
        title=title, title_justify="left", box=None, pad_edge=False, padding=(0, gap, 0, 0)
    )


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
    sections = {name: Section(name, title) for name, title in TITLES.items()}
    for figure in figures:
        sections[figure.section].figures.append(figure)
    for table in tables:
        sections[table.section].tables.append(table)
    for name, text in remarks:
        sections[name].remarks.append(text)
    return [section for section in sections.values() if section.figures or section.tables or section.remarks]
