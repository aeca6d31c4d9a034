"""Who sent how much to whom: the plan that a run has recorded, checked against the bytes that were metered.

Processes meter what they send, not where to. That is the plan's (`scaling.collectives.plan_record`), which
counts only if it sends, rank by rank, what was metered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.analysis.samples import CellResult
from scaling.collectives.plan_record import ExchangePlan, read_plan
from scaling.errors import ScheduleError
from scaling.store.upgrades.plans import plan_before_records

LARGEST_DISAGREEMENT = 0.01
"""A plan that sends other bytes than were metered by more than this is not what was run."""


def plan_of_cell(cell: CellResult) -> ExchangePlan:
    """What the ranks of a cell send in one training step; the mean of a block's, with local updates.

    Raises:
        ScheduleError: it is not known, or it is not what was metered.
    """
    summary = cell.done[0].summary if cell.done else {}
    parameters, metered = summary.get("num_parameters"), summary.get("wire_bytes_per_rank")
    if not parameters or not metered:
        raise ScheduleError("its parameters or the bytes that its ranks sent were not recorded")
    plan = _plan(cell, summary, int(parameters)).over_steps(cell.steps_each)
    for rank, count in enumerate(metered):
        expected = plan.sent_bytes(rank)
        if abs(expected - count) > LARGEST_DISAGREEMENT * max(expected, count):
            raise ScheduleError(
                f"rank {rank} sent {count / 1e6:.4g} MB, its schedule would send {expected / 1e6:.4g} MB"
            )
    return plan


def known_plan(cell: CellResult) -> ExchangePlan | None:
    """The same; None where it is not known."""
    try:
        return plan_of_cell(cell)
    except ScheduleError:
        return None


def _plan(cell: CellResult, summary: Mapping[str, Any], num_parameters: int) -> ExchangePlan:
    world_size = int(cell.cell["world_size"])
    if "plan" in summary:
        return read_plan(summary["plan"], world_size)
    if "plan_unknown" in summary:
        raise ScheduleError(str(summary["plan_unknown"]))
    parameters = cell.cell.get("aggregator_parameters") or {}
    return plan_before_records(str(cell.cell["aggregator"]), parameters, world_size, num_parameters)
