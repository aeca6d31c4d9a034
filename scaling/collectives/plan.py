"""What one training step's aggregation takes: exchanges, codec work and the update, one after the other.

A strategy is a list of stages; nothing overlaps. What works at the same time inside a stage, at one place or
at several, shares what it has to share. Each GPU has a memory of its own. CPU threads share the cores and
the bandwidth of host memory max-min fair (fair_sharing.py), one core a thread.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scaling.collectives.fair_sharing import Activities, Uses, run
from scaling.collectives.mpi_library import MpiLibrary, mpi_price
from scaling.collectives.nccl import nccl_price
from scaling.collectives.placement import BYTES_MOVED_PER_BYTE_ADDED, Place, Price, Resources
from scaling.collectives.schedule import Schedule
from scaling.collectives.simulate import Simulation, simulate
from scaling.errors import ScheduleError
from topologies.errors import TopologyError
from topologies.model import DeviceKind, Topology

Site = Literal["replica", "root", "owner", "host"]
Where = Literal["rank", "host"]
Library = Literal["", "mpi", "horovod", "gloo"]

HOST_KINDS: tuple[DeviceKind, DeviceKind] = ("cpu", "host_memory")

MOMENTUM_BYTES_MOVED = 5.0
"""SGD with momentum: gradient, velocity and parameter are read, velocity and parameter written."""


@dataclass(frozen=True)
class Exchange:
    """A schedule that runs on a buffer; `name` is for people, the schedule's if empty. `bytes_per_element`:
    on the wire. `native`: a library does it in its own way; the schedule stands for that
    (`scaling.collectives.nccl`). `library`: the owner, where it is not torch.distributed. "mpi": processes
    exchange in host memory (`by_processes`); "horovod": by NCCL between GPUs, else as its ranks do; "gloo":
    as "mpi". `for_gpus`: copies between GPUs and host memory, which processes without GPUs do not make.
    `group`: of a library's, ranks of the first of the groups in which it runs at the same time, each on a
    buffer of so many elements; none: all ranks together."""

    schedule: Schedule
    num_elements: int
    bytes_per_element: float = 4.0
    name: str = ""
    native: bool = False
    library: Library = ""
    for_gpus: bool = False
    group: tuple[int, ...] = ()


@dataclass(frozen=True)
class CodecWork:
    """Encoding, decoding, copying or summing by every rank at the same time, or by rank 0 alone."""

    name: str
    num_bytes: float  # that each rank goes through
    bytes_per_s: float | None = None  # of a GPU or a core; None: the memory decides, or how fast a core adds
    where: Where = "rank"  # by the rank itself, or in the host memory of its node
    bytes_moved: float = 2.0  # in memory, read and written for each of `num_bytes`
    num_threads: int = 1  # of the CPU, for each rank
    by_all: bool = True
    messages: tuple[Exchange, ...] = ()  # sent meanwhile through that memory; they take no time themselves


@dataclass(frozen=True)
class Update:
    """The optimizer's step; its time is that of the memory that it moves. `site`: every rank all parameters,
    rank 0 all, every rank those that it owns, or each node's host all. `bytes_moved`: read and written for
    each byte of parameters. `num_threads`: of a host; a rank without a GPU has one core. `owner_elements`: of
    site "owner", the elements of each rank."""

    site: Site
    num_elements: int
    bytes_per_element: float = 4.0
    bytes_moved: float = MOMENTUM_BYTES_MOVED
    num_threads: int = 1
    owner_elements: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"update ({self.site})"


Stage = Exchange | CodecWork | Update


def exchanges_of(stages: Iterable[Stage], *, with_gpus: bool) -> list[Exchange]:
    """Everything that the stages of a step send, in their order; without GPUs no gradient is copied to host
    memory and back."""
    sent: list[Exchange] = []
    for stage in stages:
        if isinstance(stage, CodecWork):
            sent += stage.messages
        elif isinstance(stage, Exchange) and (with_gpus or not stage.for_gpus):
            sent.append(stage)
    return sent


@dataclass(frozen=True)
class StagePrice(Price):
    """What a stage takes: its name, for people, and the simulation of an exchange's schedule."""

    name: str = ""
    simulation: Simulation | None = None


@dataclass(frozen=True)
class PlanSimulation:
    """What the stages take, in their order."""

    stages: tuple[StagePrice, ...]

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def seconds_by_name(self) -> dict[str, float]:
        """Stages of one name together."""
        totals = defaultdict[str, float](float)
        for stage in self.stages:
            totals[stage.name] += stage.seconds
        return totals


