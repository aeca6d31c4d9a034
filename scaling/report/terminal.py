"""A report in a terminal of 80 columns: all tables, or one screen of the answer and its table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, zip_longest

import pandas as pd
import rich.table
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from scaling.analysis.columns import Row, to_rows, workers_of
from scaling.analysis.control import is_baseline_of
from scaling.analysis.groups import CellGroup, group_rows, in_order_of, main_variant
from scaling.analysis.learning import over_seeds
from scaling.analysis.noise import noise_finding
from scaling.axes import workers
from scaling.files.texts import NO_BREAK, folded
from scaling.report.answer import Answer
from scaling.report.budget_table import CHECK, MARK, MARK_READING, SUM, budget_rows, budget_table
from scaling.report.formats import MISSING, milliseconds
from scaling.report.page_tables import columns_of
from scaling.report.tables import Column, Table, bare_table, in_terminal
from scaling.report.text import recipe_text, text_of, title_of, title_parts, warnings_of

WIDTH = 80
FIXED = 2  # columns of a budget that are no part of the step: the aggregator and the workers
BUDGET_COLUMN_WIDTH = 16  # labels above a budget are folded at this width
MOST_BUDGETS = 10
"""A group with more shows those of its largest world size, and then of each aggregator's main variant; the
page shows all."""

WARNED = "!"  # at the end of a cell's line that has warnings; they follow below the table
MOST_WARNINGS = 3  # of one kind, with its numbers; more are counted


def render_tables(table: pd.DataFrame, answers: Sequence[str] = ()) -> list[Lines]:
    """A table for every group, 80 columns wide, those of the answers' cells (ids) first."""
    groups = in_order_of(answers, group_rows(to_rows(table)))
    return [Lines(*_render(group, groups)) for group in groups]


def _render(group: CellGroup, groups: Sequence[CellGroup]) -> Iterator[RenderableType]:
    rows = over_seeds(group.rows) if group.kind == "convergence" else group.rows
    columns = columns_of(group)
    if any(row["warnings"] for row in group.rows):
        columns = _marked(columns)
    yield in_terminal(wrapped(title_of(group.given)), columns, rows)
    if baseline := _baseline_elsewhere(group, groups):
        yield wrapped(baseline)
    if group.kind == "convergence":
        yield wrapped(recipe_text(group.rows[0]))
    if noise := noise_finding(group, groups):
        yield wrapped(text_of(noise))
    for warning in warnings_of(group, MOST_WARNINGS):
        yield wrapped(f"{WARNED} {warning}")
    yield from _render_budgets(group)


def _baseline_elsewhere(group: CellGroup, groups: Sequence[CellGroup]) -> str | None:
    """The one-worker cell that the speedups are relative to, where another table has it; else None."""
    row = next((row for row in group.rows if row["speedup"] is not None), None)
    if row is None:
        return None
    samples_per_s = row["samples_per_s"] / row["speedup"]
    for other in sorted(groups, key=lambda other: other is not group):
        for baseline in other.rows:
            if is_baseline_of(baseline, row) and math.isclose(baseline["samples_per_s"] or 0, samples_per_s):
                if other is group:
                    return None
                own = title_parts(group.given)
                where = ", ".join(part for part in title_parts(other.given) if part not in own)
                time = milliseconds(baseline["iteration_s"])
                return f"speedup over {workers_of(baseline)}{where and f', {where}'}: {time} ms"
    return None


def _marked(columns: Sequence[Column[Row]]) -> list[Column[Row]]:
    *others, last = (column for column in columns if column.terminal is not None)
    return [*others, replace(last, text=lambda row: f"{last.text(row)} {WARNED if row['warnings'] else ' '}")]


def wrapped(text: str) -> Text:
    """Lines of the terminal's width; as Text, since brackets of labels are not markup."""
    return Text(filled(text))


def filled(text: str, indent: int = 0) -> str:
    """The same as text; later lines are indented by two more."""
    margin = " " * indent
    return textwrap.fill(text, WIDTH, initial_indent=margin, subsequent_indent=f"{margin}  ")


def _render_budgets(group: CellGroup) -> Iterator[RenderableType]:
    """Lines are phases and columns cells: blocks of as many cells of one world size as fit side by side."""
    rows = _shown(group)
    table = budget_table(group, rows)
    if table is None:
        return
    lines = table.headings[FIXED:]
    for size in sorted({row["world_size"] for row in rows}):
        cells = [row for row in table.rows if row[1] == str(size)]
        title = Text(f"where a step's time goes on {workers(size, group.unit)}, ms")
        for block in _blocks(lines, cells):
            yield Text()
            yield _block(lines, block, title)
    if any(value.endswith(MARK) for row in table.rows for value in row[FIXED:]):
        yield wrapped(MARK_READING)
    for remark in table.remarks:
        yield wrapped(remark)
    if num_more := len(budget_rows(group)) - len(rows):
        more = f"{num_more} more cell{'s' * (num_more > 1)}"
        yield wrapped(f"(not shown: where a step's time goes in {more}; see report.html, summary.csv)")


