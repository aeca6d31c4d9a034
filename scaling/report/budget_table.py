"""The budget of a group's cells as text: in milliseconds, only of phases that occur, with the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaling.analysis.cautions import LARGEST_PROFILING_OVERHEAD
from scaling.analysis.columns import BUDGET_COLUMNS, Row, workers_of
from scaling.analysis.groups import CellGroup
from scaling.report.formats import MISSING, like
from scaling.report.tables import Column, Table, table_of
from scaling.report.text import text_of, title_of

HIDDEN = ("hidden_comm_s", "hidden_h2d_s")  # under the computation, so no part of the sum
_AFTER_THE_SUM = {
    "hidden_comm_s": "hidden comm.",
    "hidden_h2d_s": "hidden h2d",
    "profiling_overhead_s": "profiling overhead",
    "skew_s": "skew",
    "exchange_overhead_s": "exchange, by its spans",
    "exposed_by_difference_s": "exchange, vs. no exchange",
}
SUM = "= profiled step"
UNPROFILED = "step"
MARK = "*"  # of a step that differs from its profiled step by more than LARGEST_PROFILING_OVERHEAD
CHECK, DIFFERS = "do both agree?", "no"

MARK_READING = (
    f"{MARK}: the step without profiling differs from the profiled step by over 5%; the parts are shares."
)

READING = (
    "Mean over the middle half of the profiled steps, of the rank that the others wait for. "
    f"The parts add up to the profiled step. {MARK_READING} "
    "Hidden: during the computation. Profiling overhead: what the marks cost. Skew: how much later than the "
    "first rank the last one arrives at the first exchange. Exchange: what it adds to the step, by its spans "
    "(phases), and as the difference to the same step without exchange (the control arm)."
)
"""What the lines mean."""


def budget_table(group: CellGroup, rows: Sequence[Row] | None = None) -> Table | None:
    """The budgets of a group's cells; None where no step was split."""
    known = budget_rows(group)
    if not known:
        return None
    shown = known if rows is None else rows
    parts = {name: part_label(name) for name in BUDGET_COLUMNS if name not in HIDDEN}
    columns = [
        Column("aggregator", group.name),
        Column(f"{group.unit}s", lambda row: str(row["world_size"])),
        *_times(known, {**parts, "profiled_iteration_s": SUM}),
        Column(UNPROFILED, _unprofiled),
        *_times(known, _AFTER_THE_SUM),
    ]
    if any(row["exposed_check"] is not None for row in known):
        columns.append(Column(CHECK, _check))
    differing = [row for row in shown if _check(row) == DIFFERS]
    return table_of(
        f"Where a step's time goes, ms: {title_of(group.given)}",
        READING,
        columns,
        shown,
        remarks=[f"{group.name(r)} on {workers_of(r)}: {text_of(r['exposed_check'])}" for r in differing],
        cells=[[row["cell_id"]] for row in shown],
        section="budget",
    )


def budget_rows(group: CellGroup) -> list[Row]:
    return [row for row in group.rows if row["profiled_iteration_s"] is not None]


def _times(rows: Sequence[Row], labels: Mapping[str, str]) -> list[Column[Row]]:
    return [
        Column(label, lambda row, name=name: like(row[name], row["profiled_iteration_s"]))  # type: ignore[misc]
        for name, label in labels.items()
        if any(row[name] is not None for row in rows)
    ]


def _unprofiled(row: Row) -> str:
    if row["iteration_s"] is None:
        return MISSING
    profiled_s, step_s = row["profiled_iteration_s"], row["typical_iteration_s"]
    differs = abs(profiled_s - step_s) > LARGEST_PROFILING_OVERHEAD * step_s
    return like(step_s, profiled_s) + (MARK if differs else "")


def _check(row: Row) -> str:
    check = row["exposed_check"]
    if check is None:
        return MISSING
    return {"exposed_times_agree": "yes", "exposed_times_unresolved": "not resolved"}.get(check.kind, DIFFERS)


def part_label(column: str) -> str:
    """`h2d_result_s` -> `h2d result`."""
    words = {"exposed_comm_s": "exposed comm.", "hidden_comm_s": "hidden comm."}
    return words.get(column, column.removesuffix("_s").replace("_", " "))
