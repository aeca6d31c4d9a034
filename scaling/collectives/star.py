"""Star: rank 0 collects every other rank's buffer, one after the other, then sends the sum out the same way.

The simplest exchange there is, and the one whose time grows fastest: rank 0's link carries everything.

1. Gather, steps r = 1 .. n-1: rank r adds its buffer into rank 0's.
2. Broadcast, steps r = 1 .. n-1: rank 0 copies its buffer to rank r.

Steps: 2(n-1). Bytes sent: (n-1) S by rank 0 in n-1 messages, S by every other rank in one. Error: one order
of summation (rank order), then copies, so the ranks agree bit for bit.

Reference: torch/cunn, DataParallelTable.lua (`_reduce`, `_broadcast`), the multi-GPU module of Torch7. There
the optimizer's step stands between the two halves, and parameters travel in the second.
"""

from __future__ import annotations

from scaling.collectives.schedule import Schedule, Transfer


def star(world_size: int) -> Schedule:
    """The star of `world_size` ranks round rank 0, one chunk, one rank a step."""
    gather = [(Transfer(r, 0, 0, 1, "add"),) for r in range(1, world_size)]
    broadcast = [(Transfer(0, r, 0, 1, "copy"),) for r in range(1, world_size)]
    return Schedule("star", world_size, 1, tuple(gather + broadcast))
