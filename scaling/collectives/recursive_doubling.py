"""Recursive doubling: in step i every rank swaps its whole buffer with the rank 2^i away, and both add.

The fewest steps of all, at the price of the whole buffer in each: best where latency decides.

Let m be the largest power of two that is not above n, and e = n - m the extra ranks.

1. Where e > 0: extra rank m + i adds its buffer into rank i.
2. Steps d = 1, 2, 4, ... < m: ranks r and r xor d, both below m, each add their buffer into the other's. Both
   transfers read the values from before the step, so both end with the same sum.
3. Where e > 0: rank i copies its buffer to extra rank m + i.

Steps: log2 m, and 2 more where e > 0. Bytes sent: S in each of the log2 m steps by the ranks below m, S more
by the e ranks that have an extra one; S by the extra ranks. Error: a swap adds the same two sums in either
order, which is exact in floating point too, so the ranks agree bit for bit.

Reference: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005). MPICH folds the first 2e ranks in pairs of neighbours;
we fold the last e into the first e.
"""

from __future__ import annotations

from scaling.collectives.composition import mirrored
from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer


def recursive_doubling(world_size: int) -> Schedule:
    """The recursive doubling of `world_size` ranks, one chunk."""
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
