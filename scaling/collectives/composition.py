"""Builds schedules out of steps and of schedules: pipelines, several collectives at once, parts of a buffer,
and the two halves of a schedule that is cut where its sums are complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise, zip_longest
from typing import NamedTuple

import numpy as np

from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer
from scaling.collectives.verify import Interpreter
from scaling.errors import ScheduleError


def mirrored(reduction: Sequence[ScheduleStep]) -> list[ScheduleStep]:
    """The way back: the same transfers in reverse order of the steps, from target to source, as copies. What
    was reduced to one place is spread to all the places that it came from."""
    return [
        tuple(Transfer(t.target, t.source, t.start, t.stop, "copy") for t in step)
        for step in reversed(reduction)
    ]


def pipelined(levels: Sequence[ScheduleStep], num_groups: int, width: int = 1) -> list[ScheduleStep]:
    """Level d of group c in step d + c: len(levels) + num_groups - 1 steps. `levels`: the steps for one group
    of chunks, numbered 0 to `width` - 1. `num_groups`: groups; group c is the `width` chunks from c width on.
    `width`: chunks of a group."""
    if not levels:
        return []
    return [
        tuple(
            transfer._replace(start=transfer.start + (t - d) * width, stop=transfer.stop + (t - d) * width)
            for d, level in enumerate(levels)
            if 0 <= t - d < num_groups
            for transfer in level
        )
        for t in range(len(levels) + num_groups - 1)
    ]


def side_by_side(collectives: Iterable[Sequence[ScheduleStep]]) -> list[ScheduleStep]:
    """Step t of every collective in one step t; the longest decides how many there are."""
    return [tuple(chain.from_iterable(steps)) for steps in zip_longest(*collectives, fillvalue=())]


def placed(
    steps: Iterable[ScheduleStep], nodes: Sequence[int], first_chunk: int = 0, width: int = 1
) -> list[ScheduleStep]:
    """The steps elsewhere: node i is `nodes[i]`, chunk c the `width` chunks from `first_chunk` + c width."""
    return [
        tuple(
            Transfer(
                nodes[source],
                nodes[target],
                first_chunk + start * width,
                first_chunk + stop * width,
                operation,
            )
            for source, target, start, stop, operation in step
        )
        for step in steps
    ]


class BufferPart(NamedTuple):
    """A part of the buffer: its elements, and its collective; None leaves it as it is."""

    num_elements: int
    schedule: Schedule | None


def of_parts(name: str, world_size: int, parts: Sequence[BufferPart]) -> Schedule:
    """The collective of a buffer that consists of `parts`, one behind the other, all at the same time.

    Each part (a tensor, a slice of one, neighbouring tensors) goes its own way. Step t of every part is step
    t of the whole, so what two ranks have for each other in a step is one message. Steps: those of the part
    that has most; bytes sent: the sum over the parts.

    `parts`: at least one, in the order in which they are stored in the buffer; none has hosts. A part without
    elements keeps its transfers, which are sent by no executor: its sums too have a place.
    """
    assert all(p.schedule is None or p.schedule.num_nodes == world_size for p in parts), (
        "same ranks, no hosts"
    )
    bounds = [
        part.schedule.bounds(part.num_elements) if part.schedule else [0, part.num_elements] for part in parts
    ]
    firsts = list(accumulate((len(b) - 1 for b in bounds), initial=0))
    collectives = [
        placed(part.schedule.steps, range(world_size), first)
        for part, first in zip(parts, firsts, strict=False)
        if part.schedule
    ]
    sizes = tuple(stop - start for of_part in bounds for start, stop in pairwise(of_part))
    return Schedule(name, world_size, len(sizes), tuple(side_by_side(collectives)), chunk_elements=sizes)


class SplitSchedule(NamedTuple):
    """A schedule's two halves. `reduction`: up to the last add; `distribution`: the copies after it;
    `owners`: the node that holds each chunk's sum between the two."""

    reduction: Schedule
    distribution: Schedule
    owners: tuple[int, ...]


def split_at_reduction(schedule: Schedule) -> SplitSchedule:
    """Cuts after the last step that adds: between the halves an optimizer may be run by each chunk's owner.

    A reduction ends with each chunk's sum in one place; the distribution copies it from there. Between them
    Caffe's root, Torch's first GPU and MXNet's owner update the parameters, which then travel in place of the
    sums.

    ScheduleError: a chunk's sum is then complete nowhere or in several places, so that no owner is clear.
    """
    steps = list(schedule.steps)
    adds = [index for index, step in enumerate(steps) if any(t.operation == "add" for t in step)]
    cut = max(adds, default=-1) + 1
    interpreter = Interpreter(schedule)
    for index, step in enumerate(steps[:cut]):
        interpreter.run(index, step)
    owners = []
    for chunk, at in enumerate(interpreter.complete().T):
        owners += (complete := np.flatnonzero(at).tolist())
        if len(complete) != 1:
            where = f"at {', '.join(map(schedule.node_name, complete))}" if complete else "nowhere"
            raise ScheduleError(
                f"{schedule.name}: after the last add the sum of chunk {chunk} is complete {where}; to "
                "update parameters at an owner it must be in one place"
            )
    reduction, distribution = (replace(schedule, steps=tuple(part)) for part in (steps[:cut], steps[cut:]))
    return SplitSchedule(reduction, distribution, tuple(owners))
