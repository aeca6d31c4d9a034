"""A machine as devices and links, and several such machines on a network.

What a transfer costs is read off here: its path between two devices, the latency along it, and the resources
that it shares with other transfers (each direction of a duplex link, both directions of a shared one, host
memory). A `Machine` is one node; a `Topology` is one node or several equal ones, so that a route is found
once for a pair of places and holds on every node.

Resources are named `node0/<link>>` and `node0/<link><` for the two directions of a duplex link (first to
second device, and back), `node0/<link>` for a shared link, `node0/<device>` for a host memory; the links of
NICs to the network are `node0/<nic>/network>` and `node0/<nic>/network<`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from topologies.errors import TopologyError
from topologies.machine import Device as Device
from topologies.machine import DeviceKind as DeviceKind
from topologies.machine import Link as Link
from topologies.machine import Machine as Machine

PathKind = Literal["peer", "staged", "host", "network"]


@dataclass(frozen=True)
class Path:
    # "peer" directly between GPUs, "staged" through host memory, "host" from or to host memory, "network"
    # between nodes
    kind: PathKind
    latency_s: float  # of one message: along the links, and of the software
    # resource -> how often a byte passes it (host memory: once written, once read)
    resources: Mapping[str, float]


@dataclass(frozen=True)
class Network:
    """What connects the nodes: every NIC to one switch that never blocks."""

    kind: str  # "InfiniBand NDR", "10 GbE", "25 GbE, RoCE", ...: for people, and whether it is TCP
    bandwidth_bytes_per_s: float  # of one NIC's link, a direction
    latency_s: float  # from NIC to NIC


@dataclass(frozen=True)
class Topology:
    """One machine, or `num_nodes` equal ones on a network. GPUs and host memories are named `(node, id)`."""

    name: str  # of the machine or cluster
    machine: Machine  # one node
    num_nodes: int = 1  # how many there are
    network: Network | None = None  # between them; None where there is one node
    description: str = ""  # for people
    # where each figure comes from: `<type>.<figure>` -> a datasheet, a paper, a measurement, or "assumption:
    # ..."; empty where the topology comes from no file
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_gpus(self) -> int:
        return len(self.machine.of_kind("gpu")) * self.num_nodes

    def ranks(self, world_size: int) -> list[tuple[int, str]]:
        """Of ranks 0, 1, ...: GPU by GPU, node by node, or a CPU's cores; TopologyError if too many."""
        places = self._places
        if world_size > len(places) * self.num_nodes:
            raise TopologyError(
                f"{self.name}: {world_size} ranks, but {len(places) * self.num_nodes} places on "
                f"{self.num_nodes} node{'s' if self.num_nodes > 1 else ''}; use fewer ranks or more nodes"
            )
        return [(rank // len(places), places[rank % len(places)]) for rank in range(world_size)]

    def on_nodes(self, world_size: int) -> list[int]:
        """Of so many ranks, how many are on each node that has some, however many nodes there are."""
        full, rest = divmod(world_size, of_node := max(1, len(self._places)))
        return [of_node] * full + [rest] * (rest > 0)

    def gpus_of_node(self, world_size: int) -> list[str]:
        """Of so many ranks, the GPUs on the first node."""
        return [gpu.id for gpu in self.machine.of_kind("gpu")[: self.on_nodes(world_size)[0]]]

    @cached_property
    def _places(self) -> list[str]:
        """Of a node's ranks; processes on CPU cores keep their data in the nearest memory."""
        cpus = self.machine.of_kind("cpu")
        return [device.id for device in self.machine.of_kind("gpu")] or [
            self.machine.nearest(cpu.id, "host_memory") for cpu in cpus for _ in range(cpu.cores or 1)
        ]

    def host(self, node: int) -> tuple[int, str]:
        """The host memory in which that node sums: its first one."""
        memories = self.machine.of_kind("host_memory")
        if not memories:
            raise TopologyError(f"{self.name}: no device of kind 'host_memory'; add one to 'devices'")
        return node, memories[0].id

    def capacity_bytes_per_s(self, resource: str) -> float:
        """Bytes a second of a resource that a `Path` names."""
        return self._capacities[resource.partition("/")[2]]

    def bandwidth_bytes_per_s(self, path: Path) -> float:
        """Bytes a second of a message that is alone on its path; infinite where it passes nothing."""
        return min(
            (self.capacity_bytes_per_s(name) / times for name, times in path.resources.items()),
            default=math.inf,
        )

    @cached_property
    def without_latency(self) -> Topology:
        """The same machine, on which a message costs nothing before its first byte."""
        links = tuple(replace(link, latency_s=0.0) for link in self.machine.links)
        machine = replace(self.machine, links=links, message_latency_s={})
        network = replace(self.network, latency_s=0.0) if self.network else None
        return replace(self, machine=machine, network=network)

    @cached_property
    def rings(self) -> dict[Any, Any]:
        """Of a library between its GPUs, once they are searched (`scaling.collectives.nccl`)."""
        return {}

    @cached_property
    def _capacities(self) -> dict[str, float]:
        capacities: dict[str, float] = {}
        for link in self.machine.links:
            names = (f"{link.id}>", f"{link.id}<") if link.duplex else (link.id,)
            capacities |= dict.fromkeys(names, link.bandwidth_bytes_per_s)
            if link.duplex and link.back_bytes_per_s is not None:
                capacities[f"{link.id}<"] = link.back_bytes_per_s
        for device in self.machine.of_kind("host_memory"):
            if device.bandwidth_bytes_per_s is not None:
                capacities[device.id] = device.bandwidth_bytes_per_s
        for nic in self.machine.of_kind("nic"):
            if self.network is not None:
                names = (f"{nic.id}/network>", f"{nic.id}/network<")
                capacities |= dict.fromkeys(names, self.network.bandwidth_bytes_per_s)
        return capacities

    def path(self, source: tuple[int, str], target: tuple[int, str], *, peer_access: bool = True) -> Path:
        """How a message gets from one GPU or host memory to another, each a (node, device id), with or
        without direct access between GPUs; TopologyError where there is no route or no network."""
        (source_node, a), (target_node, b) = source, target
        if source_node != target_node:
            return self._network_path(source, target, peer_access=peer_access)
        kind, stops = self._stops(a, b, peer_access=peer_access)
        resources: dict[str, float] = {}
        latency_s = self.machine.message_latency_s.get(kind, 0.0)
        for hop in pairwise(stops):
            latency_s += self._pass(resources, source_node, *hop)
        return Path(kind, latency_s, resources)

    def _stops(self, a: str, b: str, *, peer_access: bool) -> tuple[PathKind, list[str]]:
        kinds = {self.machine.by_id[a].kind, self.machine.by_id[b].kind}
        if kinds != {"gpu"}:
            return "host", [a, b]
        if peer_access and self.machine.peer_access(a, b):
            return "peer", [a, b]
        return "staged", [a, self.machine.nearest(a, "host_memory"), b]

    def _pass(self, resources: dict[str, float], node: int, a: str, b: str) -> float:
        """Adds what a byte passes from a to b on one node; returns the links' latency."""
        latency_s = 0.0
        for link, forward in self.machine.route(a, b):
            side = (">" if forward else "<") if link.duplex else ""
            name = f"node{node}/{link.id}{side}"
            resources[name] = resources.get(name, 0.0) + 1
            latency_s += link.latency_s
        for end in (a, b):
            device = self.machine.by_id[end]
            if device.kind == "host_memory" and device.bandwidth_bytes_per_s is not None:
                resources[f"node{node}/{end}"] = resources.get(f"node{node}/{end}", 0.0) + 1
        return latency_s

    def _network_path(self, source: tuple[int, str], target: tuple[int, str], *, peer_access: bool) -> Path:
        if self.network is None:
            raise TopologyError(f"{self.name}: {self.num_nodes} nodes without 'network' cannot exchange")
        resources: dict[str, float] = {}
        latency_s = self.machine.message_latency_s.get("network", 0.0) + self.network.latency_s
        nics = []
        for (node, device), outward in ((source, True), (target, False)):
            nic = self.machine.nic(device)
            direct = self.machine.by_id[nic].gpudirect and peer_access
            is_staged = self.machine.by_id[device].kind == "gpu" and not direct
            stops = [device, *([self.machine.nearest(device, "host_memory")] if is_staged else []), nic]
            for a, b in pairwise(stops):
                latency_s += self._pass(resources, node, *((a, b) if outward else (b, a)))
            nics.append(nic)
        resources[f"node{source[0]}/{nics[0]}/network>"] = 1
        resources[f"node{target[0]}/{nics[1]}/network<"] = 1
        return Path("network", latency_s, resources)
