"""Runs a schedule on plain tensors, transfer by transfer: what the other executors must equal bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scaling.collectives.schedule import Schedule
from scaling.errors import ScheduleError


def run_on_tensors(schedule: Schedule, contributions: Sequence[Tensor]) -> list[Tensor]:
    """What every rank holds after the last step.

    Args:
        schedule: for as many ranks as there are contributions.
        contributions: one flat tensor a rank, of equal length and type; left as they are.

    Returns:
        One new tensor a rank.

    Raises:
        ScheduleError: the schedule is for another number of ranks, or for tensors of other sizes.
    """
    if len(contributions) != schedule.world_size:
        raise ScheduleError(
            f"{schedule.name}: {len(contributions)} contributions for {schedule.world_size} ranks"
        )
    nodes = [tensor.clone() for tensor in contributions]
    nodes += [torch.zeros_like(nodes[0]) for _ in range(schedule.num_hosts)]
    bounds = schedule.bounds(nodes[0].numel())
    for step in schedule.steps:
        # All reads come before all writes (rule 1).
        spans = [slice(bounds[t.start], bounds[t.stop]) for t in step]
        values = [nodes[t.source][span].clone() for t, span in zip(step, spans, strict=True)]
        for transfer, span, value in zip(step, spans, values, strict=True):
            place = nodes[transfer.target][span]
            if transfer.operation == "add":
                place.add_(value)
            else:
                place.copy_(value)
    return nodes[: schedule.world_size]
