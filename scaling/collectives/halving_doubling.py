"""Recursive halving and doubling: a reduce-scatter that halves what it sends, then an all-gather that doubles
it.

The bytes of the ring in the steps of a tree: optimal in both where the number of ranks is a power of two.

Let m be the largest power of two that is not above n; the buffer is cut into m chunks.

1. Reduce-scatter, steps d = 1, 2, 4, ... < m: ranks r and r xor d hold the same range of chunks; the lower
   one keeps its first half, the upper one its second half, and each adds the other half into its partner's.
2. All-gather: the same steps backwards, as copies.

World sizes that are no power of two, treatment="fold": the n - m extra ranks add their buffer into the first
ones before and get a copy afterwards. treatment="binary_blocks": the ranks form blocks, one for each bit of
n, the largest first. Every block does its own reduce-scatter; as soon as a block of b ranks has, the next
smaller one adds its sums into it, each of its ranks split over b / (its own size) ranks; the all-gather is
the mirror image.

Steps: 2 log2 m, and 2 more where n is no power of two. Bytes sent per rank: 2(m-1)/m S in 2 log2 m messages;
folded, S by the extra ranks and S more by those that they fold into; with blocks, 2(b-1)/b S in a block of b
ranks, S/b more if there is a larger block and S/b more if there is a smaller one. Error: each chunk is summed
at one place in one order, then copied, so the ranks agree bit for bit.

Reference: R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004 (halving and
doubling, binary blocks); R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
operations in MPICH" (2005) (folding). As in recursive_doubling.py we fold the last ranks into the first, not
neighbours.
"""

from __future__ import annotations

from typing import Literal

from scaling.collectives.composition import mirrored, placed, side_by_side
from scaling.collectives.recursive_doubling import folding, power_of_two_below
from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer
from scaling.errors import ScheduleError

Treatment = Literal["fold", "binary_blocks"]


def halving_doubling(world_size: int, treatment: Treatment = "fold") -> Schedule:
    """Rabenseifner's all-reduce of `world_size` ranks.

    Args:
        world_size: ranks.
        treatment: what happens where `world_size` is no power of two.

    Raises:
        ScheduleError: another treatment.
    """
    m = power_of_two_below(world_size)
    if treatment == "fold":
        reduce = folding(world_size, m) + _reduce_scatter(m)
    elif treatment == "binary_blocks":
        reduce = _reduce_scatter_in_blocks(world_size)
    else:
        raise ScheduleError(f"halving_doubling: treatment {treatment!r}; allowed are fold and binary_blocks")
    return Schedule("halving_doubling", world_size, m, tuple(reduce + mirrored(reduce)))


def _window(rank: int, num_halvings: int, m: int) -> tuple[int, int]:
    """The chunks that a rank keeps after that many halvings; its bit i chooses the half in halving i."""
    start, stop = 0, m
    for level in range(num_halvings):
        middle = (start + stop) // 2
        start, stop = (middle, stop) if rank >> level & 1 else (start, middle)
    return start, stop


def _reduce_scatter(m: int) -> list[ScheduleStep]:
    """Ranks 0 to m - 1, m a power of two; afterwards each holds the sum of one chunk, that of `_window`."""
    return [
        tuple(
            # What the partner keeps is what this rank sends.
            Transfer(r, r ^ 2**level, *_window(r ^ 2**level, level + 1, m), "add")
            for r in range(m)
        )
        for level in range(m.bit_length() - 1)
    ]


def _reduce_scatter_in_blocks(world_size: int) -> list[ScheduleStep]:
    sizes = [2**bit for bit in reversed(range(world_size.bit_length())) if world_size >> bit & 1]
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    m = sizes[0]
    parts = []
    for i, (size, first) in enumerate(zip(sizes, firsts, strict=True)):
        steps = placed(_reduce_scatter(size), range(first, first + size), width=m // size)
        if i + 1 < len(sizes):
            steps.append(_merge(firsts[i + 1], sizes[i + 1], first, size, m))
        parts.append(steps)
    return side_by_side(parts)


def _merge(small_first: int, small: int, large_first: int, large: int, m: int) -> ScheduleStep:
    """The smaller block's ranks add their windows into those of the larger block that are within them."""
    transfers = []
    for rank in range(large):
        # The smaller block's halvings are the first ones of the larger: equal low bits, equal halves.
        start, stop = _window(rank, large.bit_length() - 1, m)
        transfers.append(Transfer(small_first + rank % small, large_first + rank, start, stop, "add"))
    return tuple(transfers)
