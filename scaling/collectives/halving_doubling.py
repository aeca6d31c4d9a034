"""Recursive doubling, and recursive halving and doubling: ranks swap with partners at distances 1, 2, 4, ...

Error of both: each chunk is summed in one order, or by the same two addends in either order, which is exact,
so the ranks agree bit for bit.

References: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005); R. Rabenseifner, "Optimization of collective reduction
operations", ICCS 2004 (halving and doubling, binary blocks). MPICH folds the first ranks in pairs of
neighbours; we fold the last into the first.
"""

from __future__ import annotations

from typing import Literal

from scaling.collectives.composition import mirrored, placed, side_by_side
from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer
from scaling.errors import ScheduleError


def recursive_doubling(world_size: int) -> Schedule:
    """In step i every rank swaps its whole buffer with the rank 2^i away, and both add: the fewest steps of
    all.

    Let m be the largest power of two that is not above n, and e = n - m the extra ranks.

    1. Where e > 0: extra rank m + i adds its buffer into rank i.
    2. Steps d = 1, 2, 4, ... < m: ranks r and r xor d, both below m, each add their buffer into the other's.
    3. Where e > 0: rank i copies its buffer to extra rank m + i.

    Steps: log2 m, and 2 more where e > 0. Bytes sent: S in each of the log2 m steps by the ranks below m, S
    more by the e ranks that have an extra one; S by the extra ranks.
    """
    m = power_of_two_below(world_size)
    swaps = [
        tuple(Transfer(r, r ^ 2**level, 0, 1, "add") for r in range(m)) for level in range(m.bit_length() - 1)
    ]
    fold = folding(world_size, num_chunks=1)
    return Schedule("recursive_doubling", world_size, 1, tuple(fold + swaps + mirrored(fold)))


def power_of_two_below(world_size: int) -> int:
    """The largest power of two that is not above `world_size`."""
    return int(2 ** (world_size.bit_length() - 1))


def folding(world_size: int, num_chunks: int) -> list[ScheduleStep]:
    """One step in which the ranks from m on add their whole buffer into rank 0, 1, ...; none if n is m."""
    m = power_of_two_below(world_size)
    step = tuple(Transfer(r, r - m, 0, num_chunks, "add") for r in range(m, world_size))
    return [step] if step else []


Treatment = Literal["fold", "binary_blocks"]


def halving_doubling(world_size: int, treatment: Treatment = "fold") -> Schedule:
    """Rabenseifner's all-reduce: a reduce-scatter that halves what it sends, then an all-gather that doubles
    it.

    The bytes of the ring in the steps of a tree: optimal in both where n is a power of two. Let m be the
    largest power of two that is not above n; the buffer is cut into m chunks.

    1. Reduce-scatter, steps d = 1, 2, 4, ... < m: ranks r and r xor d hold the same range of chunks; the
       lower one keeps its first half, the upper one its second half, and each adds the other half into its
       partner's.
    2. All-gather: the same steps backwards, as copies.

    Other world sizes: "fold": the n - m extra ranks add their buffer into the first ones before and get a
    copy afterwards. "binary_blocks": the ranks form blocks, one for each bit of n, the largest first. Every
    block does its own reduce-scatter; as soon as a block of b ranks has, the next smaller one adds its sums
    into it, each of its ranks split over b / (its own size) ranks; the all-gather is the mirror image.

    Steps: 2 log2 m, and 2 more where n is no power of two. Bytes sent per rank: 2(m-1)/m S in 2 log2 m
    messages; folded, S by the extra ranks and S more by those that they fold into; with blocks, 2(b-1)/b S in
    a block of b ranks, S/b more if there is a larger block and S/b more if there is a smaller one.

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
            # The next smaller block's ranks add their windows into those of this one within them: its
            # halvings are the first ones of this one's, so that equal low bits are equal halves.
            smaller, smaller_first, halvings = sizes[i + 1], firsts[i + 1], size.bit_length() - 1
            steps.append(
                tuple(
                    Transfer(smaller_first + r % smaller, first + r, *_window(r, halvings, m), "add")
                    for r in range(size)
                )
            )
        parts.append(steps)
    return side_by_side(parts)
