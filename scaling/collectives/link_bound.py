"""The least time in which the links of a machine let trees sum a buffer and spread it, whatever their steps.

Every part of the buffer is summed up a spanning tree and spread down another one from the same root; both may
be under way at once. With g(i, j) and f(i, j) bytes from rank i to rank j for the way up and down, along the
one route that the topology has for the pair, x(r) of the buffer with root r, and time T:

1. A resource (a direction of a link, a shared link, host memory) passes at most its bandwidth times T.
2. For every set of ranks, f out of it and g into it are each at least x of the set; all x together are 1.

The least T of this linear program is exact: by Edmonds' theorem on disjoint branchings, what keeps 2. can be
cut into spanning trees with these roots that together are not more than f, or g. There are too many sets for
2., so a set is added where a maximum flow shows that it is broken, until none is. Each program on the way is
a relaxation, so that its T is a bound too, only a lower one. Latency and sums come on top.

A reduce-scatter and an all-gather are such trees, one phase after the other; on machines of equal ranks they
reach the bound.

References: J. Edmonds, "Edge-disjoint branchings", Combinatorial Algorithms (1973); L. Zhao, S. Maleki, A.
Shah, Z. Yang, H. Pourreza, A. Krishnamurthy, "ForestColl: throughput-optimal collective communications on
heterogeneous network fabrics", arXiv 2402.06787 (2024), which has the bound of an all-gather as a maximum
over cuts, found by maximum flows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack, vstack
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from scaling.collectives.fair_sharing import Floats, Ints
from scaling.collectives.placement import Place, Placement
from scaling.errors import ScheduleError
from topologies.model import Topology

FLOW_UNITS = 100_000_000  # the buffer in the maximum flows, which take whole numbers
FLOW_TOLERANCE = 1e-5
MAX_BOUND_S = 2.5  # After that long the bound so far is given: where there are many ranks, it is found early


@dataclass(frozen=True)
class PairLinks:
    """What a byte from rank to rank uses, for every pair. `uses`: [num_resources, num_pairs] how often a byte
    passes a resource; `capacity`: [num_resources] bytes/s; `back`: uses of the reversed pairs."""

    world_size: int
    source: Ints
    target: Ints
    uses: csr_array
    capacity: Floats
    back: csr_array

    @classmethod
    def of(cls, topology: Topology, places: Sequence[Place]) -> PairLinks:
        """Those of ranks at these places."""
        n = len(places)
        source, target = np.nonzero(~np.eye(n, dtype=bool))
        placement = Placement(topology, places)
        _, uses = placement.messages(source, target)
        used, resource = np.unique(uses.resource, return_inverse=True)
        shape = (len(used), len(source))
        matrix = csr_array((uses.weight, (resource, uses.activity)), shape=shape)
        reverse = np.argsort(target * n + source, kind="stable")  # pairs are ordered by source, then target
        capacity = placement.resources.capacity_bytes_per_s[used]
        return cls(n, source, target, matrix, capacity, csr_array(matrix[:, reverse]))

    def reversed(self) -> PairLinks:
        """With the routes of the opposite directions."""
        return replace(self, uses=self.back, back=self.uses)

    @property
    def is_symmetric(self) -> bool:
        """Whether both directions of every pair take equally long, alone."""
        return np.allclose(self.pair_seconds, self.reversed().pair_seconds)

    @property
    def pair_seconds(self) -> Floats:
        """[num_pairs] of a byte that is alone on its way."""
        return self.slowest(self.capacity)

    @property
    def shared_seconds(self) -> Floats:
        """[num_pairs] of a byte where all pairs send one at the same time, in its busiest resource."""
        times = self.uses.multiply(self.uses.sum(axis=1)[:, None] / self.capacity[:, None])
        return np.asarray(csr_array(times).max(axis=0).todense(), dtype=np.float64).ravel()

    def slowest(self, capacity: Floats) -> Floats:
        """[num_pairs] of a byte in the resource that is slowest, of these capacities."""
        each = csr_array(self.uses.multiply(1 / capacity[:, None])).max(axis=0)
        return np.asarray(each.todense(), dtype=np.float64).ravel()


@dataclass(frozen=True)
class Bound:
    """Of an all-reduce over trees. `is_exact`: whether trees exist that reach it; else none can be faster,
    and perhaps none so fast."""

    s_per_byte: float
    is_exact: bool


def all_reduce_bound(links: PairLinks) -> Bound:
    """That of trees between these ranks."""
    n, num_pairs = links.world_size, len(links.source)
    if n < 2:
        return Bound(0.0, True)
    unit = float(links.capacity.max())
    column = csr_array(-(links.capacity / unit)[:, None])
    # Unknown: f of every pair, g of every pair reversed, x of every rank, T.
    passed = hstack([links.uses, links.back, csr_array((len(links.capacity), n)), column], format="csr")
    cuts = (_Cuts(links), _Cuts(links))
    for members in _first_sets(links):
        for phase in cuts:
            phase.add(members)
    cost = np.append(np.zeros(2 * num_pairs + n), 1.0)
    whole: Any = csr_array(np.append(np.zeros(2 * num_pairs), np.append(np.ones(n), 0.0))[None, :])
    end_s = time.monotonic() + MAX_BOUND_S
    while True:
        sets = [phase.rows(2 * num_pairs, at * num_pairs) for at, phase in enumerate(cuts)]
        rows: Any = vstack([passed, *sets])  # linprog takes sparse ones, its annotation does not
        at_most, equal = np.zeros(rows.shape[0]), np.ones(1)
        solution = linprog(cost, rows, at_most, whole, equal, bounds=(0, None), method="highs")
        if solution.x is None:
            raise ScheduleError(f"the bound of {n} ranks cannot be computed: {solution.message}")
        roots, s_per_byte = solution.x[2 * num_pairs : -1], float(solution.x[-1]) / unit
        flows = (solution.x[:num_pairs], solution.x[num_pairs : 2 * num_pairs])
        added = [
            phase.add(members)
            for phase, flow in zip(cuts, flows, strict=True)
            for members in _broken(links, flow, roots)
        ]
        if not any(added):
            return Bound(s_per_byte, True)
        if time.monotonic() > end_s:
            return Bound(s_per_byte, False)


class _Cuts:
    """Sets of ranks, each once, and the pairs that leave them."""

    def __init__(self, links: PairLinks) -> None:
        self._links, self._seen, self._members = links, set[bytes](), list[NDArray[np.bool_]]()

    def add(self, members: NDArray[np.bool_]) -> bool:
        """Whether the set is new, and neither empty nor all."""
        key = members.tobytes()
        if key in self._seen or members.all() or not members.any():
            return False
        self._seen.add(key)
        self._members.append(members)
        return True

    def rows(self, num_flows: int, first: int) -> csr_array:
        """[num_sets, unknowns] what the roots in a set have less what leaves it, at most 0."""
        sets = np.array(self._members)
        leaving = sets[:, self._links.source] & ~sets[:, self._links.target]
        before, after = (
            csr_array((len(sets), width)) for width in (first, num_flows - first - leaving.shape[1])
        )
        parts = [before, csr_array(-leaving.astype(np.float64)), after, csr_array(sets.astype(np.float64))]
        return csr_array(hstack([*parts, csr_array((len(sets), 1))]))


def _first_sets(links: PairLinks) -> Iterator[NDArray[np.bool_]]:
    """Each rank and all but it; ranks that are near one another, and all but these."""
    yield from np.eye(links.world_size, dtype=bool)
    yield from ~np.eye(links.world_size, dtype=bool)
    for members in clusters(links):
        yield members
        yield ~members


def clusters(links: PairLinks) -> list[NDArray[np.bool_]]:
    """[world_size] masks of the ranks that are joined by the fastest pairs, the next fastest, ..."""
    seconds = np.full((links.world_size, links.world_size), np.inf)
    seconds[links.source, links.target] = links.pair_seconds
    seconds = np.maximum(seconds, seconds.T)
    masks: dict[bytes, NDArray[np.bool_]] = {}
    for limit in np.unique(seconds[np.isfinite(seconds)].round(15)):
        near = (seconds <= limit * (1 + 1e-6)) | np.eye(links.world_size, dtype=bool)
        for _ in range(links.world_size.bit_length()):
            near = near @ near
        masks |= {row.tobytes(): row for row in near}
    return list(masks.values())


def _broken(links: PairLinks, flow: Floats, roots: Floats) -> Iterator[NDArray[np.bool_]]:
    """Sets that too little leaves: one at most for each rank that something does not reach."""
    n = links.world_size
    capacity = np.zeros((n + 1, n + 1), dtype=np.int32)  # node n has what the roots have
    capacity[links.source, links.target] = np.rint(np.minimum(flow, 1.0) * FLOW_UNITS)  # no cut needs more
    capacity[n, :n] = np.rint(roots * FLOW_UNITS)
    graph = csr_array(capacity)
    for rank in range(n):
        reached = maximum_flow(graph, n, rank)
        if reached.flow_value < FLOW_UNITS * (1 - FLOW_TOLERANCE):
            residual = csr_array(np.asarray(capacity - reached.flow.toarray() > 0, dtype=np.int8))
            members = np.zeros(n + 1, dtype=bool)
            members[breadth_first_order(residual, n, return_predecessors=False)] = True
            yield members[:n]
