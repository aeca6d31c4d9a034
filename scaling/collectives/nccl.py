"""What NCCL's all-reduce between GPUs takes, and its halves: reduce-scatter and all-gather.

**Rings.** NCCL searches orders of a node's GPUs, over NVLink alone where such rings exist, and runs several
at once, each a channel with its own share of the links (src/graph/search.cc). Here every order of up to
`MOST_SEARCHED` GPUs is known, and a linear program gives each order the rate at which all of them together
move most:

    maximize sum of rate(order)   so that on each link   sum of rate(order) x passes(order, link) <= capacity.

On the cube mesh of a DGX-1 these are three Hamiltonian cycles that share no link, each in both directions.

**Time.** NCCL takes the fastest of ring and tree with three protocols, as its tuner does. With n ranks on m
nodes, g a node, S bytes, and B the rate of a ring on the machine:

- ring: 2(n-1)/n S / (e B) and latency b + 2(n-1) h, of which 2(m-1) hops cross the network. On several nodes
  a hop takes at least what posting to the network does, and a large all-reduce by Simple waits 1.4 times as
  long, 1.9 times before Ampere (`PLATEAU`). LL moves no more than `LL_BYTES_PER_S`;
- tree: 2 S / (0.92 e B) and latency b + 2((g-1) h + log2(m) h'): a chain inside a node, double binary trees
  between nodes. Between nodes its rate follows the buffer's size (`TREE_BY_SIZE`), and two nodes pass each
  byte once each way, so that the network bears twice B.

e is the protocol's share of the bandwidth: LL 1/2 (of trees between nodes 1/3.8), LL128 0.92, Simple 1. Base
b, hops h (NVLink, PCIe, network) and all these are of NCCL's source, src/graph/tuning.cc at commit 5067397c.
B is that of its rings inside a node, and on several nodes at most that of all NICs of a node: NCCL makes
rings that cross at different NICs. A reduce-scatter or an all-gather is a
ring with half of the hops. Groups that exchange at the same time share the NICs of their nodes, and PCIe as
one ring of all of them would. With sums in switches (NCCL_NVLS, SHARP) it may be faster; not here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from scaling.collectives.placement import Place, Price
from topologies.gpus import compute_capability
from topologies.model import Topology

MOST_SEARCHED = 8  # GPUs of which all orders are tried: 5,040

NVLINKS = ("nvlink", "xgmi")


@dataclass(frozen=True)
class Rings:
    """Channels of a node. `bytes_per_s`: that leave each GPU, over all channels. `busiest`: a resource that
    bounds it. `orders`: of the GPUs, by their place in the list, with the rate of each. `kind`: "nvlink"
    where no other link is used, "host" where some pair stops in host memory, else "pcie". `note`: what was
    not searched; None if nothing."""

    bytes_per_s: float
    busiest: str
    orders: tuple[tuple[tuple[int, ...], float], ...]
    kind: str
    note: str | None = None


def best_rings(topology: Topology, gpus: Sequence[str], *, peer_access: bool) -> Rings:
    """Of the GPUs of one node, two or more. TopologyError: there is no path between two of them."""
    key = (tuple(gpus), peer_access)
    if key not in topology.rings:
        topology.rings[key] = _search(_Pairs(topology, gpus, peer_access=peer_access))
    found: Rings = topology.rings[key]
    return found


class _Pairs:
    """What a byte from each GPU to each other passes: [from, to, resource], how often; whether over NVLink
    alone, or staged in host memory."""

    def __init__(self, topology: Topology, gpus: Sequence[str], *, peer_access: bool) -> None:
        n = self.num_gpus = len(gpus)
        pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
        paths = {(a, b): topology.path((0, gpus[a]), (0, gpus[b]), peer_access=peer_access) for a, b in pairs}
        self.names = sorted({name for path in paths.values() for name in path.resources})
        self.capacity = np.array([topology.capacity_bytes_per_s(name) for name in self.names])
        self.passes = np.zeros((n, n, len(self.names)))
        self.nvlink, self.staged = np.zeros((n, n), dtype=bool), np.zeros((n, n), dtype=bool)
        for (a, b), path in paths.items():
            for name, times in path.resources.items():
                self.passes[a, b, self.names.index(name)] = times
            self.staged[a, b] = path.kind == "staged"
            if path.kind == "peer":
                route = topology.machine.route(gpus[a], gpus[b])
                self.nvlink[a, b] = all(link.kind in NVLINKS for link, _ in route)

    def of_orders(self, orders: NDArray[np.int64]) -> NDArray[np.float64]:
        """[order, resource]: how often a byte that goes once round passes it."""
        following = np.roll(orders, -1, axis=1)
        loads: NDArray[np.float64] = self.passes[orders, following].sum(axis=1)
        return loads

    def all_nvlink(self, orders: NDArray[np.int64]) -> list[bool]:
        """Of each order, whether it has NVLinks all round."""
        following = np.roll(orders, -1, axis=1)
        return [bool(hops.all()) for hops in self.nvlink[orders, following]]

    def most(self, *, nvlink: bool) -> float:
        """No rings carry more: what can leave the GPU with the least."""
        allowed = self.nvlink if nvlink else ~np.eye(self.num_gpus, dtype=bool)
        least = np.inf
        for a in range(self.num_gpus):
            leaving = [self.passes[a, b] for b in np.flatnonzero(allowed[a])]
            common = [i for i in range(len(self.names)) if leaving and all(passes[i] for passes in leaving)]
            least = min([least, *self.capacity[common].tolist()])
        return least


def _search(pairs: _Pairs) -> Rings:
    in_turn = np.arange(pairs.num_gpus)[None, :]
    (is_nvlink,) = pairs.all_nvlink(in_turn)
    loads = pairs.of_orders(in_turn)
    used = loads[0] > 0
    alone = (pairs.capacity[used] / loads[0][used]).min()
    by_rank = _rings(pairs, in_turn, np.array([alone]))
    if pairs.num_gpus == 2 or by_rank.bytes_per_s >= 0.999 * pairs.most(nvlink=is_nvlink):
        return by_rank
    if pairs.num_gpus > MOST_SEARCHED:
        note = f"NCCL's rings in the order of ranks: not searched among more than {MOST_SEARCHED} GPUs"
        return replace(by_rank, note=note)
    orders = np.array([(0, *rest) for rest in permutations(range(1, pairs.num_gpus))])
    over_nvlink = orders[pairs.all_nvlink(orders)]
    return _together(pairs, over_nvlink if len(over_nvlink) else orders)


def _together(pairs: _Pairs, orders: NDArray[np.int64]) -> Rings:
    from scipy.optimize import linprog

    loads = pairs.of_orders(orders)
    unit = float(pairs.capacity.max())
    used = loads.any(axis=0)
    found = linprog(
        -np.ones(len(orders)), A_ub=loads[:, used].T, b_ub=pairs.capacity[used] / unit, method="highs-ds"
    )
    return _rings(pairs, orders, np.asarray(found.x) * unit)


def _rings(pairs: _Pairs, orders: NDArray[np.int64], rates: NDArray[np.float64]) -> Rings:
    running = rates > 1e-9 * rates.max()
    orders, rates = orders[running], rates[running]
    load = rates @ pairs.of_orders(orders)
    busiest = pairs.names[int((load / pairs.capacity).argmax())]
    pairs_used = orders, np.roll(orders, -1, axis=1)
    by_peers = "nvlink" if pairs.nvlink[pairs_used].all() else "pcie"
    kind = "host" if pairs.staged[pairs_used].any() else by_peers
    listed = tuple((tuple(order), rate) for order, rate in zip(orders.tolist(), rates.tolist(), strict=True))
    return Rings(float(rates.sum()), busiest, listed, kind)


PROTOCOLS: dict[str, float] = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}  # Share of the bandwidth
BETWEEN_NODES = {"LL": 1 / 3.8, "LL128": 120 / 128, "Simple": 1.0}  # the same of trees between nodes

BASE_S = {
    "ring": {"LL": 6.6e-6, "LL128": 14.0e-6, "Simple": 8.4e-6},
    "tree": {"LL": 6.8e-6, "LL128": 14.0e-6, "Simple": 8.4e-6},
}
HOP_S = {
    ("nvlink", "ring"): {"LL": 0.6e-6, "LL128": 1.9e-6, "Simple": 3.4e-6},
    ("nvlink", "tree"): {"LL": 0.6e-6, "LL128": 1.25e-6, "Simple": 4.0e-6},
    ("pcie", "ring"): {"LL": 1.0e-6, "LL128": 2.5e-6, "Simple": 5.7e-6},
    ("pcie", "tree"): {"LL": 1.0e-6, "LL128": 1.9e-6, "Simple": 4.0e-6},
    ("network", "ring"): {"LL": 2.7e-6, "LL128": 4.0e-6, "Simple": 14.0e-6},
    ("network", "tree"): {"LL": 5.0e-6, "LL128": 8.5e-6, "Simple": 14.0e-6},
}
POST_S = {"LL": 1e-6, "LL128": 1e-6, "Simple": 3e-6}
"""To post to the network, which each hop of a ring between nodes waits for; twice with AMD's processors."""

