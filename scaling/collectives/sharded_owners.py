"""Sharded owners: every tensor has one owner rank, which sums it and sends the sum to all.

A parameter server spread over the ranks, tensor by tensor: no tensor is ever cut, so the largest one decides
how even the load can be.

1. The tensors are taken by size, largest first, and each goes to the rank that owns the fewest elements so
   far.
2. Every rank adds its part of each tensor that it does not own into the owner's.
3. Every owner copies its tensors to all other ranks.

Steps: 2. Bytes sent by a rank that owns o bytes: S - o in the first step, (n-1) o in the second; a message to
each owner, then one to each other rank. Error: one order of summation (the owner's, then the others in rank
order), then copies, so the ranks agree bit for bit.

Reference: MXNet's `CommDevice` (src/kvstore/comm.h), kvstore type "device". It sums in rank order, runs the
optimizer between the two steps on the owner, and pushes and pulls each tensor by itself as soon as backward
has it: here all tensors between the same two ranks travel as one message. Where several ranks own equally
little, or several tensors are equally large, its choice depends on the standard library; ours is the lowest
rank and the first tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaling.collectives.schedule import Schedule
from scaling.collectives.shuffle import shuffle


def assign_owners(tensor_elements: Sequence[int], world_size: int) -> list[int]:
    """The owner of each tensor, given the tensors' sizes in elements."""
    owners = [0] * len(tensor_elements)
    load = [0] * world_size
    for tensor in sorted(range(len(tensor_elements)), key=lambda tensor: -tensor_elements[tensor]):
        owner = load.index(min(load))
        owners[tensor] = owner
        load[owner] += tensor_elements[tensor]
    return owners


def sharded_owners(world_size: int, tensor_elements: Sequence[int]) -> Schedule:
    """The exchange over owners; chunk i is tensor i, and its size is `chunk_elements[i]`.

    Args:
        world_size: ranks.
        tensor_elements: elements of each tensor, in the order in which they are stored in the buffer; at
        least one.
    """
    schedule = shuffle(world_size, assign_owners(tensor_elements, world_size))
    return replace(schedule, name="sharded_owners", chunk_elements=tuple(tensor_elements))
