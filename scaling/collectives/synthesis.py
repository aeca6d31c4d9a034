"""All-reduces made for the links of one machine: spanning trees, one or several a rank, packed step by step.

1. The buffer is cut into k chunks a rank. In the all-gather, each chunk goes from its rank to all others over
   a spanning tree; in the reduce-scatter before it, up a tree of the reversed links.
2. The trees grow together, in steps. In a step a resource passes as many chunks as it can while the step's
   slowest does one (or m, in fewer and longer steps). Pair by pair, the most wanted links first, then in the
   order of a ring or at random, a rank gets the chunk that fewest ranks have. A link never brings what a rank
   already has to which there is a less wanted one.
3. Several k, m, speeds of a step and orders are tried. All are proven, and priced by the simulator beside
   every built-in schedule between ranks; the fastest is the result. If that is a built-in one, it is said.
4. `link_bound` says what no packing of trees can beat.

Large buffers take small m, which keep every link busy; small ones large m, which take few steps.

References: W. Won, M. Elavazhagan, S. Srinivasan, S. Gupta, T. Krishna, "TACOS: topology-aware collective
algorithm synthesizer for distributed machine learning", arXiv 2304.05301 (2023), for matching chunks with
links step by step; ForestColl, arXiv 2402.06787 (2024), for the trees of a reduce-scatter as those of an
all-gather reversed. Ours has routes that share links and host memory, and no tree is searched for exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from scaling.collectives.composition import mirrored
from scaling.collectives.fair_sharing import Floats
from scaling.collectives.link_bound import Bound, PairLinks, all_reduce_bound
from scaling.collectives.listing import COLLECTIVES
from scaling.collectives.schedule import Columns, Schedule, ScheduleStep, Transfer
from scaling.collectives.simulate import Simulation, simulate
from scaling.collectives.verify import verify
from topologies.model import Topology

NAME = "synthesized"
CHUNKS_PER_RANK = (1, 2, 4, 8)
MULTIPLES = (1, 2, 3, 4, 8)
SEEDS = (None, 1, 2)  # of the order of pairs: None is that of a ring
MAX_PACKED = 100_000  # Chunks that are handed on, over all that is tried: some seconds
BOUND_TOLERANCE = 1e-4
TO_COMPARE = ("ring", "tree", "stripes")


@dataclass(frozen=True)
class Synthesis:
    """The fastest schedule that was found."""

    schedule: Schedule
    family: str  # what it is, in words
    is_built_in: bool  # whether it is one of `COLLECTIVES`
    simulation: Simulation
    link_s: float  # what its messages take if only the links count, step by step
    bound: Bound  # of the machine, for each byte
    built_in_s: dict[str, float]  # of every built-in schedule between ranks
    num_tried: int  # packings

    @property
    def bound_s(self) -> float:
        """What no trees can beat; without latency and sums."""
        return self.bound.s_per_byte * self.simulation.num_bytes

    @property
    def meets_bound(self) -> bool:
        """Whether its messages take no longer than the bound."""
        return self.link_s <= self.bound_s * (1 + BOUND_TOLERANCE)


def synthesize(topology: Topology, world_size: int, num_bytes: int) -> Synthesis:
    """The fastest all-reduce of a buffer that is found for the first `world_size` GPUs (or cores).
    TopologyError: there are fewer."""
    places = topology.ranks(world_size)
    links = PairLinks.of(topology, places)
    built_in = dict(_built_in(world_size))
    built_in_s = {name: simulate(made, topology, num_bytes).seconds for name, made in built_in.items()}
    name, best_s = min(built_in_s.items(), key=lambda item: item[1])
    best, family, num_tried = built_in[name], f"the built-in {name}", 0
    for packed, words in packings(links):
        verify(packed)
        num_tried += 1
        seconds = simulate(packed, topology, num_bytes).seconds
        if seconds < best_s * (1 - 1e-9) or (best.name != NAME and seconds <= best_s * (1 + 1e-9)):
            best, family, best_s = packed, words, seconds
    return Synthesis(
        best,
        family,
        best.name != NAME,
        simulate(best, topology, num_bytes, places=places),
        link_seconds(best, links, num_bytes),
        all_reduce_bound(links),
        built_in_s,
        num_tried,
    )


def _built_in(world_size: int) -> Iterator[tuple[str, Schedule]]:
    """Those between ranks alone, of equal chunks."""
    for name, entry in COLLECTIVES.items():
        made = entry.schedule(world_size)
        if not made.num_hosts and made.chunk_elements is None:
            yield name, made


def packings(links: PairLinks) -> Iterator[tuple[Schedule, str]]:
    """All-reduces with what they are, in words; the fewer the more ranks there are."""
    n, packed = links.world_size, 0
    speeds = np.unique(links.pair_seconds.round(15)).tolist()
    seen = set()
    for seed, multiple, per_rank, speed in product(SEEDS, (*MULTIPLES, n - 1), CHUNKS_PER_RANK, speeds):
        room = np.floor(links.capacity * speed * multiple * (1 + 1e-6))
        key = (seed, per_rank, room.clip(max=n * n * per_rank).tobytes())
        work = 2 * n * (n - 1) * per_rank
        if key in seen or packed + work > MAX_PACKED or not _reaches_all(links, room):
            continue
        seen.add(key)
        packed += work
        gather = _gather_steps(links, per_rank, room, seed)
        scatter = gather if links.is_symmetric else _gather_steps(links.reversed(), per_rank, room, seed)
        steps = [tuple(t._replace(operation="add") for t in step) for step in mirrored(scatter)] + gather
        columns = tuple(Columns.of(step) for step in steps)
        words = (
            f"{per_rank * n} spanning trees, {per_rank} a rank; steps of {multiple} "
            f"chunk{'s' if multiple > 1 else ''} at {1 / speed / 1e9:.4g} GB/s"
        )
        yield Schedule(NAME, n, n * per_rank, columns), words


def _reaches_all(links: PairLinks, room: Floats) -> bool:
    """Whether pairs that fit into a step connect all ranks."""
    usable = links.slowest(np.maximum(room, 1e-9)) <= 1
    near = np.eye(links.world_size, dtype=bool)
    near[links.source[usable], links.target[usable]] = True
    for _ in range(links.world_size.bit_length()):
        near = near @ near
    return bool(near.all())


def _gather_steps(links: PairLinks, per_rank: int, room: Floats, seed: int | None) -> list[ScheduleStep]:
    """The all-gather: rank r begins with the chunks from r `per_rank` on."""
    pairs = _usable_pairs(links, room, seed)
    least = dict[int, float]()  # of the weights with which a resource is used
    for pair in pairs:
        for resource, weight in pair.uses:
            least[resource] = min(weight, least.get(resource, weight))
    n = links.world_size
    everything = (1 << n * per_rank) - 1
    has = [((1 << per_rank) - 1) << rank * per_rank for rank in range(n)]
    holders = [1] * (n * per_rank)
    rarities = [0, everything, *[0] * n]  # masks of the chunks that so many ranks have
    steps: list[ScheduleStep] = []
    while any(held != everything for held in has):
        room_left, coming, moves, full = room.tolist(), list(has), list[Transfer](), 0
        active = pairs
        while active:
            still = []
            for pair in active:
                source, target, uses, nearer, mask = pair
                if mask & full:
                    continue
                wanted = has[source] & ~coming[target]
                for near in nearer:
                    wanted &= ~coming[near]
                if not wanted or any(weight > room_left[resource] for resource, weight in uses):
                    continue
                rarest = next(filter(None, (wanted & of_rarity for of_rarity in rarities)))
                chunk = (rarest & -rarest).bit_length() - 1
                for resource, weight in uses:
                    room_left[resource] -= weight
                    full |= (room_left[resource] < least[resource]) << resource
                coming[target] |= 1 << chunk
                rarities[holders[chunk]] ^= 1 << chunk
                holders[chunk] += 1
                rarities[holders[chunk]] ^= 1 << chunk
                moves.append(Transfer(source, target, chunk, chunk + 1, "copy"))
                still.append(pair)
            active = still
        has = coming
        steps.append(tuple(moves))
    return steps


class _Pair(NamedTuple):
    """Two ranks with a link: what a chunk uses of each resource, and where the target gets it faster from."""

    source: int
    target: int
    uses: list[tuple[int, float]]
    nearer: list[int]
    mask: int  # of the resources


def _usable_pairs(links: PairLinks, room: Floats, seed: int | None) -> list[_Pair]:
    """Those over which a chunk fits into a step, in the order in which they are tried."""
    distance = (links.target - links.source) % links.world_size
    if seed is not None:
        distance = np.random.default_rng(seed).permutation(len(distance))
    seconds, columns = links.shared_seconds, links.uses.tocsc()
    pairs = []
    for number in np.lexsort((links.source, distance, -seconds.round(15))).tolist():
        begin, end = columns.indptr[number], columns.indptr[number + 1]
        resources = columns.indices[begin:end].tolist()
        uses = list(zip(resources, columns.data[begin:end].tolist(), strict=True))
        if all(weight <= room[resource] for resource, weight in uses):
            mask = sum(1 << resource for resource in resources)
            ends = int(links.source[number]), int(links.target[number])
            faster = (links.target == ends[1]) & (seconds < seconds[number] * (1 - 1e-6))
            pairs.append(_Pair(*ends, uses, [int(rank) for rank in links.source[faster]], mask))
    usable = {(pair.source, pair.target) for pair in pairs}  # nobody waits for a link that is too slow
    return [
        pair._replace(nearer=[near for near in pair.nearer if (near, pair.target) in usable])
        for pair in pairs
    ]


def link_seconds(schedule: Schedule, links: PairLinks, num_bytes: float) -> float:
    """What the messages take if only the links count: in each step, the busiest resource's time."""
    n = links.world_size
    number = np.full(n * n, -1)
    number[links.source * n + links.target] = np.arange(len(links.source))
    total = 0.0
    for step in schedule.steps:
        moves = Columns.of(step)
        passed = np.bincount(
            number[moves.source * n + moves.target], moves.stop - moves.start, minlength=len(links.source)
        )
        total += float((links.uses @ passed / links.capacity).max()) if len(moves) else 0.0
    return total * num_bytes / schedule.num_chunks