def _shown(group: CellGroup) -> list[Row]:
    rows = budget_rows(group)
    if len(rows) > MOST_BUDGETS:
        largest = max(row["world_size"] for row in rows)
        rows = [row for row in rows if row["world_size"] == largest]
    if len(rows) > MOST_BUDGETS:
        labels = dict.fromkeys(row["aggregator"] for row in group.rows)
        main = {group.name(row) for label in labels for row in main_variant(group, label)}
        rows = [row for row in rows if group.name(row) in main]
    return rows


def _blocks(lines: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    block: list[Sequence[str]] = []
    used = max(map(len, lines))
    for cell in cells:
        widest = max(map(len, [*_label_lines(cell[0]), *cell[FIXED:]]))
        if block and used + 2 + widest > WIDTH:
            yield block
            block, used = [], max(map(len, lines))
        block.append(cell)
        used += 2 + widest
    yield block


def _block(lines: Sequence[str], cells: Sequence[Sequence[str]], title: Text) -> rich.table.Table:
    rendered = bare_table(title)
    rendered.add_column("", no_wrap=True)
    for cell in cells:
        header = Text("\n".join(_label_lines(cell[0])), justify="right")
        rendered.add_column(header, justify="right", no_wrap=True)
    for line, *values in zip(lines, *(cell[FIXED:] for cell in cells), strict=True):
        if any(value != MISSING for value in values):
            style = "bold" if line in (SUM, CHECK) else ""
            rendered.add_row(Text(line), *map(Text, values), style=style)
    return rendered


def _label_lines(label: str) -> list[str]:
    """A cell's name in lines: parameters begin a new one, and a number stays with its unit."""
    unbroken = label.replace(" MiB", "\N{NO-BREAK SPACE}MiB").replace("(", " (")
    lines = textwrap.wrap(unbroken, BUDGET_COLUMN_WIDTH) or [""]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


MOST_LINES = 30
GAP = 2
LONGEST_WORD, NARROWEST = 16, 7
"""Of a column: longer words are cut where that makes room, and more where it must."""

FEWEST_ROWS = 6  # so many rows of a table stand before what explains it does


def screen(answer: Answer, *, command: str, page: str) -> list[str]:
    """At most MOST_LINES lines of at most WIDTH characters; a command that is longer goes over several."""
    last = [f"All tables: {command}", f"Page: {page}"]
    first = [line for text in answer.first for line in _folded(text, answer.command)]
    explained = [_folded(text, answer.command) for text in answer.explained]
    rows = table_lines(answer.table) if answer.table else []
    room = MOST_LINES - height([*first, "", *last]) - bool(rows) - bool(explained)
    needed = sum(map(height, rows[: 1 + FEWEST_ROWS])) + (len(rows) > 1 + FEWEST_ROWS)
    needed = min(needed, room - bool(explained))
    rows = _fitting(rows, max(room - sum(map(height, explained)), needed), "rows")
    explained = _fitting(explained, room - sum(map(height, rows)), "details")
    parts = [first, *([line for text in part for line in text] for part in (rows, explained))]
    return [*(line for part in parts if part for line in [*part, ""]), *last]


def folded_answer(answer: Answer) -> list[str]:
    return [line for text in answer.lines for line in _folded(text, answer.command)]


def height(lines: Sequence[str]) -> int:
    return sum(max(1, -(-len(line) // WIDTH)) for line in lines)


def _folded(text: str, command: str) -> list[str]:
    """A command stays on a line of its own, to be pasted."""
    unbroken = text.replace(command, command.replace(" ", NO_BREAK)) if command else text
    return folded("", unbroken, indent=2).splitlines()


def _fitting(blocks: Sequence[list[str]], room: int, what: str) -> list[list[str]]:
    """The blocks that have room, and how many have none."""
    if sum(map(height, blocks)) <= room:
        return list(blocks)
    shown = [block for block, end in zip(blocks, accumulate(map(height, blocks)), strict=True) if end < room]
    num_more = len(blocks) - len(shown)
    return [*shown, [f"({num_more} more {what[: None if num_more > 1 else -1]})"]]


def table_lines(table: Table) -> list[list[str]]:
    texts = [list(table.headings), *table.rows]
    columns = [*zip(*texts, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    room = WIDTH - GAP * (len(widths) - 1)
    words = [max(len(word) for text in column for word in text.split() or [""]) for column in columns]
    for least in ([min(word, LONGEST_WORD) for word in words], [NARROWEST] * len(widths)):
        while sum(widths) > room and (spare := max(map(int.__sub__, widths, least))) > 0:
            widths[[width - word for width, word in zip(widths, least, strict=True)].index(spare)] -= 1
    aligned = [str.ljust if place in table.words else str.rjust for place in range(len(columns))]
    lines = []
    for row in texts:
        cells = [textwrap.wrap(text, width) or [""] for text, width in zip(row, widths, strict=True)]
        parts = zip_longest(*cells, fillvalue="")
        padded = [[f(one, n) for f, one, n in zip(aligned, line, widths, strict=True)] for line in parts]
        lines.append([(" " * GAP).join(line).rstrip() for line in padded])
    return lines
