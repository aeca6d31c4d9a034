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

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

import networkx as nx

from topologies.errors import TopologyError

DeviceKind = Literal["gpu", "cpu", "pcie_switch", "nvswitch", "nic", "host_memory"]
DEVICE_KINDS: tuple[str, ...] = get_args(DeviceKind)
PathKind = Literal["peer", "staged", "host", "network"]
PATH_KINDS: tuple[str, ...] = get_args(PathKind)


@dataclass(frozen=True)
class Device:
    """One device of a node.

    Attributes:
        id: unique in its machine.
        kind: what it is.
        name: the product, for people.
        board: of a GPU, the board that it shares with others; None if it has one of its own.
        cores: of a CPU.
        reduce_bytes_per_s: of a GPU, and of one core of a CPU: bytes of one addend that it adds to another in
            a second (both read, the sum written). None where it sums nothing.
        bandwidth_bytes_per_s: of a host memory: bytes read and written together in a second; of a GPU, the
            same of its own memory.
        gpudirect: of a NIC: GPUs of the node send and receive without a stop in host memory.
    """

    id: str
    kind: DeviceKind
    name: str = ""
    board: str | None = None
    cores: int | None = None
    reduce_bytes_per_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    gpudirect: bool = False


@dataclass(frozen=True)
class Link:
    """A link between two devices of a node.

    Attributes:
        id: unique in its machine.
        first, second: the devices' ids.
        kind: "pcie", "nvlink", "upi", "memory", ...: for people.
        bandwidth_bytes_per_s: of one direction; of both together where the link is shared.
        latency_s: from one end to the other.
        duplex: both directions have their own bandwidth; False: they share one.
    """

    id: str
    first: str
    second: str
    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float
    duplex: bool = True


@dataclass(frozen=True)
class Path:
    """How bytes get from one device to another.

    Attributes:
        kind: "peer" directly between GPUs, "staged" through host memory, "host" from or to host memory,
            "network" between nodes.
        latency_s: of one message: along the links, and of the software.
        resources: resource -> how often a byte passes it (host memory: once written, once read).
    """

    kind: PathKind
    latency_s: float
    resources: Mapping[str, float]


@dataclass(frozen=True)
class Machine:
    """One node: devices, links, and which GPUs may access each other's memory.

    Attributes:
        name: of the machine.
        devices, links: unique ids; links name devices.
        peer_groups: two GPUs have peer access if one of these sets holds both.
        message_latency_s: software's latency of a message, by the kind of its path; 0 where absent.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    peer_groups: tuple[frozenset[str], ...] = ()
    message_latency_s: Mapping[str, float] = field(default_factory=dict)

    def of_kind(self, kind: DeviceKind) -> list[Device]:
        """The devices of that kind, in their order."""
        return [device for device in self.devices if device.kind == kind]

    @cached_property
    def by_id(self) -> dict[str, Device]:
        """Device by id."""
        return {device.id: device for device in self.devices}

    def peer_access(self, a: str, b: str) -> bool:
        """Whether the GPUs `a` and `b` may access each other's memory."""
        return any(a in group and b in group for group in self.peer_groups)

    @cached_property
    def _graph(self) -> nx.Graph[str]:
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(device.id for device in self.devices)
        for link in self.links:
            known = graph.get_edge_data(link.first, link.second)
            if known is None or known["link"].bandwidth_bytes_per_s < link.bandwidth_bytes_per_s:
                graph.add_edge(link.first, link.second, link=link)
        return graph

    @cached_property
    def _routes(self) -> dict[tuple[str, str], list[tuple[Link, bool]]]:
        return {}

    def route(self, source: str, target: str) -> list[tuple[Link, bool]]:
        """The links from `source` to `target`, each with whether it is passed from first to second device.

        Of all routes, the one whose links take least time a byte together. GPUs, NICs and host memories are
        ends of routes and lie on none.

        Raises:
            TopologyError: there is none.
        """
        key = (source, target)
        if key not in self._routes:
            self._routes[key] = self._find_route(source, target)
        return self._routes[key]

    def _find_route(self, source: str, target: str) -> list[tuple[Link, bool]]:
        ends = {"gpu", "nic", "host_memory"}
        inside = [d.id for d in self.devices if d.kind not in ends or d.id in (source, target)]
        graph = self._graph.subgraph(inside)

        def time_per_byte(_a: str, _b: str, edge: Mapping[str, Link]) -> float:
            return 1 / edge["link"].bandwidth_bytes_per_s

        try:
            nodes = nx.dijkstra_path(graph, source, target, weight=time_per_byte)
        except (nx.NetworkXNoPath, nx.NodeNotFound):
            raise TopologyError(
                f"{self.name}: no route from {source!r} to {target!r}; check 'links' of the machine file"
            ) from None
        hops = [(graph.edges[a, b]["link"], a) for a, b in pairwise(nodes)]
        return [(link, link.first == a) for link, a in hops]

    def nearest(self, source: str, kind: DeviceKind) -> str:
        """The device of that kind with the fastest route from `source`; the first of several equal ones.

        Raises:
            TopologyError: there is none.
        """
        found = self.of_kind(kind)
        if not found:
            raise TopologyError(f"{self.name}: no device of kind {kind!r}; add one to 'devices'")
        return min(
            (device.id for device in found),
            key=lambda id_: sum(1 / link.bandwidth_bytes_per_s for link, _ in self.route(source, id_)),
        )


