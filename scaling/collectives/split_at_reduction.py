"""Cuts a schedule in two where the sums are complete: the step in which an optimizer may be run by one owner.

A reduction ends with each chunk's sum in one place, its owner; the distribution copies it from there. Between
them Caffe's root, Torch's first GPU and MXNet's owner update the parameters, which then travel in place of
the sums.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from scaling.collectives.schedule import Schedule, ScheduleStep
from scaling.errors import ScheduleError


class SplitSchedule(NamedTuple):
    """A schedule's two halves.

    Attributes:
        reduction: up to the last add.
        distribution: the copies after it.
        owners: the node that holds each chunk's sum between the two.
    """

    reduction: Schedule
    distribution: Schedule
    owners: tuple[int, ...]


def split_at_reduction(schedule: Schedule) -> SplitSchedule:
    """Cuts after the last step that adds.

    Raises:
        ScheduleError: a chunk's sum is then complete nowhere or in several places, so that no owner is clear.
    """
    steps = list(schedule.steps)
    adds = [index for index, step in enumerate(steps) if any(t.operation == "add" for t in step)]
    cut = max(adds, default=-1) + 1
    places = _Places(schedule)
    for step in steps[:cut]:
        places.run(step)
    owners = tuple(_owner(schedule, places, chunk) for chunk in range(schedule.num_chunks))
    return SplitSchedule(
        replace(schedule, steps=tuple(steps[:cut])), replace(schedule, steps=tuple(steps[cut:])), owners
    )


class _Places:
    """Which contributions each place holds, as bit masks: [node][chunk]."""

    def __init__(self, schedule: Schedule) -> None:
        masks = [1 << rank for rank in range(schedule.world_size)] + [0] * schedule.num_hosts
        self.held = [[mask] * schedule.num_chunks for mask in masks]

    def run(self, step: ScheduleStep) -> None:
        before = {(t.source, c): self.held[t.source][c] for t in step for c in range(t.start, t.stop)}
        for source, target, start, stop, operation in step:
            for chunk in range(start, stop):
                held = self.held[target][chunk] if operation == "add" else 0
                self.held[target][chunk] = held | before[source, chunk]


def _owner(schedule: Schedule, places: _Places, chunk: int) -> int:
    everything = (1 << schedule.world_size) - 1
    owners = [node for node, held in enumerate(places.held) if held[chunk] == everything]
    if len(owners) != 1:
        where = f"at {', '.join(map(schedule.node_name, owners))}" if owners else "nowhere"
        raise ScheduleError(
            f"{schedule.name}: after the last add the sum of chunk {chunk} is complete {where}; to update "
            "parameters at an owner it must be in one place"
        )
    return owners[0]
