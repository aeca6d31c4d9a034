"""The summary in a terminal of 80 columns."""

from __future__ import annotations

import pandas as pd
from rich.table import Table
from rich.text import Text

from scaling.report.columns import Row, to_rows
from scaling.report.formats import half_width, milliseconds, number, percent, ratio
from scaling.report.groups import Group, group_rows

ITERATION_COLUMNS = ("workers", "ms/iteration", "+-", "speedup", "efficiency")
CONVERGENCE_COLUMNS = ("workers", "accuracy", "epochs", "train s", "s to target")
AGGREGATOR_WIDTH = 26
"""Longer labels are folded: beside the five columns of numbers, this is what 80 columns leave."""


def render_tables(table: pd.DataFrame) -> list[Table]:
    """One table for every group of comparable cells, with its title; at most 80 columns wide.

    Args:
        table: what `summary_table` made.
    """
    return [_render(group) for group in group_rows(to_rows(table))]


def _render(group: Group) -> Table:
    convergence = group.kind == "convergence"
    rendered = Table(title=Text(group.title), title_justify="left", box=None, pad_edge=False)
    rendered.add_column("aggregator", overflow="fold", max_width=AGGREGATOR_WIDTH)
    for name in CONVERGENCE_COLUMNS if convergence else ITERATION_COLUMNS:
        rendered.add_column(name, justify="right", no_wrap=True)
    for row in group.rows:
        values = _convergence_values(row) if convergence else _iteration_values(row)
        # As Text: the brackets of a label's parameters are not markup.
        rendered.add_row(Text(_name(row)), str(row["world_size"]), *(Text(value) for value in values))
    return rendered


def _name(row: Row) -> str:
    """The aggregator, with the state where the numbers are not of all repeats."""
    partial = row["repeats"] and row["state"] != "done"
    return f"{row['aggregator']} ({row['state']})" if partial else str(row["aggregator"])


def _iteration_values(row: Row) -> list[str]:
    low, high = row["iteration_s_low"], row["iteration_s_high"]
    width = None if low is None or high is None else high - low
    time = milliseconds(row["iteration_s"], width) if row["repeats"] else row["state"]
    efficiency = percent(row["parallel_efficiency"], decimals=0)
    return [time, half_width(low, high), ratio(row["speedup"]), efficiency]


def _convergence_values(row: Row) -> list[str]:
    accuracy = percent(row["final_test_accuracy"], decimals=2) if row["repeats"] else row["state"]
    times = [number(row["train_s"]), number(row["seconds_to_target"])]
    return [accuracy, number(row["epochs"], digits=1), *times]
