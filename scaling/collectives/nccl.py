"""What NCCL's all-reduce between GPUs takes.

The bytes flow at the rate of the bottleneck; latency and protocol are the library's.

**NCCL** takes the fastest of ring and tree with three protocols, as its tuner does. With n ranks on m nodes,
g a node, S bytes, and B the rate of a ring on the machine:

- ring: 2(n-1)/n S / (e B) and latency b + 2(n-1) h, of which 2m hops cross the network where m > 1;
- tree: 2 S / (0.92 e B) and latency b + 2((g-1) h + log2(m) h'): inside one node the tree is a chain.

e is the protocol's share of the bandwidth: LL 1/2, LL128 0.92, Simple 1. Base b and hops h (NVLink, PCIe,
network) are the constants of NCCL's source, src/graph/tuning.cc at commit 5067397c. B is that of its rings
inside a node (`scaling.collectives.nccl_rings`), and on several nodes at most that of all NICs of a node:
NCCL makes rings that cross at different NICs. With NCCL_NVLS (sums in the switch) it may be faster; not here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaling.collectives.nccl_rings import best_rings
from scaling.collectives.placement import Place
from scaling.collectives.price import Price
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


def nccl_all_reduce(
    topology: Topology, places: Sequence[Place], num_bytes: float, *, peer_access: bool
) -> Price:
    """The fastest of NCCL's algorithms and protocols.

    Args:
        topology: the machine.
        places: GPUs, node by node.
        num_bytes: of the buffer.
        peer_access: False forbids direct access between GPUs; else each pair has what the machine gives it.

    Raises:
        TopologyError: there is no path between two of them, or no network between nodes.
    """
    world_size = len(places)
    if world_size == 1 or not num_bytes:
        return Price(choice="nothing")
    gpus = [device for node, device in places if node == places[0][0]]
    nodes = len({node for node, _ in places})
    rate, busiest, kind, note = _ring_rate(topology, gpus, nodes, peer_access=peer_access)
    flow_s = 2 * (world_size - 1) / world_size * num_bytes / rate
    times = []
    for protocol, share in PROTOCOLS.items():
        crossing = 2 * nodes if nodes > 1 else 0
        hop, across = HOP_S[kind, "ring"][protocol], HOP_S["network", "ring"][protocol]
        latency_s = BASE_S["ring", protocol] + (2 * (world_size - 1) - crossing) * hop + crossing * across
        times.append(Price(latency_s, flow_s / share, busiest, f"ring, {protocol}", note))
        hop, across = HOP_S[kind, "tree"][protocol], HOP_S["network", "tree"][protocol]
        latency_s = BASE_S["tree", protocol] + 2 * ((len(gpus) - 1) * hop + math.log2(nodes) * across)
        # A chain sends S up and S down; a ring 2(n-1)/n S, at half the messages in flight.
        tree_s = flow_s * world_size / (world_size - 1) / TREE_SHARE
        times.append(Price(latency_s, tree_s / share, busiest, f"tree, {protocol}", note))
    return min(times, key=lambda time: time.seconds)


def _ring_rate(
    topology: Topology, gpus: Sequence[str], nodes: int, *, peer_access: bool
) -> tuple[float, str | None, str, str | None]:
    """Bytes a second that leave each GPU, what bounds them, the kind of link inside a node, and a note."""
    slowest, busiest, kind, note = math.inf, None, "pcie", None
    if len(gpus) > 1:
        rings = best_rings(topology, gpus, peer_access=peer_access)
        slowest, busiest, note = rings.bytes_per_s, rings.busiest, rings.note
        kind = "nvlink" if rings.kind == "nvlink" else "pcie"
    if nodes > 1:
        num_nics = len({topology.machine.nic(gpu) for gpu in gpus})
        path = topology.path((0, gpus[0]), (1, gpus[0]), peer_access=peer_access)
        across = num_nics * topology.bandwidth_bytes_per_s(path)
        if across < slowest:
            slowest, note = across, None
            busiest = min(path.resources, key=topology.capacity_bytes_per_s)
    return slowest, busiest, kind, note
