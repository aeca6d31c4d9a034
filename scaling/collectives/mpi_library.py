"""Which algorithm an MPI library runs for MPI_Allreduce of floats, by its source, as the schedule that it is;
and what messages of MPI take.

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

**Price.** Messages are sent as they are. With GPUs each rank's buffer is in the
host memory nearest to its GPU; the copies there and back are stages of their own. Processes have a core each.
On one node a message goes through shared memory: its sender copies it in, its receiver copies it out, at the
same time, fragment by fragment, so that a core that sends and receives at once does both copies. To another
node the network card reads and writes memory itself. A core moves as many bytes a second as it does in a sum
(`reduce_bytes_per_s`: 3 for each byte added).

1. A step ends when the last core has copied and added, the memory of every node has moved what its cores
   moved, and what crosses the network has arrived and is added.
2. A step's latency is that of a message: `MESSAGE_S` inside a node, the path's across.

Latency and flow have factors of their own in the calibration (kind `mpi`), fitted to measured cells of two
ranks and more, and to all-reduces of a probe that MPI started (`mpi_all_reduce`); what these took beyond the
fit goes by the buffer's size. NCCL's and Gloo's messages tell nothing of MPI's. The library is the one that
the measured launches recorded; without one it is Open MPI, and the row says so.

Left out: caches (a buffer that stays in one is faster), and what the network's interrupts take of the cores.

Reference: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), for the algorithms' costs.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from scaling.collectives.composition import mirrored, placed, side_by_side
from scaling.collectives.halving_doubling import halving_doubling, recursive_doubling
from scaling.collectives.placement import BYTES_MOVED_PER_BYTE_ADDED, Place, Price
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer, messages
from scaling.collectives.tree import tree
from scaling.errors import ScheduleError
from topologies.errors import TopologyError
from topologies.model import Path, Topology

Family = Literal["Open MPI", "MPICH"]
Algorithm = Literal[
    "recursive doubling", "ring", "segmented ring", "reduce-scatter and all-gather", "reduce and broadcast"
]

SEGMENT_BYTES = 1 << 20  # of Open MPI's segmented ring before 4.1

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
    """The algorithm in words, and its schedule. `world_size` ranks, node by node. `num_nodes`: that the ranks
    are on; where the world is a multiple of it. ScheduleError: `world_size` or `num_nodes` is below 1."""
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


MESSAGE_S = 2e-6  # of a message through shared memory, whatever its size. An assumption; calibrated.
COPY_BYTES_MOVED = 2.0  # in memory for each byte that is copied: read and written


def process_places(topology: Topology, world_size: int) -> list[Place]:
    """Where the buffers of the ranks' processes are: the host memory nearest to their device."""
    machine = topology.machine
    return [
        (
            node,
            device if machine.by_id[device].kind == "host_memory" else machine.nearest(device, "host_memory"),
        )
        for node, device in topology.ranks(world_size)
    ]


def by_processes(
    schedule: Schedule, topology: Topology, num_bytes: float, places: Sequence[Place] | None = None
) -> Price:
    """Prices a schedule that processes run in host memory, each with one core: MPI without access to GPUs.
    `schedule`: between ranks alone. `places`: the host memory of each rank; None takes `process_places`.
    ScheduleError: it uses host memory besides the ranks'. TopologyError: the machine is too small, or a
    core's rate is not known."""
    if schedule.num_hosts:
        raise ScheduleError(
            f"{schedule.name}: has host memories besides its ranks; MPI's processes have none"
        )
    where = list(process_places(topology, schedule.world_size) if places is None else places)
    reader = _StepPricer(schedule, topology, num_bytes, where)
    priced: dict[Hashable, tuple[float, float, str | None]] = {}
    latency_s = flow_s = longest_s = 0.0
    busiest = None
    for index in range(len(schedule.steps)):
        kind = index if schedule.chunk_elements is not None else schedule.kind(index)
        if kind not in priced:
            priced[kind] = reader.price(schedule.steps[index])
        step_latency_s, step_flow_s, bound = priced[kind]
        latency_s += step_latency_s
        flow_s += step_flow_s
        if step_flow_s > longest_s:
            longest_s, busiest = step_flow_s, bound
    return Price(latency_s, flow_s, busiest)


MAX_TRANSFERS = 100_000  # of one step that are priced, one by one: a million take half a minute


