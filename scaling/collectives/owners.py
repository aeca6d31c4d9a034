"""Exchanges in which owners sum what all others send them, and send the sum to all.

Error of all: one order of summation (the owner's part, then the others' in rank order), then copies, so the
ranks agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scaling.collectives.schedule import Columns, Schedule, Transfer


def star(world_size: int) -> Schedule:
    """Rank 0 collects every other rank's buffer, one after the other, then sends the sum out the same way.

    1. Gather, steps r = 1 .. n-1: rank r adds its buffer into rank 0's.
    2. Broadcast, steps r = 1 .. n-1: rank 0 copies its buffer to rank r.

    Steps: 2(n-1). Bytes sent: (n-1) S by rank 0 in n-1 messages, S by every other rank in one.

    Reference: torch/cunn, DataParallelTable.lua (`_reduce`, `_broadcast`), the multi-GPU module of Torch7.
    There the optimizer's step stands between the two halves, and parameters travel in the second.
    """
    gather = [(Transfer(r, 0, 0, 1, "add"),) for r in range(1, world_size)]
    broadcast = [(Transfer(0, r, 0, 1, "copy"),) for r in range(1, world_size)]
    return Schedule("star", world_size, 1, tuple(gather + broadcast))


def stripes(world_size: int) -> Schedule:
    """Every rank owns 1/n of the buffer: stripe r is rank r's. Both steps load every pair of ranks.

    Steps: 2. Bytes sent per rank: 2(n-1)/n S, in 2(n-1) messages.

    Reference: CNTK's `AllReduceDistGradAggregator` (Source/1BitSGD), the exchange of F. Seide, H. Fu, J.
    Droppo, G. Li, D. Yu, "1-bit stochastic gradient descent and its application to data-parallel distributed
    training of speech DNNs", Interspeech 2014. CNTK cuts every gradient matrix by columns, quantises both
    steps, sums in the order of arrival and sends its stripe to each rank by itself; here the stripes are
    equal parts of the buffer.
    """
    if world_size == 1:
        return Schedule("stripes", 1, 1, ())
    ranks = np.arange(world_size)
    rank, owner = np.divmod(np.flatnonzero(ranks[:, None] != ranks), world_size)
    to_owner = Columns(rank, owner, owner, owner + 1, is_add=True)
    to_all = Columns(owner, rank, owner, owner + 1, is_add=False)
    return Schedule("stripes", world_size, world_size, (to_owner, to_all))


def shuffle(world_size: int, owners: Sequence[int]) -> Schedule:
    """Chunk j is an equal part of the buffer and owned by rank `owners[j]`, of which there is one at least.

    TensorFlow's name for a reduction over parameter servers: one owner is a server for the whole tensor, k
    owners share it, all ranks as owners make a reduce-scatter and all-gather in two steps.

    Steps: 2. Bytes sent, with k equal pieces: by an owner (k-1)/k S and (n-1)/k S; by any other rank S.

    Reference: `build_shuffle_all_reduce` in tensorflow/python/distribute/v1/all_reduce.py; it sums in rank
    order. With one owner, `CopyToDeviceAlgorithm` in batch_allreduce.py of tensorflow/benchmarks.
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


def assign_owners(tensor_elements: Sequence[int], world_size: int) -> list[int]:
    """The owner of each tensor: the largest tensor first, each to the rank that owns the fewest elements."""
    owners = [0] * len(tensor_elements)
    load = [0] * world_size
    for tensor in sorted(range(len(tensor_elements)), key=lambda tensor: -tensor_elements[tensor]):
        owner = load.index(min(load))
        owners[tensor] = owner
        load[owner] += tensor_elements[tensor]
    return owners


def sharded_owners(world_size: int, tensor_elements: Sequence[int]) -> Schedule:
    """Every tensor has one owner (`assign_owners`); chunk i is tensor i, of `tensor_elements[i]` elements.

    A parameter server spread over the ranks: no tensor is ever cut, so the largest one decides how even the
    load can be. `tensor_elements` are in the order in which tensors are stored in the buffer, at least one.

    Steps: 2. Bytes sent by a rank that owns o bytes: S - o in the first step, (n-1) o in the second; a
    message to each owner, then one to each other rank.

    Reference: MXNet's `CommDevice` (src/kvstore/comm.h), kvstore type "device". It sums in rank order, runs
    the optimizer between the two steps on the owner, and pushes and pulls each tensor by itself as soon as
    backward has it: here all tensors between the same two ranks travel as one message. Where several ranks
    own equally little, or several tensors are equally large, its choice depends on the standard library; ours
    is the lowest rank and the first tensor.
    """
    schedule = shuffle(world_size, assign_owners(tensor_elements, world_size))
    return replace(schedule, name="sharded_owners", chunk_elements=tuple(tensor_elements))
