"""One node: its devices, its links, and the way between any two of them.

See topologies/model.py for what a message costs on the way, and for several nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from topologies.errors import TopologyError

if TYPE_CHECKING:
    import networkx as nx

DeviceKind = Literal["gpu", "cpu", "pcie_switch", "nvswitch", "nic", "host_memory"]
DEVICE_KINDS: tuple[str, ...] = get_args(DeviceKind)


MATRIX_FIGURES = ("float32_flops_per_s", "tf32_flops_per_s", "bf16_flops_per_s", "fp16_flops_per_s")
"""Of devices that multiply matrices."""


@dataclass(frozen=True)
class Device:
    id: str  # unique in its machine
    kind: DeviceKind  # what it is
    name: str = ""  # the product, for people
    board: str | None = None  # of a GPU, the board that it shares with others; None if it has one of its own
    cores: int | None = None  # of a CPU
    # of a GPU, and of one core of a CPU: bytes of one addend that it adds to another in a second (both read,
    # the sum written). None where it sums nothing
    reduce_bytes_per_s: float | None = None
    # of a host memory: bytes read and written together in a second; of a GPU, the same of its own memory
    bandwidth_bytes_per_s: float | None = None
    # float32_flops_per_s, tf32_flops_per_s, bf16_flops_per_s, fp16_flops_per_s: of a GPU, and of a CPU with
    # all its cores: floating-point operations a second in products of matrices, by precision
    float32_flops_per_s: float | None = None
    tf32_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    fp16_flops_per_s: float | None = None
    gpudirect: bool = False  # of a NIC: GPUs of the node send and receive without a stop in host memory
    type: str = ""  # the type in the machine file that its figures come from; "" where it comes from no file


@dataclass(frozen=True)
class Link:
    id: str  # unique in its machine
    first: str  # first, second: the devices' ids
    second: str
    kind: str  # "pcie", "nvlink", "upi", "memory", ...: for people
    # of one direction, all its `count` cables together; of both directions together where the link is shared
    bandwidth_bytes_per_s: float
    latency_s: float  # from one end to the other
    duplex: bool = True  # both directions have their own bandwidth; False: they share one
    # of the direction from second to first where it differs; only of a duplex link
    back_bytes_per_s: float | None = None
    count: int = 1  # equal cables bundled in it
    type: str = ""  # the type in the machine file that its figures come from; "" where it comes from no file


@dataclass(frozen=True)
class Machine:
    """One node: devices, links, and which GPUs may access each other's memory."""

    name: str  # of the machine
    devices: tuple[Device, ...]  # devices, links: unique ids; links name devices
    links: tuple[Link, ...]
    peer_groups: tuple[frozenset[str], ...] = ()  # two GPUs have peer access if one of these sets holds both
    # software's latency of a message, by the kind of its path; 0 where absent
    message_latency_s: Mapping[str, float] = field(default_factory=dict)
    other_peers_unknown: bool = False  # whether pairs in no group have access is not known; taken not to

    def of_kind(self, kind: DeviceKind) -> list[Device]:
        return [device for device in self.devices if device.kind == kind]

    @cached_property
    def by_id(self) -> dict[str, Device]:
        return {device.id: device for device in self.devices}

    def peer_access(self, a: str, b: str) -> bool:
        return any(a in group and b in group for group in self.peer_groups)

    @cached_property
    def _graph(self) -> nx.Graph[str]:
        import networkx as nx  # takes a while, and is of use to few commands

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
        """The links from `source` to `target`, each with whether it is passed from first to second device. Of
        all routes, the one whose links take least time a byte together; TopologyError where there is none.
        GPUs, NICs and host memories are ends of routes and lie on none."""
        key = (source, target)
        if key not in self._routes:
            self._routes[key] = self._find_route(source, target)
        return self._routes[key]

    def _find_route(self, source: str, target: str) -> list[tuple[Link, bool]]:
        import networkx as nx

        ends = {"gpu", "nic", "host_memory"}
        inside = [d.id for d in self.devices if d.kind not in ends or d.id in (source, target)]
        graph = self._graph.subgraph(inside)

        try:
            nodes = nx.dijkstra_path(
                graph, source, target, weight=lambda _a, _b, edge: 1 / edge["link"].bandwidth_bytes_per_s
            )
        except (nx.NetworkXNoPath, nx.NodeNotFound):
            raise TopologyError(
                f"{self.name}: no route from {source!r} to {target!r}; check 'links' of the machine file"
            ) from None
        hops = [(graph.edges[a, b]["link"], a) for a, b in pairwise(nodes)]
        return [(link, link.first == a) for link, a in hops]

    def nearest(self, source: str, kind: DeviceKind) -> str:
        """The (first) device of that kind with the fastest route; TopologyError where there is none."""
        devices = self.of_kind(kind)
        if not devices:
            raise TopologyError(f"{self.name}: no device of kind {kind!r}; add one to 'devices'")
        return min((device.id for device in devices), key=lambda id_: self._time_per_byte(source, id_))

    def nic(self, device: str) -> str:
        """The NIC through which a GPU or host memory sends: its nearest; TopologyError where there is none.
        GPUs with the same several nearest NICs take them in turn, as communication libraries do."""
        if device not in self._nics:
            nearest = self._nearest_nics(device)
            same_nic = [gpu.id for gpu in self.of_kind("gpu") if self._nearest_nics(gpu.id) == nearest]
            turn = same_nic.index(device) if device in same_nic else 0
            self._nics[device] = nearest[turn % len(nearest)]
        return self._nics[device]

    @cached_property
    def _nics(self) -> dict[str, str]:
        return {}

    def _nearest_nics(self, device: str) -> list[str]:
        first = self._time_per_byte(device, self.nearest(device, "nic"))
        times = {nic.id: self._time_per_byte(device, nic.id) for nic in self.of_kind("nic")}
        return [nic for nic, time in times.items() if math.isclose(time, first)]

    def _time_per_byte(self, source: str, target: str) -> float:
        return sum(1 / link.bandwidth_bytes_per_s for link, _ in self.route(source, target))
