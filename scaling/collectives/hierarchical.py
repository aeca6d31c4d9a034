"""Hierarchical all-reduce: sum inside each machine over its fast links, across machines, then spread inside
again.

The slow links between machines carry each byte once, not once a rank.

H machines of g ranks each; rank r is local rank r mod g of machine r // g.

`intra="ring"`:
1. Ring reduce-scatter inside every machine: local rank l ends with the sum of segment (l + 1) mod g.
2. Ring all-reduce of that segment among the H ranks with the same local rank, all segments at the same time.
3. Ring all-gather inside every machine.
Steps: 2(g-1) + 2(H-1). Bytes sent per rank: 2(n-1)/n S, of which 2(H-1)/n S leave the machine.

`intra="leader"`:
1. Binomial tree to local rank 0 inside every machine (tree.py).
2. Ring all-reduce among these leaders.
3. Binomial tree back.
Steps: 2 ceil(log2 g) + 2(H-1). Bytes sent: by a leader 2(H-1)/H S to the next machine and S to each of its
ceil(log2 g) children; by every other rank S up and S to each of its children.

Error: each chunk is summed once, in one order, and then copied, so the ranks agree bit for bit.

Reference: A. Sergeev, M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv
1802.05799 (2018), `NCCLHierarchicalAllreduce` in horovod/common/ops/nccl_operations.cc, which uses NCCL
inside the machine and MPI across; X. Jia et al., "Highly scalable deep learning training system with
mixed-precision", arXiv 1807.11205 (2018), for the leaders. All steps here wait for one another across
machines.
"""

from __future__ import annotations

from typing import Literal

from scaling.collectives.composition import mirrored, placed, side_by_side
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, Step
from scaling.collectives.tree import tree
from scaling.errors import ScheduleError

Intra = Literal["ring", "leader"]


def hierarchical(world_size: int, ranks_per_host: int, intra: Intra = "ring") -> Schedule:
    """The all-reduce in three stages.

    Args:
        world_size: ranks, a multiple of `ranks_per_host`.
        ranks_per_host: ranks r with the same r // ranks_per_host are one machine.
        intra: what happens inside a machine.

    Raises:
        ScheduleError: the machines would be of different sizes, or `intra` is neither of the two.
    """
    if ranks_per_host < 1 or world_size % ranks_per_host:
        raise ScheduleError(
            f"hierarchical: {world_size} ranks do not fill machines of {ranks_per_host}; "
            "choose a number of ranks per host that divides the world size"
        )
    machines = [range(first, first + ranks_per_host) for first in range(0, world_size, ranks_per_host)]
    if intra == "ring":
        return Schedule("hierarchical", world_size, world_size, tuple(_by_rings(machines)))
    if intra == "leader":
        return Schedule("hierarchical", world_size, len(machines), tuple(_by_leaders(machines)))
    raise ScheduleError(f"hierarchical: intra {intra!r}; allowed are ring and leader")


def _by_rings(machines: list[range]) -> list[Step]:
    g, num_hosts = len(machines[0]), len(machines)
    inside = side_by_side(placed(ring(g).steps, ranks, width=num_hosts) for ranks in machines)
    across = side_by_side(
        placed(
            ring(num_hosts).steps,
            [ranks[local_rank] for ranks in machines],
            # The segment whose sum this local rank holds after the reduce-scatter.
            first_chunk=(local_rank + 1) % g * num_hosts,
        )
        for local_rank in range(g)
    )
    return inside[: g - 1] + across + inside[g - 1 :]


def _by_leaders(machines: list[range]) -> list[Step]:
    g, num_hosts = len(machines[0]), len(machines)
    steps = tree(g).steps
    up = side_by_side(placed(steps[: len(steps) // 2], ranks, width=num_hosts) for ranks in machines)
    across = placed(ring(num_hosts).steps, [ranks[0] for ranks in machines])
    return up + across + mirrored(up)
