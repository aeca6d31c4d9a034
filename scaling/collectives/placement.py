"""Where a schedule's nodes are on a topology, and what their messages and sums use there, as numbers.

All nodes of a topology are equal machines, so what a message uses is asked of the topology once for each pair
of devices, on one node or on two, and holds for all pairs of nodes.

Besides the resources of the topology (see topologies/model.py) there are two for the sums, in the same bytes
of an addend: `node0/<cpu>/cores`, all cores of a CPU together, and `node0/<gpu>/sums`, a GPU's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.collectives.fair_sharing import Floats, Ints, Uses
from topologies.errors import TopologyError
from topologies.model import Device, Topology


@dataclass(frozen=True)
class Price:
    """Seconds, by what they depend on. `latency_s`, `flow_s`: what does not depend on the bytes, and what
    does. `busiest`: the resource that bounds the bytes; None where nothing moves. `choice`: a library's
    algorithm and protocol, for people; "" of a schedule. `note`: what was assumed of the library; None if
    nothing. `sums_s`: sums in host memory after the copies."""

    latency_s: float = 0.0
    flow_s: float = 0.0
    busiest: str | None = None
    choice: str = ""
    note: str | None = None
    sums_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.latency_s + self.flow_s + self.sums_s


Place = tuple[int, str]  # node, device id

BYTES_MOVED_PER_BYTE_ADDED = 3  # in memory: both addends are read, the sum is written


class Resources:
    """The resources of a topology by number; a resource has its own on each node."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._numbers: dict[str, int] = {}  # by their name without the node
        self._capacities: list[float] = []

    def number(self, local: str, capacity_bytes_per_s: float | None = None) -> int:
        """That of `node0/<local>`; its own number on another node is `node` more. The capacity is of a
        resource that the topology does not know."""
        if local not in self._numbers:
            if capacity_bytes_per_s is None:
                capacity_bytes_per_s = self.topology.capacity_bytes_per_s(f"node0/{local}")
            self._numbers[local] = len(self._numbers) * self.topology.num_nodes
            self._capacities.append(capacity_bytes_per_s)
        return self._numbers[local]

    @property
    def capacity_bytes_per_s(self) -> Floats:
        return np.repeat(np.array(self._capacities, dtype=np.float64), self.topology.num_nodes)

    def name(self, number: int) -> str:
        """`node1/link0>`."""
        local, node = divmod(number, self.topology.num_nodes)
        return f"node{node}/{list(self._numbers)[local]}"

    def cores(self, memory: str) -> tuple[int, float]:
        """The cores that sum in that host memory: their number on node 0, and one core's rate in bytes/s."""
        cpu = self._device(self.topology.machine.nearest(memory, "cpu"))
        rate = _sum_rate(self.topology, cpu)
        return self.number(f"{cpu.id}/cores", (cpu.cores or 1) * rate), rate

    def memory(self, memory: str) -> int | None:
        """That host memory's number on node 0; None where its bandwidth is not known."""
        if self._device(memory).bandwidth_bytes_per_s is None:
            return None
        return self.number(memory)

    def gpu(self, gpu: str) -> tuple[int, float]:
        """A GPU's sums: their number on node 0, and their rate in bytes/s."""
        rate = _sum_rate(self.topology, self._device(gpu))
        return self.number(f"{gpu}/sums", rate), rate

    def in_memory(self, device: str) -> bool:
        """Whether data at that device is in host memory."""
        return self._device(device).kind == "host_memory"

    def _device(self, device: str) -> Device:
        return self.topology.machine.by_id[device]


def _sum_rate(topology: Topology, device: Device) -> float:
    if device.reduce_bytes_per_s is None:
        raise TopologyError(
            f"{topology.name}: {device.kind} {device.id!r} has to sum; give it 'reduce_bytes_per_s'"
        )
    return device.reduce_bytes_per_s


@dataclass(frozen=True)
class _Route:
    """What a byte uses between two devices: (at the source's node?, number on node 0, weight)."""

    latency_s: float
    uses: list[tuple[bool, int, float]]


