"""Which algorithm an MPI library runs for MPI_Allreduce of floats, by its source, as the schedule that it is.

**Open MPI**, component coll/tuned, fixed decision for commutative operations
(ompi/mca/coll/tuned/coll_tuned_decision_fixed.c, the same file, blob 1c445c0c, in v4.1.0 to v5.0.10):

- from 4.1 on a table by ranks and bytes: recursive doubling for small messages, Rabenseifner's reduce-scatter
  and all-gather for large ones, rings between, reduction and broadcast for few bytes between many ranks. Its
  segmented ring is called with segments of 0 bytes, which makes it a ring (coll_base_allreduce.c).
- before (v4.0.7): recursive doubling below 10,000 bytes, then a ring, above 1 MiB for each rank in segments
  of 1 MiB.

From 5.0 on, ranks on several nodes run coll/han (its priority is 35, that of coll/tuned 30; it leaves one
node to that). It is not modelled: `not_modelled` says so, and coll/tuned's choice over all ranks stands for
it.

**MPICH** (maint/tuning/coll/mpir/generic.json and ch4/generic.json, v5.0.1, commit f47d175f): recursive
doubling up to 8 bytes, or fewer elements than ranks, else Rabenseifner's; before 3.4 (allreduce.c) the bound
was MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE, 2,048 bytes. On several nodes each reduces to its first rank, these
all-reduce, and each broadcasts. On one node a process without threads would sum in shared memory
(release_gather), which mpi4py's, started with MPI_THREAD_MULTIPLE, do not.

What a user forces (OMPI_MCA_coll_tuned_allreduce_algorithm, MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM) is not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from scaling.collectives.composition import mirrored, placed, side_by_side
from scaling.collectives.halving_doubling import halving_doubling, recursive_doubling
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer
from scaling.collectives.tree import tree
from scaling.errors import ScheduleError

Family = Literal["Open MPI", "MPICH"]
Algorithm = Literal[
    "recursive doubling", "ring", "segmented ring", "reduce-scatter and all-gather", "reduce and broadcast"
]

SEGMENT_BYTES = 1 << 20
"""Of Open MPI's segmented ring before 4.1."""

_DOUBLING: Final = "recursive doubling"
_RING: Final = "ring"
_RABENSEIFNER: Final = "reduce-scatter and all-gather"
_TREE: Final = "reduce and broadcast"
_MAKERS: dict[Algorithm, Callable[[int], Schedule]] = {
    _DOUBLING: recursive_doubling,
    _RING: ring,
    _RABENSEIFNER: halving_doubling,
    _TREE: tree,
}

OPEN_MPI_TABLE: tuple[tuple[float, tuple[tuple[float, Algorithm], ...]], ...] = (
    (
        4,
        (
            *((8, _RING), (4096, _DOUBLING), (8192, _RING), (16384, _DOUBLING), (262144, _RING)),
            (math.inf, _RABENSEIFNER),
        ),
    ),
    (8, ((16, _RING), (8192, _DOUBLING), (math.inf, _RABENSEIFNER))),
    (16, ((8192, _DOUBLING), (math.inf, _RABENSEIFNER))),
    (32, ((64, _RING), (4096, _DOUBLING), (math.inf, _RABENSEIFNER))),
    (64, ((128, _RING), (math.inf, _RABENSEIFNER))),
    (128, ((262144, _DOUBLING), (math.inf, _RABENSEIFNER))),
    (256, ((131072, _TREE), (262144, _DOUBLING), (math.inf, _RABENSEIFNER))),
    (512, ((4096, _TREE), (math.inf, _RABENSEIFNER))),
    (2048, ((2048, _TREE), (16384, _DOUBLING), (math.inf, _RABENSEIFNER))),
    (4096, ((2048, _TREE), (4096, _RING), (16384, _DOUBLING), (math.inf, _RABENSEIFNER))),
    (math.inf, ((2048, _TREE), (16384, _RING), (32768, _DOUBLING), (math.inf, _RABENSEIFNER))),
)
"""(below so many ranks, ((below so many bytes, algorithm), ...)), both in rising order."""


