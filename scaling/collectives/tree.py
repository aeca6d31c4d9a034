"""Binomial tree: reduce the whole buffer to rank 0, level by level, then broadcast it down the same tree.

Few messages, but each carries the whole buffer and half of the ranks rest on every level: the strategy of Caffe
before it took NCCL, there with parameters on the way down.

1. Reduce, levels d = 1, 2, 4, ... < n: every rank r with r mod 2d = d adds its buffer into rank r - d.
2. Broadcast, the same levels backwards: rank r - d copies its buffer to rank r.

Steps: 2 ceil(log2 n). Bytes sent: rank 0 sends S to each of its ceil(log2 n) children; every other rank sends S
up and S to each of its own children. Error: one order of summation, then copies, so the ranks agree bit for bit.

Reference: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
Int. J. High Perform. Comput. Appl. 19 (2005). Pairing for 4 ranks as in Caffe's `DevicePair::compute`
(src/caffe/parallel.cpp before January 2017) on two boards of two: (0, 1), (2, 3), (0, 2). We fix the order of
the sums at a node, which Caffe leaves to the order of arrival.
"""

from __future__ import annotations

from scaling.collectives.schedule import Schedule, Transfer


def tree(world_size: int) -> Schedule:
    """The binomial tree of `world_size` ranks rooted at rank 0, one chunk."""
    levels = [2**level for level in range((world_size - 1).bit_length())]
    pairs = [[(r - d, r) for r in range(d, world_size, 2 * d)] for d in levels]
    reduce = [tuple(Transfer(child, parent, 0, 1, "add") for parent, child in level) for level in pairs]
    broadcast = [
        tuple(Transfer(parent, child, 0, 1, "copy") for parent, child in level) for level in reversed(pairs)
    ]
    return Schedule("tree", world_size, 1, tuple(reduce + broadcast))