def simulate_plan(
    stages: Sequence[Stage],
    topology: Topology,
    world_size: int,
    *,
    peer_access: bool = True,
    places: Sequence[Place] | None = None,
    threads: int = 1,
) -> PlanSimulation:
    """Prices the stages; arguments as for `simulate`, and the threads of a rank that sum in host memory.
    TopologyError: the topology has not what a stage needs. ScheduleError: a schedule is for another number of
    ranks, or the owners are not as many as ranks."""
    ranks = list(topology.ranks(world_size) if places is None else places)
    if len(ranks) != world_size:
        raise ScheduleError(f"{len(ranks)} places for {world_size} ranks")
    return PlanSimulation(
        tuple(
            exchange_price(stage, topology, ranks, peer_access=peer_access, threads=threads)
            if isinstance(stage, Exchange)
            else StagePrice(flow_s=together_s(_tasks(stage, topology, ranks), topology), name=stage.name)
            for stage in stages
        )
    )


def exchange_price(
    stage: Exchange,
    topology: Topology,
    ranks: Sequence[Place],
    *,
    peer_access: bool = True,
    threads: int = 1,
    mpi: MpiLibrary | None = None,
    by_mpi: bool = False,
) -> StagePrice:
    """Prices one exchange: each pair of GPUs takes the machine's path for it. `ranks`: the place of each.
    `peer_access`: False forbids direct access between GPUs (host-only). `threads`: of a rank, for sums in
    host memory. `mpi`: the MPI library; None: a default. `by_mpi`: Horovod's processes exchange by MPI."""
    name, num_bytes = stage.name or stage.schedule.name, stage.num_elements * stage.bytes_per_element
    if stage.schedule.world_size != len(ranks):
        raise ScheduleError(
            f"{stage.schedule.name}: made for {stage.schedule.world_size} ranks, run by {len(ranks)}"
        )
    if stage.for_gpus and not topology.num_gpus:
        return StagePrice(name=name)
    if stage.library == "mpi" or by_mpi:
        messages = None if stage.native else stage.schedule
        work = mpi_price(messages, topology, len(ranks), num_bytes, mpi)
        return StagePrice(**vars(work), name=name)
    if stage.native and topology.num_gpus:
        steps = stage.schedule.steps
        ends = {transfer.operation for at in (0, -1) if len(steps) for transfer in steps[at][:1]}
        places = [ranks[rank] for rank in stage.group] or ranks
        work = nccl_price(
            topology, places, num_bytes, peer_access=peer_access, halves=len(ends) or 2, among=ranks
        )
        return StagePrice(**vars(work), name=name)
    return _of_schedule(stage, topology, ranks, peer_access=peer_access, threads=threads)


def _of_schedule(
    stage: Exchange, topology: Topology, ranks: Sequence[Place], *, peer_access: bool, threads: int
) -> StagePrice:
    num_bytes = stage.num_elements * stage.bytes_per_element
    whole, flowing = (
        simulate(stage.schedule, machine, num_bytes, peer_access=peer_access, places=ranks)
        for machine in (topology, topology.without_latency)
    )
    sums_s, flow_s = 0.0, flowing.seconds
    if stage.schedule.num_hosts:
        flow_s -= flowing.reduce_seconds
        sums_s = _host_sums_s(stage, topology, ranks, threads, flowing.reduce_seconds)
    return StagePrice(
        latency_s=max(0.0, whole.seconds - flowing.seconds),
        flow_s=flow_s,
        busiest=flowing.busiest_resource,
        sums_s=sums_s,
        name=stage.name or stage.schedule.name,
        simulation=whole,
    )


def _host_sums_s(
    stage: Exchange, topology: Topology, ranks: Sequence[Place], threads: int, reduce_s: float
) -> float:
    """The processor's sums of an exchange with host memory. One thread (`host_serial`) keeps the partial
    sum's block in its cache: 3 bytes move for the first sum, 2 for a further row. Else each rank of a node
    sums its share, block by block: every row is read once and the sum written. While they are few the threads
    bound it, of which one among many moves as many bytes as one alone adds; then the host memory does, which
    all share."""
    if not any(transfer.operation == "add" for transfer in stage.schedule.steps[0]):
        return 0.0
    num_rows = max(Counter(node for node, _ in ranks).values())
    if stage.schedule.name == "host_serial":
        return reduce_s * (2 * num_rows - 1) / max(3 * (num_rows - 1), 1)
    cpus, memories = (topology.machine.of_kind(kind) for kind in HOST_KINDS)
    num_threads = min(num_rows * threads, max(1, sum(cpu.cores or 1 for cpu in cpus)))
    rates = [cpu.reduce_bytes_per_s for cpu in cpus if cpu.reduce_bytes_per_s is not None]
    capacity = sum(memory.bandwidth_bytes_per_s or math.inf for memory in memories)
    rate = min(capacity, num_threads * rates[0] if rates else math.inf)
    return (num_rows + 1) * stage.num_elements * stage.bytes_per_element / rate


