"""Shuffle: each piece of the buffer has an owner, which gets it from all ranks, sums, and sends the sum to
all.

TensorFlow's name for a reduction over parameter servers: one owner is a server for the whole tensor, k owners
share it, all ranks as owners make a reduce-scatter and all-gather in two steps.

1. Every rank adds its piece j into that of the owner of j.
2. Every owner copies its piece to all other ranks.

Steps: 2. Bytes sent, with k equal pieces: by an owner (k-1)/k S and (n-1)/k S; by any other rank S. Error:
one order of summation (the owner's, then the others in rank order), then copies, so the ranks agree bit for
bit.

Reference: `build_shuffle_all_reduce` in tensorflow/python/distribute/v1/all_reduce.py; it sums in rank order.
With one owner, `CopyToDeviceAlgorithm` in batch_allreduce.py of tensorflow/benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling.collectives.schedule import Schedule, Transfer


def shuffle(world_size: int, owners: Sequence[int]) -> Schedule:
    """The exchange over owners; chunk j is an equal part of the buffer and owned by rank `owners[j]`.

    Args:
        world_size: ranks.
        owners: at least one; a rank may own several pieces.
    """
    pairs = [
        (rank, owner, piece)
        for piece, owner in enumerate(owners)
        for rank in range(world_size)
        if rank != owner
    ]
    to_owner = tuple(Transfer(rank, owner, piece, piece + 1, "add") for rank, owner, piece in pairs)
    to_all = tuple(Transfer(owner, rank, piece, piece + 1, "copy") for rank, owner, piece in pairs)
    return Schedule("shuffle", world_size, len(owners), (to_owner, to_all) if pairs else ())
