"""The budget of a cell: where the time of its steps goes, over its profiled iterations.

A column is the mean over the middle half of the profiled iterations of all repeats, ordered by how long they
took on the slowest rank, of the rank that the others wait for. Means of the same steps add up: the parts sum
to `profiled_iteration_s`. Medians would not, and a mean over all steps is that of the few that were
disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scaling.analysis.columns import BUDGET_COLUMNS, PART_COLUMNS, Row, pick
from scaling.analysis.samples import CellResult, Floats, IterationLaunch
from scaling.measure.budget import EXCHANGE, PART_OF, StepBudget
from scaling.measure.statistics import median_of

EXPOSED = ("exposed_comm_s", "wait_s", "encode_s", "decode_s", "d2h_s", "reduce_s", "h2d_result_s")
"""What a step without exchange does not have."""

STEP_COLUMNS: dict[str, str] = {
    "cell_id": "string",
    **dict.fromkeys(("repeat", "rank", "iteration"), "Int64"),
    **dict.fromkeys(("step_s", *BUDGET_COLUMNS, "arrived_after_first_s"), "float64"),
}
"""The columns of budget.csv, with their types."""


def cell_budget(launches: Sequence[IterationLaunch]) -> Row:
    """The budget over all launches of a cell, in seconds; empty if no step was profiled.

    Those of BUDGET_COLUMNS that the cell has (`unattributed_s` always), and `profiled_iteration_s`, to which
    they sum but for what is hidden. `profiling_overhead_s`: how much longer that is than the same mean of
    unprofiled iterations; None where the same steps are both, as in old folders. `exchange_overhead_s`: all
    that the exchange adds, None without such a column. `skew_s`: median of how long after the first rank the
    last one arrived at the first exchange; None where that cannot be said."""
    slowest_s = [max(rank.step_s for rank in step.ranks) for one in launches for step in one.profiled_steps]
    if not slowest_s:
        return {}
    budgets = [ranks[launch.waited_for] for launch in launches for ranks in launch.budgets]
    middle = [budgets[index] for index in middle_half(np.array(slowest_s))]
    values, names = [_by_column(step) for step in middle], _existing(launches)
    means_s = np.array([[columns[name] for columns in values] for name in names]).mean(axis=1)
    profiled_s = float(np.mean([step.step_s for step in middle]))
    skews_s = [max(late_s) for late_s in _lateness_s(launches)]
    columns_s = dict(zip(names, means_s.tolist(), strict=True))
    exposed_s = [columns_s[name] for name in EXPOSED if name in columns_s]
    return {
        **columns_s,
        "profiled_iteration_s": profiled_s,
        "profiling_overhead_s": _profiling_overhead_s(launches, profiled_s),
        "exchange_overhead_s": sum(exposed_s) if exposed_s else None,
        "skew_s": median_of(skews_s) if skews_s else None,
    }


def middle_half(order_by: Floats) -> NDArray[np.intp]:
    """The indices that remain after a quarter of the values is dropped at each end, rounded down."""
    dropped = len(order_by) // 4
    return np.argsort(order_by, kind="stable")[dropped : len(order_by) - dropped]


def _profiling_overhead_s(launches: Sequence[IterationLaunch], profiled_s: float) -> float | None:
    """`profiled_s` minus the mean over the middle half of the same ranks' unprofiled iterations."""
    if any(step.iteration in launch.iterations for launch in launches for step in launch.profiled_steps[:1]):
        return None
    slowest_s = np.concatenate([launch.step_s for launch in launches])
    own_s = np.concatenate([launch.rank_steps_s[launch.waited_for] for launch in launches])
    return profiled_s - float(own_s[middle_half(slowest_s)].mean())


def _existing(launches: Sequence[IterationLaunch]) -> list[str]:
    """The columns of phases that any rank marked, and the waiting in exchanges with known arrival times."""
    steps = [step for launch in launches for step in launch.profiled_steps]
    phases = {span.phase for step in steps for rank in step.ranks for span in rank.spans}
    names = {"unattributed_s", *(PART_COLUMNS[PART_OF[phase]] for phase in phases)}
    if EXCHANGE in phases:
        names.add("hidden_comm_s")
    if "h2d" in phases:
        names.add("hidden_h2d_s")
    if any(_lateness_s(launches)):
        names.add("wait_s")
    return [name for name in BUDGET_COLUMNS if name in names]


def _lateness_s(launches: Sequence[IterationLaunch]) -> Iterator[list[float]]:
    """How much later than the first rank each rank arrived, per profiled iteration with arrival times."""
    for launch in launches:
        for ranks in launch.budgets:
            late_s = [rank.arrived_after_first_s for rank in ranks]
            if None not in late_s:
                yield [seconds for seconds in late_s if seconds is not None]


def step_table(cells: Sequence[CellResult]) -> pd.DataFrame:
    """budget.csv: one row per cell, repeat, rank and profiled iteration, with the summary's column names."""
    rows = [
        {
            "cell_id": cell.cell_id,
            "repeat": launch.repeat,
            "rank": rank,
            "iteration": step.iteration,
            "step_s": budget.step_s,
            **pick(_by_column(budget), *existing),
            "arrived_after_first_s": budget.arrived_after_first_s,
        }
        for cell in cells
        for existing in [_existing(cell.all_launches)]
        for launch in cell.all_launches
        for step, ranks in zip(launch.profiled_steps, launch.budgets, strict=True)
        for rank, budget in enumerate(ranks)
    ]
    return pd.DataFrame(rows, columns=list(STEP_COLUMNS), dtype=object).astype(STEP_COLUMNS)


def _by_column(budget: StepBudget) -> dict[str, float]:
    parts = {PART_COLUMNS[part]: seconds for part, seconds in budget.parts_s.items()}
    return {**parts, "hidden_comm_s": budget.hidden_comm_s, "hidden_h2d_s": budget.hidden_h2d_s}