class _StepPricer:
    """Prices one step after the other: (latency, flow, what bounds the flow)."""

    def __init__(
        self, schedule: Schedule, topology: Topology, num_bytes: float, places: Sequence[Place]
    ) -> None:
        self._topology = topology
        self._places = places
        sizes = schedule.chunk_elements or (1,) * schedule.num_chunks
        self._bytes_before = np.cumsum([0.0, *sizes]) * (num_bytes / max(sum(sizes), 1))

    def price(self, step: ScheduleStep) -> tuple[float, float, str | None]:
        if len(step) > MAX_TRANSFERS:
            raise ScheduleError(
                f"{len(step)} messages of MPI in one step; up to {MAX_TRANSFERS} are priced: fewer ranks"
            )
        moved: dict[int, float] = defaultdict(float)  # by each rank's core
        added: dict[int, float] = defaultdict(float)
        crossing: dict[str, float] = defaultdict(float)
        latency_s = 0.0
        for source, target, transfers in messages(step):
            num_bytes = self._bytes_of(transfers)
            if not num_bytes:
                continue
            added[target] += self._bytes_of([t for t in transfers if t.operation == "add"])
            path = self._path(source, target)
            latency_s = max(latency_s, MESSAGE_S if path is None else path.latency_s)
            if path is None:
                moved[source] += COPY_BYTES_MOVED * num_bytes
                moved[target] += COPY_BYTES_MOVED * num_bytes
            else:
                for resource, times in path.resources.items():
                    crossing[resource] += times * num_bytes
        return latency_s, *self._flow(moved, added, crossing)

    def _bytes_of(self, transfers: Sequence[Transfer]) -> float:
        return sum(float(self._bytes_before[t.stop] - self._bytes_before[t.start]) for t in transfers)

    def _path(self, source: int, target: int) -> Path | None:
        """Across the network; None inside a node."""
        (node, _), (other, _) = self._places[source], self._places[target]
        if node == other:
            return None
        return self._topology.path(self._places[source], self._places[target])

    def _flow(
        self, moved: dict[int, float], added: dict[int, float], crossing: dict[str, float]
    ) -> tuple[float, str | None]:
        bounds: dict[str, float] = {}
        of_memory: dict[Place, float] = defaultdict(float)
        sums_s = 0.0
        for rank in {*moved, *added}:
            node, memory = place = self._places[rank]
            adding = BYTES_MOVED_PER_BYTE_ADDED * added.get(rank, 0.0)
            of_memory[place] += moved.get(rank, 0.0) + adding
            sums_s = max(sums_s, adding / self._core_rate(memory))
            core = f"node{node}/core"
            core_s = (moved.get(rank, 0.0) + adding) / self._core_rate(memory)
            bounds[core] = max(bounds.get(core, 0.0), core_s)
        for (node, memory), num_bytes in of_memory.items():
            rate = self._topology.machine.by_id[memory].bandwidth_bytes_per_s
            if rate is not None:
                bounds[f"node{node}/{memory}"] = num_bytes / rate
        for resource, num_bytes in crossing.items():
            # What has crossed is added after it has arrived.
            crossed_s = num_bytes / self._topology.capacity_bytes_per_s(resource)
            bounds[resource] = max(bounds.get(resource, 0.0), crossed_s + sums_s)
        busiest = max(bounds, key=bounds.__getitem__, default=None)
        return (bounds[busiest] if busiest else 0.0), busiest

    def _core_rate(self, memory: str) -> float:
        """Bytes a second that a core next to that memory reads and writes."""
        machine = self._topology.machine
        cpu = machine.by_id[machine.nearest(memory, "cpu")]
        if cpu.reduce_bytes_per_s is None:
            raise TopologyError(
                f"{self._topology.name}: cpu {cpu.id!r} has to sum; give it 'reduce_bytes_per_s'"
            )
        return BYTES_MOVED_PER_BYTE_ADDED * cpu.reduce_bytes_per_s


def mpi_price(
    schedule: Schedule | None,
    topology: Topology,
    world_size: int,
    num_bytes: float,
    library: MpiLibrary | None,
) -> Price:
    """Prices messages that MPI carries, or its own all-reduce. `schedule`: of the messages; None:
    MPI_Allreduce, as the library chooses. `library`: None takes the default, and says so. TopologyError: the
    machine is too small, has no network, or its cores' rate is not known."""
    places = process_places(topology, world_size)
    used, choice, notes = library or MpiLibrary(), "messages", []
    if schedule is None:
        num_nodes = len({node for node, _ in places})
        notes = [] if library else [f"no measured launch says which MPI: taken to be {used}"]
        notes += [note for note in (used.not_modelled(num_nodes),) if note]
        choice, schedule = mpi_all_reduce(used, world_size, num_bytes, num_nodes)
    flowing = by_processes(schedule, topology.without_latency, num_bytes, places)
    whole = by_processes(schedule, topology, num_bytes, places)
    note = "; ".join(notes) or None
    return Price(whole.latency_s, flowing.flow_s, flowing.busiest, f"{used}: {choice}", note)