class Placement:
    """The ranks and host memories of a schedule on a topology. `ranks`: where each rank is; `num_hosts`: host
    memories of the schedule: one is node 0's, of several host h is node h's; `peer_access`: False forbids
    direct access between GPUs. TopologyError: there are fewer nodes than hosts, or a place does not exist."""

    def __init__(
        self, topology: Topology, ranks: Sequence[Place], num_hosts: int = 0, *, peer_access: bool = True
    ) -> None:
        if num_hosts > topology.num_nodes:
            raise TopologyError(
                f"{topology.name}: {num_hosts} host memories are summed in, one a node, but there are "
                f"{topology.num_nodes} nodes; put more ranks on a host, or use more nodes"
            )
        self.resources = Resources(topology)
        self.places = [*ranks, *(topology.host(node) for node in range(num_hosts))]
        for node, device in self.places:
            if not 0 <= node < topology.num_nodes or device not in topology.machine.by_id:
                raise TopologyError(f"{topology.name}: no place ({node}, {device!r})")
        self._peer_access = peer_access
        self._devices = sorted({device for _, device in self.places})
        self.node = np.array([node for node, _ in self.places], dtype=np.int64)
        self._device = np.array([self._devices.index(device) for _, device in self.places], dtype=np.int64)
        in_memory = np.array([self.resources.in_memory(device) for device in self._devices], dtype=bool)
        self.in_memory = in_memory[self._device]
        self._routes: dict[int, _Route] = {}

    def messages(self, sources: Ints, targets: Ints) -> tuple[Floats, Uses]:
        """The latency of a message from each source to its target, and what its bytes use."""
        num_devices = len(self._devices)
        same_node = self.node[sources] == self.node[targets]
        routes = (self._device[sources] * num_devices + self._device[targets]) * 2 + same_node
        latency_s = np.zeros(len(sources))
        parts, weights = [], []
        for key, of_key in _groups(routes):
            route = self._route(key)
            latency_s[of_key] = route.latency_s
            node = {True: self.node[sources[of_key]], False: self.node[targets[of_key]]}
            for at_source, number, weight in route.uses:
                parts.append((of_key, number + node[at_source]))
                weights.append(weight)
        if not parts:
            return latency_s, Uses.joined()
        lengths = [len(of_key) for of_key, _ in parts]
        activity, resource = (np.concatenate(column) for column in zip(*parts, strict=True))
        return latency_s, Uses(activity, resource, np.repeat(np.array(weights, dtype=np.float64), lengths))

    def resources_of_message(self, source: int, target: int) -> dict[str, float]:
        """What a byte from one node to another passes: the resource's name and how often."""
        _, uses = self.messages(np.array([source]), np.array([target]))
        names = [self.resources.name(number) for number in uses.resource.tolist()]
        return dict(zip(names, uses.weight.tolist(), strict=True))

    def _route(self, key: int) -> _Route:
        if key not in self._routes:
            source, target = (self._devices[i] for i in divmod(key // 2, len(self._devices)))
            path = self.resources.topology.path(
                (0, source), (0 if key % 2 else 1, target), peer_access=self._peer_access
            )
            uses = []
            for resource, weight in path.resources.items():
                node, _, local = resource.partition("/")
                uses.append((node == "node0", self.resources.number(local), weight))
            self._routes[key] = _Route(path.latency_s, uses)
        return self._routes[key]

    def sums(self, nodes: Ints) -> tuple[Floats, Uses, Uses]:
        """Of a sum at each node: the highest rate, what it shares, and what it has for itself. A GPU's sums
        follow one another, so they share nothing; sums in host memory share its bandwidth and the cores."""
        highest_rate = np.zeros(len(nodes))
        shared: list[Uses] = []
        sum_uses: list[Uses] = []
        for device, of_device in _groups(self._device[nodes]):
            name, node = self._devices[device], self.node[nodes[of_device]]
            if not self.resources.in_memory(name):
                number, highest_rate[of_device] = self.resources.gpu(name)
                sum_uses.append(Uses.of(of_device, number + node, 1))
                continue
            number, highest_rate[of_device] = self.resources.cores(name)
            shared.append(Uses.of(of_device, number + node, 1))
            memory = self.resources.memory(name)
            if memory is not None:
                shared.append(Uses.of(of_device, memory + node, BYTES_MOVED_PER_BYTE_ADDED))
        return highest_rate, Uses.joined(*shared), Uses.joined(*sum_uses)


def _groups(keys: Ints) -> Iterator[tuple[int, Ints]]:
    """Each key that occurs, with where it does."""
    order = np.argsort(keys, kind="stable")
    ends = np.flatnonzero(np.diff(keys[order])) + 1
    for group in np.split(order, ends):
        if group.size:
            yield int(keys[group[0]]), group
