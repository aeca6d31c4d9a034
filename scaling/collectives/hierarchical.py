"""All-reduces in two levels: over machines, and over the two halves of one machine's GPUs.

Error of both: each chunk is summed once, in one order, and then copied, so the ranks agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Literal

from scaling.collectives.composition import mirrored, placed, side_by_side
from scaling.collectives.ring import ring
from scaling.collectives.schedule import LazySteps, Schedule, ScheduleStep, Transfer
from scaling.collectives.tree import tree
from scaling.errors import ScheduleError

Intra = Literal["ring", "leader"]


def hierarchical(world_size: int, ranks_per_host: int, intra: Intra = "ring") -> Schedule:
    """Sum inside each machine over its fast links, across machines, then spread inside again.

    The slow links between machines carry each byte once, not once a rank. H machines of g ranks each; rank r
    is local rank r mod g of machine r // g.

    `intra="ring"`: a ring reduce-scatter inside every machine, after which local rank l has the sum of
    segment (l + 1) mod g; a ring all-reduce of that segment among the H ranks with the same local rank, all
    segments at the same time; a ring all-gather inside. Steps: 2(g-1) + 2(H-1). Bytes sent per rank: 2(n-1)/n
    S, of which 2(H-1)/n S leave the machine.

    `intra="leader"`: a binomial tree to local rank 0 inside every machine (`tree`), a ring all-reduce among
    these leaders, and the tree back. Steps: 2 ceil(log2 g) + 2(H-1). Bytes sent: by a leader 2(H-1)/H S to
    the next machine and S to each of its ceil(log2 g) children; by every other rank S up and S to each of its
    children.

    Reference: A. Sergeev, M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow",
    arXiv 1802.05799 (2018), `NCCLHierarchicalAllreduce` in horovod/common/ops/nccl_operations.cc, which uses
    NCCL inside the machine and MPI across; X. Jia et al., "Highly scalable deep learning training system with
    mixed-precision", arXiv 1807.11205 (2018), for the leaders. All steps here wait for one another across
    machines.

    ScheduleError: the machines would be of different sizes, or `intra` is neither of the two.
    """
    if ranks_per_host < 1 or world_size % ranks_per_host:
        raise ScheduleError(
            f"hierarchical: {world_size} ranks do not fill machines of {ranks_per_host}; "
            "choose a number of ranks per host that divides the world size"
        )
    if intra not in ("ring", "leader"):
        raise ScheduleError(f"hierarchical: intra {intra!r}; allowed are ring and leader")
    g, num_hosts = ranks_per_host, world_size // ranks_per_host
    machines = [range(first, first + g) for first in range(0, world_size, g)]
    inside, across = ring(g) if intra == "ring" else tree(g), ring(num_hosts)
    # Local ranks that exchange across, with the first chunk of the segment whose sum each then holds.
    firsts = {local: (local + 1) % g * num_hosts for local in range(g)} if intra == "ring" else {0: 0}
    num_up, num_across = len(inside.steps) // 2, len(across.steps)

    def stage(t: int) -> tuple[Schedule, int]:
        """The first half of the steps inside, all those across, the second half inside."""
        if num_up <= t < num_up + num_across:
            return across, t - num_up
        return inside, t if t < num_up else t - num_across

    def step(t: int) -> ScheduleStep:
        schedule, index = stage(t)
        one = [schedule.steps[index]]
        if schedule is inside:
            parts = (placed(one, ranks, width=num_hosts)[0] for ranks in machines)
        else:
            rows = (([ranks[local] for ranks in machines], first) for local, first in firsts.items())
            parts = (placed(one, ranks, first)[0] for ranks, first in rows)
        return tuple(chain.from_iterable(parts))

    def kind(t: int) -> Hashable:
        schedule, index = stage(t)
        return schedule is inside, schedule.kind(index)

    steps = LazySteps(len(inside.steps) + num_across, step, kind)
    return Schedule("hierarchical", world_size, len(firsts) * num_hosts, steps)


GCP_V100_PAIRS = ((0, 5), (2, 7), (5, 0), (7, 2))


def tf_hierarchical_copy(world_size: int, main_pairs: Sequence[tuple[int, int]] | None = None) -> Schedule:
    """TensorFlow's hierarchical copy: each half of the GPUs sums at one main GPU, the two mains sum, and
    back.

    Made for machines of two groups of GPUs with few links between them: one copy a direction crosses over for
    each tensor, and the pair of mains changes from tensor to tensor. For chunk i with the mains (a, b) =
    `main_pairs[i]`, b in the other half than a:

    1. The other ranks of each half add their chunk into that of their half's main.
    2. b adds its sum into a's; 3. a copies the total to b.
    4. Each main copies the total to the other ranks of its half.

    Steps: 4 (2 and 3 alone with 2 ranks). Bytes sent, all ranks together: 2(n-1) S; where the mains go round,
    as they do without `main_pairs` and for even n, 2(n-1)/n S by each.

    Reference: tensorflow/benchmarks, `HierarchicalCopyAlgorithm`
    (scripts/tf_cnn_benchmarks/batch_allreduce.py). Tensor i takes the mains i mod n and (i + n/2) mod n there
    on a DGX-1; `GCP_V100_PAIRS` are those for that machine. Our chunks are equal parts in place of its
    tensors. TensorFlow drops the last GPU where n is odd: we put it into the second half.

    `world_size`: ranks; the first half is ranks 0 to n // 2 - 1. `main_pairs`: (the main that takes the
    total, the other half's main), one pair a chunk; None lets every rank be the main of one chunk.
    ScheduleError: both mains of a pair are in one half, one is no rank, or there is no pair.
    """
    half = world_size // 2
    if main_pairs is None:
        # Opposite the odd rank at the end is the last of the first half.
        opposite = [i + half if i < half else min(i - half, half - 1) for i in range(world_size)]
        main_pairs = list(enumerate(opposite)) if half else []
    elif not main_pairs:
        raise ScheduleError("tf_hierarchical_copy: no pair of mains; give at least one")
    for a, b in main_pairs:
        if not (0 <= a < world_size and 0 <= b < world_size) or (a < half) == (b < half):
            raise ScheduleError(
                f"tf_hierarchical_copy: mains ({a}, {b}); one must be a rank below {half}, the other one of "
                f"{half} to {world_size - 1}"
            )
    steps = side_by_side(_chunk_steps(world_size, chunk, a, b) for chunk, (a, b) in enumerate(main_pairs))
    return Schedule(
        "tf_hierarchical_copy", world_size, max(len(main_pairs), 1), tuple(step for step in steps if step)
    )


def _chunk_steps(world_size: int, chunk: int, a: int, b: int) -> list[ScheduleStep]:
    half = world_size // 2
    main_of = [a if (rank < half) == (a < half) else b for rank in range(world_size)]
    gather = tuple(
        Transfer(rank, main, chunk, chunk + 1, "add") for rank, main in enumerate(main_of) if rank != main
    )
    cross = (Transfer(b, a, chunk, chunk + 1, "add"),)
    return [gather, cross, *mirrored([gather, cross])]
