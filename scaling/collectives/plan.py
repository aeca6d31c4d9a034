"""What one training step's aggregation takes: exchanges, codec work and the update, one after the other.

A strategy is a list of stages; nothing overlaps. What works at the same time inside a stage shares what it
has to share (local_work.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from scaling.collectives.by_processes import by_processes
from scaling.collectives.local_work import Task, together_s
from scaling.collectives.placement import Place
from scaling.collectives.schedule import Schedule
from scaling.collectives.simulate import Simulation, simulate
from scaling.errors import ScheduleError
from topologies.model import Topology

Site = Literal["replica", "root", "owner", "host"]
Where = Literal["rank", "host"]
Library = Literal["", "mpi", "horovod", "gloo"]

MOMENTUM_BYTES_MOVED = 5.0
"""SGD with momentum: gradient, velocity and parameter are read, velocity and parameter written."""


@dataclass(frozen=True)
class Exchange:
    """A schedule that runs on a buffer.

    Attributes:
        schedule: between all ranks.
        num_elements: of the buffer.
        bytes_per_element: on the wire.
        num_messages: that each message is really sent as; its latency counts that often.
        name: for people; the schedule's if empty.
        native: a library does it in its own way; the schedule stands for that (`scaling.prediction.native`).
        library: the owner, where it is not torch.distributed. "mpi": processes exchange in host memory
            (`by_processes`); "horovod": by NCCL between GPUs, else as its ranks do; "gloo": as "mpi".
        for_gpus: copies between GPUs and host memory, which processes without GPUs do not make.
    """

    schedule: Schedule
    num_elements: int
    bytes_per_element: float = 4.0
    num_messages: int = 1
    name: str = ""
    native: bool = False
    library: Library = ""
    for_gpus: bool = False


@dataclass(frozen=True)
class CodecWork:
    """Encoding, decoding, copying or summing by every rank at the same time, or by rank 0 alone.

    Attributes:
        name: "encode", "decode", ...
        num_bytes: that each rank goes through.
        bytes_per_s: of one GPU, or of one core; None lets the memory decide, or how fast a core adds.
        where: by the rank itself, or in the host memory of its node.
        bytes_moved: in memory, read and written for each of `num_bytes`.
        num_threads: of the CPU, for each rank.
        by_all: False: by rank 0 alone.
        messages: sent meanwhile through the memory that the time is of; they take none themselves.
    """

    name: str
    num_bytes: float
    bytes_per_s: float | None = None
    where: Where = "rank"
    bytes_moved: float = 2.0
    num_threads: int = 1
    by_all: bool = True
    messages: tuple[Exchange, ...] = ()


@dataclass(frozen=True)
class Update:
    """The optimizer's step; its time is that of the memory that it moves.

    Attributes:
        site: every rank all parameters, rank 0 all, every rank those that it owns, or each node's host all.
        num_elements: parameters.
        bytes_per_element: of a parameter.
        bytes_moved: read and written for each byte of parameters.
        num_threads: of a host; a rank without a GPU has one core.
        owner_elements: of site "owner", the elements of each rank.
    """

    site: Site
    num_elements: int
    bytes_per_element: float = 4.0
    bytes_moved: float = MOMENTUM_BYTES_MOVED
    num_threads: int = 1
    owner_elements: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """For people."""
        return f"update ({self.site})"


Stage = Exchange | CodecWork | Update


def exchanges_of(stages: Iterable[Stage], *, with_gpus: bool) -> list[Exchange]:
    """Everything that the stages send, in their order.

    Args:
        stages: of one training step.
        with_gpus: whether ranks have GPUs; without them no gradient is copied to host memory and back.
    """
    sent: list[Exchange] = []
    for stage in stages:
        if isinstance(stage, CodecWork):
            sent += stage.messages
        elif isinstance(stage, Exchange) and (with_gpus or not stage.for_gpus):
            sent.append(stage)
    return sent


@dataclass(frozen=True)
class StagePrice:
    """What a stage takes; `simulation` is an exchange's, but for those between processes."""

    name: str
    seconds: float
    simulation: Simulation | None = None


@dataclass(frozen=True)
class PlanSimulation:
    """What the stages take, in their order."""

    stages: tuple[StagePrice, ...]

    @property
    def seconds(self) -> float:
        """All, one after the other."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def seconds_by_name(self) -> dict[str, float]:
        """Stages of one name together."""
        totals: dict[str, float] = {}
        for stage in self.stages:
            totals[stage.name] = totals.get(stage.name, 0.0) + stage.seconds
        return totals

    def describe(self) -> str:
        """A line for each name."""
        width = max((len(stage.name) for stage in self.stages), default=5)
        rows = [*self.seconds_by_name.items(), ("total", self.seconds)]
        return "\n".join(f"{name:{width}}  {seconds * 1e3:10.4g} ms" for name, seconds in rows)


def simulate_plan(
    stages: Sequence[Stage],
    topology: Topology,
    world_size: int,
    *,
    peer_access: bool = True,
    places: Sequence[Place] | None = None,
) -> PlanSimulation:
    """Prices the stages; arguments as for `simulate`.

    Raises:
        TopologyError: the topology has not what a stage needs.
        ScheduleError: a schedule is for another number of ranks, or the owners are not as many as ranks.
    """
    ranks = list(topology.ranks(world_size) if places is None else places)
    if len(ranks) != world_size:
        raise ScheduleError(f"{len(ranks)} places for {world_size} ranks")
    prices = []
    for stage in stages:
        if isinstance(stage, Exchange):
            prices.append(_exchange(stage, topology, ranks, peer_access=peer_access))
        else:
            tasks = _tasks(stage, topology, ranks)
            prices.append(StagePrice(stage.name, together_s(tasks, topology)))
    return PlanSimulation(tuple(prices))


def _exchange(stage: Exchange, topology: Topology, ranks: list[Place], *, peer_access: bool) -> StagePrice:
    if stage.schedule.world_size != len(ranks):
        raise ScheduleError(
            f"{stage.schedule.name}: made for {stage.schedule.world_size} ranks, run by {len(ranks)}"
        )
    if stage.for_gpus and not topology.num_gpus:
        return StagePrice(stage.name or stage.schedule.name, 0.0)
    if stage.library == "mpi":
        priced = by_processes(stage.schedule, topology, stage.num_elements * stage.bytes_per_element)
        return StagePrice(stage.name or stage.schedule.name, priced.seconds)
    simulation = simulate(
        stage.schedule,
        topology,
        stage.num_elements * stage.bytes_per_element,
        peer_access=peer_access,
        places=ranks,
        num_messages=stage.num_messages,
    )
    return StagePrice(stage.name or stage.schedule.name, simulation.seconds, simulation)


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