@dataclass(frozen=True)
class Network:
    """What connects the nodes: every NIC to one switch that never blocks.

    Attributes:
        kind: "InfiniBand NDR", "10 GbE", ...: for people.
        bandwidth_bytes_per_s: of one NIC's link, a direction.
        latency_s: from NIC to NIC.
    """

    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class Topology:
    """One machine, or `num_nodes` equal ones on a network.

    GPUs and host memories are named `(node, id)`.
    """

    name: str
    machine: Machine
    num_nodes: int = 1
    network: Network | None = None

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return len(self.machine.of_kind("gpu")) * self.num_nodes

    def ranks(self, world_size: int) -> list[tuple[int, str]]:
        """Where ranks 0 to world_size - 1 are: GPU by GPU, node by node; CPU processes where no GPU is.

        Raises:
            TopologyError: there are fewer GPUs.
        """
        places = [device.id for device in self.machine.of_kind("gpu")]
        if not places:  # processes on CPU cores keep their data in the nearest memory
            cpus = self.machine.of_kind("cpu")
            places = [
                self.machine.nearest(cpu.id, "host_memory") for cpu in cpus for _ in range(cpu.cores or 1)
            ]
        if world_size > len(places) * self.num_nodes:
            raise TopologyError(
                f"{self.name}: {world_size} ranks, but {len(places) * self.num_nodes} places on "
                f"{self.num_nodes} node{'s' if self.num_nodes > 1 else ''}; use fewer ranks or more nodes"
            )
        return [(rank // len(places), places[rank % len(places)]) for rank in range(world_size)]

    def host(self, node: int) -> tuple[int, str]:
        """The host memory in which that node sums: its first one."""
        found = self.machine.of_kind("host_memory")
        if not found:
            raise TopologyError(f"{self.name}: no device of kind 'host_memory'; add one to 'devices'")
        return node, found[0].id

    def capacity_bytes_per_s(self, resource: str) -> float:
        """Bytes a second of a resource that a `Path` names."""
        return self._capacities[resource.partition("/")[2]]

    @cached_property
    def _capacities(self) -> dict[str, float]:
        capacities: dict[str, float] = {}
        for link in self.machine.links:
            names = (f"{link.id}>", f"{link.id}<") if link.duplex else (link.id,)
            capacities |= dict.fromkeys(names, link.bandwidth_bytes_per_s)
        for device in self.machine.of_kind("host_memory"):
            if device.bandwidth_bytes_per_s is not None:
                capacities[device.id] = device.bandwidth_bytes_per_s
        for nic in self.machine.of_kind("nic"):
            if self.network is not None:
                names = (f"{nic.id}/network>", f"{nic.id}/network<")
                capacities |= dict.fromkeys(names, self.network.bandwidth_bytes_per_s)
        return capacities

    def path(self, source: tuple[int, str], target: tuple[int, str], *, peer_access: bool = True) -> Path:
        """How a message gets from one GPU or host memory to another.

        Args:
            source, target: (node, device id).
            peer_access: False forbids direct access between GPUs (host-only).

        Raises:
            TopologyError: there is no route, or no network between nodes.
        """
        (source_node, a), (target_node, b) = source, target
        if source_node != target_node:
            return self._network_path(source, target, peer_access=peer_access)
        kind, stops = self._stops(a, b, peer_access=peer_access)
        return self._along(kind, source_node, stops)

    def _stops(self, a: str, b: str, *, peer_access: bool) -> tuple[PathKind, list[str]]:
        kinds = {self.machine.by_id[a].kind, self.machine.by_id[b].kind}
        if kinds != {"gpu"}:
            return "host", [a, b]
        if peer_access and self.machine.peer_access(a, b):
            return "peer", [a, b]
        return "staged", [a, self.machine.nearest(a, "host_memory"), b]

    def _along(self, kind: PathKind, node: int, stops: list[str]) -> Path:
        resources: dict[str, float] = {}
        latency_s = self.machine.message_latency_s.get(kind, 0.0)
        for a, b in pairwise(stops):
            latency_s += self._pass(resources, node, a, b)
        return Path(kind, latency_s, resources)

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
            nic = self.machine.nearest(device, "nic")
            stops = self._to_nic(device, nic, peer_access=peer_access)
            for a, b in pairwise(stops):
                latency_s += self._pass(resources, node, *((a, b) if outward else (b, a)))
            nics.append(nic)
        resources[f"node{source[0]}/{nics[0]}/network>"] = 1
        resources[f"node{target[0]}/{nics[1]}/network<"] = 1
        return Path("network", latency_s, resources)

    def _to_nic(self, device: str, nic: str, *, peer_access: bool) -> list[str]:
        direct = self.machine.by_id[nic].gpudirect and peer_access
        if self.machine.by_id[device].kind == "gpu" and not direct:
            return [device, self.machine.nearest(device, "host_memory"), nic]
        return [device, nic]