def _tasks(stage: CodecWork | Update, topology: Topology, ranks: list[Place]) -> list[Task]:
    if isinstance(stage, Update):
        return _update_tasks(stage, topology, ranks)
    ranks = ranks if stage.by_all else ranks[:1]
    places = ranks if stage.where == "rank" else [topology.host(node) for node, _ in ranks]
    return [
        Task(place, stage.num_bytes, stage.bytes_moved, stage.bytes_per_s, stage.num_threads)
        for place in places
    ]


def _update_tasks(stage: Update, topology: Topology, ranks: list[Place]) -> list[Task]:
    all_bytes = stage.num_elements * stage.bytes_per_element
    if stage.site == "host":
        hosts = [topology.host(node) for node in sorted({node for node, _ in ranks})]
        return [Task(host, all_bytes, stage.bytes_moved, num_threads=stage.num_threads) for host in hosts]
    if stage.site == "owner":
        if len(stage.owner_elements) != len(ranks):
            raise ScheduleError(
                f"update: {len(stage.owner_elements)} owners' elements for {len(ranks)} ranks; give one each"
            )
        owned = [elements * stage.bytes_per_element for elements in stage.owner_elements]
        return [Task(place, share, stage.bytes_moved) for place, share in zip(ranks, owned, strict=True)]
    updating = ranks if stage.site == "replica" else ranks[:1]
    return [Task(place, all_bytes, stage.bytes_moved) for place in updating]


@dataclass(frozen=True)
class Task:
    """Bytes that are gone through at one place, a GPU or a host memory, by one GPU or by some cores.
    `bytes_moved`: in memory, for each of them. `bytes_per_s`: of them, by the GPU or one core; None lets the
    memory decide, or how fast a core adds."""

    place: Place
    num_bytes: float
    bytes_moved: float
    bytes_per_s: float | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        if self.num_bytes < 0 or self.bytes_moved <= 0 or self.num_threads < 1:
            raise ScheduleError(f"{self}: allowed are 0 and more bytes, some moved for each, and a thread")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise ScheduleError(f"{self}: a rate must be positive")


def together_s(tasks: Sequence[Task], topology: Topology) -> float:
    """All tasks at the same time, until the last ends. TopologyError: a GPU's bandwidth or a core's rate is
    needed and not known."""
    resources = Resources(topology)
    in_memory = [task for task in tasks if resources.in_memory(task.place[1])]
    on_gpus = [task for task in tasks if not resources.in_memory(task.place[1])]
    gpus_s = max((task.num_bytes / _gpu_rate(task, resources.topology) for task in on_gpus), default=0.0)
    return max(gpus_s, _in_memory_s(in_memory, resources))


def _gpu_rate(task: Task, topology: Topology) -> float:
    if task.bytes_per_s is not None:
        return task.bytes_per_s
    bandwidth = topology.machine.by_id[task.place[1]].bandwidth_bytes_per_s
    if bandwidth is None:
        raise TopologyError(
            f"{topology.name}: {task.place[1]!r} has to update parameters; give it 'bandwidth_bytes_per_s'"
        )
    return bandwidth / task.bytes_moved


def _in_memory_s(tasks: list[Task], resources: Resources) -> float:
    highest_rate = np.zeros(len(tasks))
    uses = []
    for i, task in enumerate(tasks):
        node, memory = task.place
        number, add_bytes_per_s = resources.cores(memory)
        # A core that adds moves three bytes for each byte added; other work takes as long for each one moved.
        adding = add_bytes_per_s * BYTES_MOVED_PER_BYTE_ADDED / task.bytes_moved
        rate = adding if task.bytes_per_s is None else task.bytes_per_s
        highest_rate[i] = task.num_threads * rate
        uses.append(Uses.of([i], [number + node], [add_bytes_per_s / rate]))
        bandwidth = resources.memory(memory)
        if bandwidth is not None:
            uses.append(Uses.of([i], [bandwidth + node], [task.bytes_moved]))
    nobody = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    num_bytes = np.array([task.num_bytes for task in tasks], dtype=np.float64)
    activities = Activities(np.zeros(len(tasks)), num_bytes, highest_rate, Uses.joined(*uses), nobody)
    return float(run(activities, resources.capacity_bytes_per_s).end_s.max(initial=0.0))
