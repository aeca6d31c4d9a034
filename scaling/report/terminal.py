"""The summary in a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import pandas as pd
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from scaling.analysis.columns import Row, shares_gpus, to_rows
from scaling.analysis.formats import MISSING, half_width, milliseconds, number, percent, ratio, workers
from scaling.analysis.groups import Group, group_rows
from scaling.analysis.learning import REACHED, over_seeds
from scaling.analysis.noise import noise_line
from scaling.analysis.recipes import recipe_text
from scaling.report.budget_table import CHECK, SUM, BudgetColumn, BudgetTable, budget_table
from scaling.report.figure_data import main_variant
from scaling.report.warnings_text import warnings_of

WIDTH = 80
ITERATION_COLUMNS = ("workers", "ms/iteration", "+-", "speedup", "efficiency")
CONVERGENCE_COLUMNS = ("workers", "accuracy", "epochs", "train s", "s to target")
AGGREGATOR_WIDTH = 26
"""Longer labels are folded: beside the five columns of numbers, this is what 80 columns leave."""

BUDGET_COLUMN_WIDTH = 16
"""Labels above a budget are folded at this width."""

MOST_BUDGETS = 10
"""A group with more shows those of its largest world size, and then of each aggregator's main variant; the
page shows all."""

WARNED = "!"
"""At the end of a cell's line that has warnings; they follow below the table."""

MOST_WARNINGS = 3
"""Of one kind, with its numbers; more are counted."""


def render_tables(table: pd.DataFrame) -> list[Lines]:
    """For every group of comparable cells its table, with what belongs to it; at most 80 columns wide.

    Args:
        table: what `summary_table` made.
    """
    groups = group_rows(to_rows(table))
    return [Lines(*_render(group, groups)) for group in groups]


def _render(group: Group, groups: Sequence[Group]) -> Iterator[RenderableType]:
    yield _main_table(group)
    if group.kind == "convergence":
        yield wrapped(recipe_text(group.rows[0]))
    if line := noise_line(group, groups):
        yield wrapped(line)
    for warning in warnings_of(group, MOST_WARNINGS):
        yield wrapped(f"{WARNED} {warning}")
    budgets = budget_table(group)
    if budgets is not None:
        yield from _render_budgets(group, budgets)


def wrapped(text: str) -> Text:
    """Lines of the terminal's width; as Text, since brackets of labels are not markup."""
    return Text("\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="  ")))


def _main_table(group: Group) -> Table:
    convergence = group.kind == "convergence"
    rendered = Table(title=wrapped(group.title), title_justify="left", box=None, pad_edge=False)
    rendered.add_column("aggregator", overflow="fold", max_width=AGGREGATOR_WIDTH)
    for name in CONVERGENCE_COLUMNS if convergence else ITERATION_COLUMNS:
        rendered.add_column(name, justify="right", no_wrap=True)
    warned = any(row["warnings"] for row in group.rows)
    for row in over_seeds(group.rows) if convergence else group.rows:
        *values, last = _convergence_values(row) if convergence else _iteration_values(row)
        marked = f"{last} {WARNED if row['warnings'] else ' '}" if warned else last
        texts = [_name(group, row), str(row["world_size"]), *values, marked]
        rendered.add_row(*(Text(text) for text in texts))
    return rendered


def _name(group: Group, row: Row) -> str:
    """The cell's name, with the state where not all repeats are in the numbers."""
    partial = row["repeats"] and row["state"] != "done"
    return f"{group.name(row)} ({row['state']})" if partial else group.name(row)


def _iteration_values(row: Row) -> list[str]:
    low, high = row["iteration_s_low"], row["iteration_s_high"]
    width = None if low is None or high is None else high - low
    time = milliseconds(row["iteration_s"], width) if row["repeats"] else row["state"]
    efficiency = percent(row["parallel_efficiency"], decimals=0)
    return [time, half_width(low, high), ratio(row["speedup"]), efficiency]


def _convergence_values(row: Row) -> list[str]:
    accuracy = percent(row["final_test_accuracy"], decimals=2) if row["repeats"] else row["state"]
    missed = row["target_state"] not in (None, REACHED)
    to_target = "not reached" if missed else number(row["seconds_to_target"])
    if shares_gpus(row) and row["target_state"] == REACHED:
        to_target = REACHED
    times = [number(row["train_s"]), to_target]
    return [accuracy, number(row["epochs"], digits=1), *times]


def _render_budgets(group: Group, budgets: BudgetTable) -> Iterator[RenderableType]:
    """Lines are phases and columns cells: blocks of as many cells of one world size as fit side by side."""
    shown = _shown(group, budgets)
    for size in sorted({column.world_size for column in shown}):
        columns = [column for column in shown if column.world_size == size]
        title = f"where a step's time goes on {workers(size)}, ms"
        for block in _blocks(budgets.lines, columns):
            yield Text()
            yield _block(budgets.lines, block, title)
    for column in shown:
        if column.remark is not None:
            yield wrapped(column.remark)
    if len(shown) < len(budgets.columns):
        yield wrapped(f"({len(budgets.columns) - len(shown)} more: report.html, summary.csv)")


def _shown(group: Group, budgets: BudgetTable) -> list[BudgetColumn]:
    shown = budgets.columns
    if len(shown) > MOST_BUDGETS:
        largest = max(column.world_size for column in shown)
        shown = [column for column in shown if column.world_size == largest]
    if len(shown) > MOST_BUDGETS:
        labels = dict.fromkeys(row["aggregator"] for row in group.rows)
        main = {group.name(row) for label in labels for row in main_variant(group, label)}
        shown = [column for column in shown if column.aggregator in main]
    return shown


def _blocks(lines: Sequence[str], columns: Sequence[BudgetColumn]) -> Iterator[list[BudgetColumn]]:
    block: list[BudgetColumn] = []
    used = max(map(len, lines))
    for column in columns:
        widest = max(map(len, [*_folded(column.aggregator), *column.values]))
        if block and used + 2 + widest > WIDTH:
            yield block
            block, used = [], max(map(len, lines))
        block.append(column)
        used += 2 + widest
    yield block


def _block(lines: Sequence[str], columns: Sequence[BudgetColumn], title: str) -> Table:
    rendered = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    rendered.add_column("", no_wrap=True)
    for column in columns:
        header = Text("\n".join(_folded(column.aggregator)), justify="right")
        rendered.add_column(header, justify="right", no_wrap=True)
    for index, line in enumerate(lines):
        if all(column.values[index] == MISSING for column in columns):
            continue
        style = "bold" if line in (SUM, CHECK) else ""
        rendered.add_row(Text(line), *(Text(column.values[index]) for column in columns), style=style)
    return rendered


def _folded(label: str) -> list[str]:
    """A cell's name in lines: parameters begin a new one, and a number stays with its unit."""
    kept = label.replace(" MiB", "\N{NO-BREAK SPACE}MiB").replace("(", " (")
    lines = textwrap.wrap(kept, BUDGET_COLUMN_WIDTH) or [""]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
