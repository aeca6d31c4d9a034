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

from collections.abc import Callable, Hashable
from itertools import chain
from typing import Literal

from scaling.collectives.composition import placed
from scaling.collectives.ring import ring
from scaling.collectives.schedule import LazySteps, Schedule, ScheduleStep
from scaling.collectives.tree import tree
from scaling.errors import ScheduleError

Intra = Literal["ring", "leader"]
StepParts = Callable[[int], list[ScheduleStep]]


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
    if intra not in ("ring", "leader"):
        raise ScheduleError(f"hierarchical: intra {intra!r}; allowed are ring and leader")
    machines = [range(first, first + ranks_per_host) for first in range(0, world_size, ranks_per_host)]
    num_chunks = world_size if intra == "ring" else len(machines)
    steps = _by_rings(machines) if intra == "ring" else _by_leaders(machines)
    return Schedule("hierarchical", world_size, num_chunks, steps)


def _by_rings(machines: list[range]) -> LazySteps:
    g, num_hosts = len(machines[0]), len(machines)
    inside, across = ring(g), ring(num_hosts)

    def in_machines(t: int) -> list[ScheduleStep]:
        return [placed([inside.steps[t]], ranks, width=num_hosts)[0] for ranks in machines]

    def over_machines(t: int) -> list[ScheduleStep]:
        step = [across.steps[t]]
        # A local rank's segment is that whose sum it holds after the reduce-scatter.
        return [
            placed(step, [ranks[local] for ranks in machines], first_chunk=(local + 1) % g * num_hosts)[0]
            for local in range(g)
        ]

    return _three_stages(inside, in_machines, across, over_machines)


def _by_leaders(machines: list[range]) -> LazySteps:
    inside, across = tree(len(machines[0])), ring(len(machines))

    def in_machines(t: int) -> list[ScheduleStep]:
        return [placed([inside.steps[t]], ranks, width=len(machines))[0] for ranks in machines]

    def over_machines(t: int) -> list[ScheduleStep]:
        return placed([across.steps[t]], [ranks[0] for ranks in machines])

    return _three_stages(inside, in_machines, across, over_machines)


def _three_stages(
    inside: Schedule, in_machines: StepParts, across: Schedule, over_machines: StepParts
) -> LazySteps:
    """The first half of the steps inside, all those across, the second half inside; parts are at one time."""
    num_up, num_across = len(inside.steps) // 2, len(across.steps)

    def stage(t: int) -> tuple[Schedule, StepParts, int]:
        if num_up <= t < num_up + num_across:
            return across, over_machines, t - num_up
        return inside, in_machines, t if t < num_up else t - num_across

    def step(t: int) -> ScheduleStep:
        _, parts, index = stage(t)
        return tuple(chain.from_iterable(parts(index)))

    def kind(t: int) -> Hashable:
        schedule, _, index = stage(t)
        return schedule is inside, schedule.kind(index)

    return LazySteps(len(inside.steps) + num_across, step, kind)
