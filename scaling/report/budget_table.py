"""The budget of a group's cells as text: in milliseconds, only of phases that occur, with the sum."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.columns import BUDGET_COLUMNS, Row
from scaling.analysis.formats import MISSING, like, workers
from scaling.analysis.groups import Group
from scaling.report.text import text_of

HIDDEN = ("comm_hidden_s", "h2d_hidden_s")
"""Under the computation, so no part of the sum."""

_AFTER_THE_SUM = {
    "comm_hidden_s": "hidden comm.",
    "h2d_hidden_s": "hidden h2d",
    "looking_s": "looking",
    "skew_s": "skew",
    "exposed_s": "exposed",
    "exposed_by_difference_s": "by difference",
}
SUM = "= split step"
CHECK = "check"

READING = (
    "Mean over the middle half of the steps whose phases were marked, of the rank that the others wait for. "
    "Hidden: under the computation. Looking: what the marks cost. Skew: the last rank's arrival at the first "
    "exchange after the first one's. Exposed: what the exchange adds, by its spans, and by difference to the "
    "control arm."
)
"""What the lines mean."""


@dataclass(frozen=True)
class BudgetColumn:
    """One cell: who it is, a text for every line, and why its exposed times disagree, if they do."""

    aggregator: str
    world_size: int
    values: list[str]
    remark: str | None
    cell_id: str


@dataclass(frozen=True)
class BudgetTable:
    """A group's budgets: what each value is, and the cells in the table's order."""

    lines: list[str]
    columns: list[BudgetColumn]


def budget_table(group: Group) -> BudgetTable | None:
    """The budgets of a group's cells; None where no step was split."""
    rows = [row for row in group.rows if row["split_iteration_s"] is not None]
    if not rows:
        return None
    parts = {name: part_label(name) for name in BUDGET_COLUMNS if name not in HIDDEN}
    shown = {**parts, "split_iteration_s": SUM, **_AFTER_THE_SUM}
    shown = {name: label for name, label in shown.items() if any(row[name] is not None for row in rows)}
    checked = any(row["exposed_check"] is not None for row in rows)
    columns = []
    for row in rows:
        values = [like(row[name], row["split_iteration_s"]) for name in shown]
        check = row["exposed_check"]
        agrees = check is not None and check.kind == "exposed_times_agree"
        remark = None if agrees or check is None else _remark(group, row)
        if checked:
            values.append("agree" if agrees else MISSING if remark is None else "no")
        columns.append(BudgetColumn(group.name(row), row["world_size"], values, remark, row["cell_id"]))
    return BudgetTable([*shown.values(), *([CHECK] if checked else [])], columns)


def part_label(column: str) -> str:
    """`h2d_result_s` -> `h2d result`."""
    words = {"exposed_comm_s": "exposed comm.", "comm_hidden_s": "hidden comm."}
    return words.get(column, column.removesuffix("_s").replace("_", " "))


def _remark(group: Group, row: Row) -> str:
    return f"{group.name(row)} on {workers(row['world_size'])}: {text_of(row['exposed_check'])}"