@dataclass(frozen=True)
class MpiLibrary:
    """An MPI library: the family that decides, and the numbers of its version."""

    family: Family = "Open MPI"
    version: tuple[int, ...] = (5, 0)

    @classmethod
    def of(cls, text: str) -> MpiLibrary | None:
        """From its own words, `Open MPI v5.0.11` or `MPICH Version: 5.0.2`; None for another library."""
        family = next((candidate for candidate in get_args(Family) if candidate in text), None)
        numbers = re.search(r"\d+(\.\d+)+", text)
        if family is None or numbers is None:
            return None
        return cls(family, tuple(int(part) for part in numbers[0].split(".")))

    def __str__(self) -> str:
        return f"{self.family} {'.'.join(map(str, self.version))}"

    def algorithm(self, world_size: int, num_bytes: float) -> Algorithm:
        """What it runs between 2 or more ranks that are equal (one node, or its coll/tuned) for each rank's
        `num_bytes` of float32."""
        num_elements = num_bytes // 4
        if self.family == "MPICH":
            short_bytes = 8 if self.version >= (3, 4) else 2048
            few = num_elements < 2 ** (world_size.bit_length() - 1)
            return _DOUBLING if num_bytes <= short_bytes or few else _RABENSEIFNER
        if self.version >= (4, 1):
            by_bytes = next(row for below, row in OPEN_MPI_TABLE if world_size < below)
            return next(algorithm for below, algorithm in by_bytes if num_bytes < below)
        if num_bytes < 10_000 or num_elements <= world_size:
            return _DOUBLING
        return _RING if num_bytes <= world_size * SEGMENT_BYTES else "segmented ring"

    def not_modelled(self, num_nodes: int) -> str | None:
        """What of its choice on so many nodes is not known here; None if nothing."""
        if num_nodes > 1 and self.family == "Open MPI" and self.version >= (5,):
            return (
                f"{self} runs coll/han on several nodes, which is not modelled: priced as coll/tuned's "
                "choice over all ranks"
            )
        return None


def mpi_all_reduce(
    library: MpiLibrary, world_size: int, num_bytes: float, num_nodes: int = 1
) -> tuple[str, Schedule]:
    """The algorithm in words, and its schedule. `world_size`: ranks, node by node. `num_nodes`: that the
    ranks are on; where the world is a multiple of it. ScheduleError: `world_size` or `num_nodes` is below
    1."""
    if world_size < 1 or num_nodes < 1:
        raise ScheduleError(f"MPI: {world_size} ranks on {num_nodes} nodes; allowed are 1 and more")
    if world_size == 1:
        return "nothing", Schedule("nothing", 1, 1, ())
    per_node, rest = divmod(world_size, num_nodes)
    if library.family == "MPICH" and num_nodes > 1 and per_node > 1 and not rest:
        across = library.algorithm(num_nodes, num_bytes)
        inner = _schedule(across, num_nodes, num_bytes)
        return f"reduce, {across} between nodes, broadcast", _by_nodes(inner, per_node)
    algorithm = library.algorithm(world_size, num_bytes)
    return algorithm, _schedule(algorithm, world_size, num_bytes)


def _schedule(algorithm: Algorithm, world_size: int, num_bytes: float) -> Schedule:
    if algorithm == "segmented ring":
        return segmented_ring(world_size, max(1, round(num_bytes / (world_size * SEGMENT_BYTES))))
    return _MAKERS[algorithm](world_size)


def segmented_ring(world_size: int, num_phases: int) -> Schedule:
    """Open MPI's: the ring's reduce-scatter phase by phase, a segment of each block, then one all-gather.

    Steps: (n - 1) (phases + 1). Bytes sent per rank: 2(n-1)/n S.
    """
    n, k = world_size, num_phases

    def reduce(phase: int, t: int) -> ScheduleStep:
        blocks = [(rank - t) % n * k + phase for rank in range(n)]
        return tuple(Transfer(r, (r + 1) % n, blocks[r], blocks[r] + 1, "add") for r in range(n))

    def gather(t: int) -> ScheduleStep:
        blocks = [(rank + 1 - t) % n * k for rank in range(n)]
        return tuple(Transfer(r, (r + 1) % n, blocks[r], blocks[r] + k, "copy") for r in range(n))

    reduction = [reduce(phase, t) for phase in range(k) for t in range(n - 1)]
    return Schedule("segmented_ring", n, n * k, (*reduction, *map(gather, range(n - 1))))


def _by_nodes(across: Schedule, per_node: int) -> Schedule:
    """Each node's ranks reduce to their first, these run `across`, and broadcast."""
    nodes, width = across.world_size, across.num_chunks
    levels = (per_node - 1).bit_length()
    inside = side_by_side(
        placed(tree(per_node).steps[:levels], range(node * per_node, (node + 1) * per_node), width=width)
        for node in range(nodes)
    )
    leaders = range(0, nodes * per_node, per_node)
    steps = [*inside, *placed(across.steps, leaders), *mirrored(inside)]
    return Schedule("by_nodes", nodes * per_node, width, tuple(steps))
