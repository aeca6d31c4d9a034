"""The rings that NCCL finds between the GPUs of a node, and the rate that all its channels reach together.

NCCL searches orders of the GPUs, over NVLink alone where such rings exist, and runs several at once, each a
channel with its own share of the links (src/graph/search.cc). Here every order of up to `MOST_SEARCHED` GPUs
is known, and a linear program gives each order the rate at which all of them together move most:

    maximize sum of rate(order)   so that on each link   sum of rate(order) x passes(order, link) <= capacity.

On the cube mesh of a DGX-1 these are three Hamiltonian cycles that share no link, each in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from topologies.model import Topology

MOST_SEARCHED = 8
"""GPUs of which all orders are tried: 5,040."""

NVLINKS = ("nvlink", "xgmi")


@dataclass(frozen=True)
class Rings:
    """Channels of a node.

    Attributes:
        bytes_per_s: that leave each GPU, over all channels.
        busiest: a resource that bounds it.
        orders: of the GPUs, by their place in the list, with the rate of each.
        kind: "nvlink" where no other link is used, "host" where some pair stops in host memory, else "pcie".
        note: what was not searched; None if nothing.
    """

    bytes_per_s: float
    busiest: str
    orders: tuple[tuple[tuple[int, ...], float], ...]
    kind: str
    note: str | None = None


def best_rings(topology: Topology, gpus: Sequence[str], *, peer_access: bool) -> Rings:
    """Of the GPUs of one node, two or more.

    Raises:
        TopologyError: there is no path between two of them.
    """
    key = (tuple(gpus), peer_access)
    if key not in topology.rings:
        topology.rings[key] = _search(_Pairs(topology, gpus, peer_access=peer_access))
    found: Rings = topology.rings[key]
    return found


class _Pairs:
    """What a byte from each GPU to each other passes.

    Attributes:
        names, capacity: of the resources.
        passes: [from, to, resource], how often.
        nvlink, staged: [from, to], whether over NVLink alone, or through host memory.
        num_gpus: in all.
    """

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
    by_rank = _rings(pairs, in_turn, np.array([_alone(pairs, loads[0])]))
    if pairs.num_gpus == 2 or by_rank.bytes_per_s >= 0.999 * pairs.most(nvlink=is_nvlink):
        return by_rank
    if pairs.num_gpus > MOST_SEARCHED:
        note = f"NCCL's rings in the order of ranks: not searched among more than {MOST_SEARCHED} GPUs"
        return Rings(by_rank.bytes_per_s, by_rank.busiest, by_rank.orders, by_rank.kind, note)
    orders = np.array([(0, *rest) for rest in permutations(range(1, pairs.num_gpus))])
    over_nvlink = orders[pairs.all_nvlink(orders)]
    return _together(pairs, over_nvlink if len(over_nvlink) else orders)


def _alone(pairs: _Pairs, load: NDArray[np.float64]) -> float:
    used = load > 0
    return float((pairs.capacity[used] / load[used]).min())


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