LL_BYTES_PER_S = {
    **{"Volta": (39e9,), "Ampere": (87.7e9,), "Hopper": (141e9,)},
    **{"Intel": (39e9, 20.4e9), "AMD": (22.5e9, 19e9)},
}
"""The most that LL moves: on one node by its GPUs, else by its processors, on two nodes and on more."""

SOCKETS_BYTES_PER_S = 6e9
"""The most that NCCL was published to move over a NIC of Ethernet without RDMA: 4 to 6 GB/s of 100 Gbit/s
(github.com/NVIDIA/nccl, issues 398 and 450)."""

PLATEAU, PLATEAU_BYTES = {"Volta": 1.9}, 2048
"""What an all-reduce's ring between nodes by Simple waits, from so many bytes a rank on (64 for each of 32
channels), as a factor of its latency; else 1.4."""

TREE_SHARE = 0.92  # of a ring's bandwidth, in NCCL's tuner

TREE_BY_SIZE = {
    "LL": (*(1,) * 4, 0.9, 0.8, *(0.7,) * 4, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "LL128": (*(1,) * 5, 0.9, 0.8, 0.8, 0.8, 0.7, *(0.6,) * 6, 0.8, *(0.9,) * 4),
    "Simple": (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, *(0.9,) * 3),
}
"""Of a tree's rate between nodes: of 64 bytes and more, of twice that, ..."""


_Rate = tuple[float, str | None, str | None]
"""Bytes a second that leave each GPU, what bounds them, and what was assumed."""


@dataclass(frozen=True)
class _Rates:
    """Inside a node, and between nodes."""

    gpus: str
    processors: str
    kind: str = "pcie"
    inside: _Rate = (math.inf, None, None)
    across: _Rate = (math.inf, None, None)

    def least(self, passes_across: float = 1.0) -> _Rate:
        """The slower of both."""
        rate, busiest, note = self.across
        across = rate / passes_across, busiest, note
        return min(self.inside, across, key=lambda one: one[0])


def nccl_price(
    topology: Topology,
    places: Sequence[Place],
    num_bytes: float,
    *,
    peer_access: bool,
    halves: int = 2,
    among: Sequence[Place] = (),
) -> Price:
    """The fastest of NCCL's algorithms and protocols between the GPUs `places`, node by node. `peer_access`:
    False forbids direct access between GPUs; else each pair has what the machine gives it. `halves`: 2: an
    all-reduce; 1: a reduce-scatter or an all-gather, which are rings alone. `among`: GPUs of all groups, of
    the same size, that do so at the same time; none: these alone. TopologyError: there is no path between two
    of them, or no network between nodes."""
    world_size = len(places)
    if world_size == 1 or not num_bytes:
        return Price(choice="nothing")
    gpus, everyone = (
        [device for node, device in group if node == places[0][0]] for group in (places, among or places)
    )
    nodes = len({node for node, _ in places})
    rates = _rates(topology, gpus, everyone, nodes, peer_access=peer_access)
    times = [_ring(rates, protocol, world_size, nodes, num_bytes, halves) for protocol in PROTOCOLS]
    if halves == 2:
        times += [_tree(rates, protocol, len(gpus), nodes, num_bytes) for protocol in PROTOCOLS]
    return min(times, key=lambda time: time.seconds)


def _ring(rates: _Rates, protocol: str, world_size: int, nodes: int, num_bytes: float, halves: int) -> Price:
    rate, busiest, note = rates.least()
    inside, across = HOP_S[rates.kind, "ring"][protocol], HOP_S["network", "ring"][protocol]
    hops, crossing = halves * (world_size - 1), halves * (nodes - 1)
    if nodes > 1:
        inside = max(inside, POST_S[protocol] * (2 if rates.processors == "AMD" else 1))
    latency_s = BASE_S["ring"][protocol] + (hops - crossing) * inside + crossing * across
    waits = nodes > 1 and halves == 2 and protocol == "Simple"
    if waits and num_bytes / world_size >= PLATEAU_BYTES:
        latency_s *= PLATEAU.get(rates.gpus, 1.4)
    flow_s = hops / world_size * num_bytes / _of_protocol(rate, protocol, PROTOCOLS, rates, nodes)
    return Price(latency_s, flow_s, busiest, f"ring, {protocol}", note)


def _tree(rates: _Rates, protocol: str, gpus: int, nodes: int, num_bytes: float) -> Price:
    rate, busiest, note = rates.least(0.5 if nodes == 2 else 1.0)
    inside, across = HOP_S[rates.kind, "tree"][protocol], HOP_S["network", "tree"][protocol]
    latency_s = BASE_S["tree"][protocol] + 2 * ((gpus - 1) * inside + math.floor(math.log2(nodes)) * across)
    shares = PROTOCOLS if nodes == 1 else BETWEEN_NODES
    moved = _of_protocol(TREE_SHARE * rate, protocol, shares, rates, nodes)
    if nodes > 1:
        sizes, at = TREE_BY_SIZE[protocol], math.floor(math.log2(max(num_bytes, 64) / 64))
        moved *= sizes[at] if at < len(sizes) else 1.0
    # A chain sends S up and S down; a ring 2(n-1)/n S, at half the messages in flight.
    return Price(latency_s, 2 * num_bytes / moved, busiest, f"tree, {protocol}", note)


def _of_protocol(rate: float, protocol: str, shares: dict[str, float], rates: _Rates, nodes: int) -> float:
    most = LL_BYTES_PER_S[rates.gpus if nodes == 1 else rates.processors][nodes > 2]
    return min(shares[protocol] * rate, most if protocol == "LL" else math.inf)


def _era(gpu: str) -> str:
    """As NCCL's tuner divides compute capabilities; what is not known is taken for Hopper."""
    capability = compute_capability(gpu)
    if capability is None or capability >= 9:
        return "Hopper"
    return "Ampere" if capability >= 8 else "Volta"


def unknown_gpu(topology: Topology) -> str | None:
    """What is assumed of GPUs whose names do not tell how old they are; None where they do."""
    names = sorted({gpu.name for gpu in topology.machine.of_kind("gpu")})
    unknown = [name for name in names if compute_capability(name) is None]
    if not unknown:
        return None
    return f"compute capability of {', '.join(map(repr, unknown))} not known: NCCL's figures are Hopper's"


def _fast_sockets(topology: Topology) -> str | None:
    """What to say of a network over TCP that is faster than NCCL's sockets were seen to be; else None."""
    network, nics = topology.network, topology.machine.of_kind("nic")
    if network is None or network.bandwidth_bytes_per_s <= SOCKETS_BYTES_PER_S:
        return None
    is_ethernet = any(word in network.kind for word in ("GbE", "Ethernet", "TCP"))
    if not is_ethernet or "RoCE" in network.kind or any(nic.gpudirect for nic in nics):
        return None
    rate = f"{network.bandwidth_bytes_per_s / 1e9:.3g} GB/s of {network.kind}"
    return f"{rate}: over TCP NCCL was seen to move 4 to 6 GB/s a NIC"


def _rates(
    topology: Topology, gpus: Sequence[str], everyone: Sequence[str], nodes: int, *, peer_access: bool
) -> _Rates:
    """Of one group's GPUs on a node, of all groups' there."""
    device, processors = topology.machine.by_id[gpus[0]], topology.machine.of_kind("cpu")
    rates = _Rates(
        gpus=_era(device.name), processors="AMD" if any("AMD" in one.name for one in processors) else "Intel"
    )
    if len(gpus) > 1:
        rings = best_rings(topology, gpus, peer_access=peer_access)
        if rings.kind != "nvlink" and len(everyone) > len(gpus):
            all_rings = best_rings(topology, everyone, peer_access=peer_access)
            rings = min(rings, all_rings, key=lambda found: found.bytes_per_s)
        kind = "nvlink" if rings.kind == "nvlink" else "pcie"
        rates = replace(rates, kind=kind, inside=(rings.bytes_per_s, rings.busiest, rings.note))
    if nodes == 1:
        return rates
    own, shared = (len({topology.machine.nic(gpu) for gpu in group}) for group in (gpus, everyone))
    path = topology.path((0, gpus[0]), (1, gpus[0]), peer_access=peer_access)
    across = min(own, shared * len(gpus) / len(everyone)) * topology.bandwidth_bytes_per_s(path)
    busiest = min(path.resources, key=topology.capacity_bytes_per_s)
    return replace(rates, across=(across, busiest, _fast_sockets(topology)))
