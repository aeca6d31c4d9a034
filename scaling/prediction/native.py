"""What a communication library's own all-reduce takes: NCCL between GPUs, Gloo and MPI between processes.

The bytes flow at the rate of the bottleneck; latency and protocol are the library's.

**NCCL** takes the fastest of ring and tree with three protocols, as its tuner does. With n ranks on m nodes,
g a node, S bytes, and B the rate of a ring on the machine:

- ring: 2(n-1)/n S / (e B) and latency b + 2(n-1) h, of which 2m hops cross the network where m > 1;
- tree: 2 S / (0.92 e B) and latency b + 2((g-1) h + log2(m) h'): inside one node the tree is a chain.

e is the protocol's share of the bandwidth: LL 1/2, LL128 0.92, Simple 1. Base b and hops h (NVLink, PCIe,
network) are the constants of NCCL's source, src/graph/tuning.cc at commit 5067397c. B is that of the
simulated ring inside a node, and on several nodes at most that of all NICs of a node: NCCL makes rings that
cross at different NICs. With NCCL_NVLS (sums in the switch) it may be faster; that is not here.

**Gloo** runs a ring between processes, which the simulator prices as the schedule that it is.

**MPI**: `scaling.prediction.mpi`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaling.collectives.ring import ring
from scaling.collectives.simulate import Simulation, simulate
from topologies.model import Topology

PROTOCOLS: dict[str, float] = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
"""Share of the bandwidth."""

BASE_S = {
    ("ring", "LL"): 6.6e-6,
    ("ring", "LL128"): 14.0e-6,
    ("ring", "Simple"): 8.4e-6,
    ("tree", "LL"): 6.8e-6,
    ("tree", "LL128"): 14.0e-6,
    ("tree", "Simple"): 8.4e-6,
}
HOP_S = {
    ("nvlink", "ring"): {"LL": 0.6e-6, "LL128": 1.9e-6, "Simple": 3.4e-6},
    ("nvlink", "tree"): {"LL": 0.6e-6, "LL128": 1.25e-6, "Simple": 4.0e-6},
    ("pcie", "ring"): {"LL": 1.0e-6, "LL128": 2.5e-6, "Simple": 5.7e-6},
    ("pcie", "tree"): {"LL": 1.0e-6, "LL128": 1.9e-6, "Simple": 4.0e-6},
    ("network", "ring"): {"LL": 2.7e-6, "LL128": 4.0e-6, "Simple": 14.0e-6},
    ("network", "tree"): {"LL": 5.0e-6, "LL128": 8.5e-6, "Simple": 14.0e-6},
}
TREE_SHARE = 0.92
"""Of a ring's bandwidth, in NCCL's tuner."""


@dataclass(frozen=True)
class NativeTime:
    """A library's all-reduce.

    Attributes:
        latency_s: what does not depend on the bytes.
        flow_s: what does.
        choice: algorithm and protocol, for people.
        busiest: the resource that bounds the bytes; None where nothing moves.
    """

    latency_s: float
    flow_s: float
    choice: str
    busiest: str | None

    @property
    def seconds(self) -> float:
        """Both."""
        return self.latency_s + self.flow_s


def nccl_all_reduce(
    topology: Topology, bare: Topology, world_size: int, num_bytes: float, *, peer_access: bool
) -> NativeTime:
    """The fastest of NCCL's algorithms and protocols.

    Args:
        topology: for the kinds of links.
        bare: on which the bytes are priced, without latency.
        world_size: ranks, node by node.
        num_bytes: of the buffer.
        peer_access: whether GPUs reach each other's memory.

    Raises:
        TopologyError: the machine has fewer GPUs, or no network between nodes.
    """
    topology.ranks(world_size)
    if world_size == 1 or not num_bytes:
        return NativeTime(0.0, 0.0, "nothing", None)
    per_node = min(world_size, len(topology.machine.of_kind("gpu")))
    nodes = math.ceil(world_size / per_node)
    flow_s, busiest = _ring_flow_s(bare, world_size, per_node, nodes, num_bytes, peer_access=peer_access)
    kind = _kind(topology, per_node, peer_access=peer_access)
    times = []
    for protocol, share in PROTOCOLS.items():
        crossing = 2 * nodes if nodes > 1 else 0
        hop, across = HOP_S[kind, "ring"][protocol], HOP_S["network", "ring"][protocol]
        latency_s = BASE_S["ring", protocol] + (2 * (world_size - 1) - crossing) * hop + crossing * across
        times.append(NativeTime(latency_s, flow_s / share, f"ring, {protocol}", busiest))
        hop, across = HOP_S[kind, "tree"][protocol], HOP_S["network", "tree"][protocol]
        latency_s = BASE_S["tree", protocol] + 2 * ((per_node - 1) * hop + math.log2(nodes) * across)
        # A chain sends S up and S down; a ring 2(n-1)/n S, at half the messages in flight.
        tree_s = flow_s * world_size / (world_size - 1) / TREE_SHARE
        times.append(NativeTime(latency_s, tree_s / share, f"tree, {protocol}", busiest))
    return min(times, key=lambda time: time.seconds)


def _kind(topology: Topology, per_node: int, *, peer_access: bool) -> str:
    gpus = topology.machine.of_kind("gpu")[:per_node]
    if len(gpus) < 2 or not peer_access:
        return "pcie"
    if not topology.machine.peer_access(gpus[0].id, gpus[1].id):
        return "pcie"
    route = topology.machine.route(gpus[0].id, gpus[1].id)
    return "nvlink" if any(link.kind in ("nvlink", "xgmi") for link, _ in route) else "pcie"


def _ring_flow_s(
    bare: Topology, world_size: int, per_node: int, nodes: int, num_bytes: float, *, peer_access: bool
) -> tuple[float, str | None]:
    """2(n-1)/n S at the rate of the bottleneck, and that."""
    sent = 2 * (world_size - 1) / world_size * num_bytes
    slowest, busiest = math.inf, None
    if per_node > 1:
        inside = simulate(ring(per_node), bare, num_bytes, peer_access=peer_access)
        slowest = 2 * (per_node - 1) / per_node * num_bytes / (inside.seconds - inside.reduce_seconds)
        busiest = inside.busiest_resource
    if nodes > 1:
        gpus = bare.machine.of_kind("gpu")[:per_node]
        num_nics = len({bare.machine.nic(gpu.id) for gpu in gpus})
        path = bare.path((0, gpus[0].id), (1, gpus[0].id), peer_access=peer_access)
        across = num_nics * bare.bandwidth_bytes_per_s(path)
        if across < slowest:
            slowest = across
            busiest = min(path.resources, key=bare.capacity_bytes_per_s)
    return sent / slowest, busiest


def gloo_all_reduce(topology: Topology, world_size: int, num_bytes: float) -> Simulation:
    """Gloo's ring between processes of the machine."""
    return simulate(ring(world_size), topology, num_bytes)
