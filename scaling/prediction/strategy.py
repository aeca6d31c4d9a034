"""What is priced, a strategy, on what, a machine's machinery; and the terms that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scaling.collectives.mpi_library import MpiLibrary
from scaling.collectives.nccl import best_rings
from scaling.collectives.plan import Exchange, Stage, Update
from scaling.collectives.ring import ring
from scaling.prediction.transports import HostSends, for_host_sends, shared_paths_s
from topologies.model import Topology


@dataclass(frozen=True)
class Term:
    kind: str  # what calibrates it
    name: str  # for people
    latency_s: float  # latency_s, flow_s: by the machine file
    flow_s: float
    busiest: str | None = None  # the resource that bounds it; None where that is no link
    choice: str = ""  # a library's algorithm and protocol
    native_bytes: float | None = None  # of a library's all-reduce, the buffer; else None
    note: str | None = None  # what was assumed of it
    num_ranks: int = 2  # that take part
    node_ranks: int = 0  # of these, on one node, where they share paths; 0: all
    # of what goes through host memory, on the busiest path that ranks share, by the machine file
    shared_s: float = 0.0
    # to what `scaling.collectives.plan.simulate_plan` says: starts of kernels, meetings, turns, congestion
    is_added: bool = False
    own_sd: float = 0.0  # relative, of what the machine file does not tell

    @property
    def by_gpu(self) -> bool:
        return is_by_gpu(self.kind)


def is_by_gpu(kind: str) -> bool:
    return kind.startswith("codec") or kind == "gpu_work"


@dataclass(frozen=True)
class Strategy:
    cell: Mapping[str, Any]  # its independent variables
    # stages of each bucket's aggregation, in the order in which gradients become ready; an update only where
    # the host takes it with each bucket
    buckets: tuple[tuple[Stage, ...], ...]
    bucket_elements: tuple[int, ...]  # bucket_elements, bucket_tensors: of each bucket
    bucket_tensors: tuple[int, ...]
    updates: tuple[Update, ...]  # the update, where it is not every replica's
    num_elements: int  # of the whole gradient, as many as its bytes are in float32
    codes_by_tensor: bool = False  # its codec starts kernels for each tensor
    cast: bool = False  # the gradient is cast to 16 bits for the wire, and back
    sample_bytes: int = 0  # of a sample's input, where its data lies in host memory
    one_host: bool = False  # runs on no several hosts

    @property
    def stages(self) -> list[Stage]:
        return [stage for bucket in self.buckets for stage in bucket]

    @property
    def gpu_update_share(self) -> float:
        """Of the parameters, those that the busiest rank's own device updates, where replicas do not all."""
        share, total = 0.0, sum(update.num_elements for update in self.updates)
        for update in self.updates:
            if update.site == "root" and total:
                share += update.num_elements / total
            elif update.site == "owner" and total:
                share += max(update.owner_elements) / total
        return share


def steps_of_exchange(cell: Mapping[str, Any]) -> int:
    """How many steps of a cell have one exchange together."""
    return int(cell.get("sync_every") or 1)


@dataclass
class Machinery:
    """A topology, and what prices on it: made once for many cells."""

    topology: Topology  # the machine
    # what messages through its host memory reach; None: as the machine file has it
    host_sends: HostSends | None = None
    mpi: MpiLibrary | None = None  # the MPI library; None: a default, which predictions say
    horovod_by_mpi: bool = False  # whether Horovod's ranks without GPUs exchange by MPI, and not by Gloo
    _through_host: Topology | None = None

    def on(self, transport: str) -> Topology:
        if transport not in ("sends_host", "native_host"):
            return self.topology
        if self._through_host is None:
            self._through_host = for_host_sends(self.topology, self.host_sends)
        return self._through_host

    def ring_through_host_s(self, world_size: int, num_bytes: float) -> float:
        """A library's ring without access between GPUs, on the paths that the ranks of a node share."""
        if (per_node := self.topology.on_nodes(world_size)[0]) < 2:
            return 0.0
        return shared_paths_s(ring(per_node), self.topology.without_latency, num_bytes)

    def rings_through_host(self, world_size: int, *, peer_access: bool) -> bool:
        """Whether NCCL's rings between the GPUs of a node pass host memory somewhere."""
        gpus = self.topology.gpus_of_node(world_size)
        if not peer_access or len(gpus) < 2:
            return not peer_access
        return best_rings(self.topology, gpus, peer_access=True).kind == "host"

    @property
    def has_gpus(self) -> bool:
        return bool(self.topology.machine.of_kind("gpu"))


def strategy_key(strategy: Strategy) -> tuple[str, ...]:
    """What a left-over is known for: model, aggregator with its codec's kernels, and transport."""
    cell = strategy.cell
    # Access between GPUs matters where ranks exchange with one another.
    exchanges = [stage for stage in strategy.stages if isinstance(stage, Exchange) and stage.library != "mpi"]
    if all(stage.schedule.num_hosts for stage in exchanges):
        access = "through the host"
    else:
        access = "host-only" if cell.get("peer_access") is False else "peer access"
    kernels = " by torch's kernels" if strategy.codes_by_tensor else ""
    return str(cell["model_label"]), f"{cell['aggregator_label']}{kernels}", access


def by_host(strategy: Strategy) -> bool:
    """Whether a rank alone has work besides its step: host strategies copy all the same."""
    return any(
        getattr(stage, "where", "rank") == "host" or getattr(getattr(stage, "schedule", None), "num_hosts", 0)
        for stage in strategy.stages
    )
