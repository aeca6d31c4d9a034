"""What MPI takes in host memory: the algorithm that its source chooses, as the schedule that it is.

An all-reduce runs what the library's decision says for these ranks and bytes
(`scaling.collectives.mpi_library`); messages are sent as they are. With GPUs each rank's buffer is in the
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

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from scaling.collectives.mpi_library import MpiLibrary, mpi_all_reduce
from scaling.collectives.placement import BYTES_MOVED_PER_BYTE_ADDED, Place, Price
from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer, messages
from scaling.errors import ScheduleError
from topologies.errors import TopologyError
from topologies.model import Path, Topology

MESSAGE_S = 2e-6
"""Of a message through shared memory, whatever its size. An assumption; calibrated."""

COPY_BYTES_MOVED = 2.0
"""In memory for each byte that is copied: read and written."""


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


MAX_TRANSFERS = 100_000
"""Of one step that are priced, one by one: a million take half a minute."""


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
