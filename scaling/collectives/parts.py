"""One schedule out of several, each for its own part of the buffer, all at the same time.

What a system does tensor by tensor: each part of the buffer (a tensor, a slice of one, neighbouring tensors)
goes its own way. Step t of every part is step t of the whole, so what two ranks have for each other in a step
is one message.

Steps: those of the part that has most. Bytes sent: the sum over the parts. Error: each part's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from scaling.collectives.composition import placed, side_by_side
from scaling.collectives.schedule import Schedule


class BufferPart(NamedTuple):
    """A part of the buffer: its elements, and its collective; None leaves it as it is."""

    num_elements: int
    schedule: Schedule | None


def of_parts(name: str, world_size: int, parts: Sequence[BufferPart]) -> Schedule:
    """The collective of a buffer that consists of `parts`, one behind the other.

    Args:
        name: of the whole.
        world_size: ranks of every part's schedule; none has hosts.
        parts: at least one, in the order in which they are stored in the buffer. A part without elements
            keeps its transfers, which are sent by no executor: its sums too have a place.
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
