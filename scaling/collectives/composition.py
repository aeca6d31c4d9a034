"""Builds steps out of steps: a broadcast out of a reduction, a pipeline, several collectives at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest

from scaling.collectives.schedule import ScheduleStep, Transfer


def mirrored(reduction: Sequence[ScheduleStep]) -> list[ScheduleStep]:
    """The way back: the same transfers in reverse order of the steps, from target to source, as copies.

    What was reduced to one place is spread to all the places that it came from.
    """
    return [
        tuple(Transfer(t.target, t.source, t.start, t.stop, "copy") for t in step)
        for step in reversed(reduction)
    ]


def pipelined(levels: Sequence[ScheduleStep], num_groups: int, width: int = 1) -> list[ScheduleStep]:
    """Level d of group c in step d + c: len(levels) + num_groups - 1 steps.

    Args:
        levels: the steps for one group of chunks, numbered 0 to `width` - 1.
        num_groups: groups; group c is the `width` chunks from c width on.
        width: chunks of a group.
    """
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
