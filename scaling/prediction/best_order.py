"""Which GPUs, in which order of ranks: the best placement of a schedule, and what the worst one costs.

Rank r stands at place r of an order; for a ring that is the ring's order, for a tree its pairing, and with
fewer ranks than GPUs the choice of GPUs. An order is priced by the simulator, without calibration.

1. Where there are at most `EXACT_ORDERS` orders, all of them are priced: the answer is exact.
2. Else, on one node or several: from the given order, its reverse and GPUs of the nodes in turn, two places
   at a time are swapped as long as that helps, at most `MAX_PRICED` orders in all. Best and worst are those
   found: a heuristic, and the answer says so.

NCCL chooses its own order, and MPI's processes are equal: what a library does is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations
from typing import Any

from scaling.collectives.placement import Place
from scaling.collectives.plan import Exchange, simulate_plan
from scaling.prediction.rows import cell_fields
from scaling.prediction.strategy import Strategy
from topologies.errors import TopologyError
from topologies.model import Topology

EXACT_ORDERS = 720
MAX_PRICED = 300

_Priced = tuple[tuple[Place, ...], float]  # where each rank is, and what the exchange takes


def search(strategy: Strategy, topology: Topology) -> dict[str, Any] | None:
    """The best and the worst order; None where no exchange is ours; TopologyError: too few places."""
    world_size = int(strategy.cell["world_size"])
    stages = [stage for stage in strategy.stages if isinstance(stage, Exchange)]
    if world_size < 2 or not stages or any(stage.native or stage.library for stage in stages):
        return None
    cores = sum(device.cores or 1 for device in topology.machine.of_kind("cpu")) * topology.num_nodes
    everywhere = topology.ranks(topology.num_gpus or cores)
    if world_size > len(everywhere):
        raise TopologyError(f"{topology.name}: {world_size} ranks, but {len(everywhere)} places")
    peer = strategy.cell.get("peer_access") is not False
    priced: dict[tuple[Place, ...], float] = {}

    def price(places: Sequence[Place]) -> float:
        key = tuple(places)
        if key not in priced:
            plan = simulate_plan(stages, topology, world_size, peer_access=peer, places=places)
            priced[key] = plan.seconds
        return priced[key]

    exact = math.perm(len(everywhere), world_size) <= EXACT_ORDERS
    if exact:
        for order in permutations(everywhere, world_size):
            price(order)
    else:
        _climb(everywhere, world_size, price, priced)
    best, worst = (pick(priced.items(), key=lambda item: item[1]) for pick in (min, max))
    found = f"exact: all {len(priced)}" if exact else f"heuristic: swaps of two places, {len(priced)}"
    method = f"{found} orders{'' if exact else ' priced'}"
    return _result(strategy, topology, best, worst, method)


def _result(
    strategy: Strategy, topology: Topology, best: _Priced, worst: _Priced, method: str
) -> dict[str, Any]:
    (best_order, best_s), (worst_order, worst_s) = best, worst
    gain = worst_s / best_s if best_s else 1.0
    cell = strategy.cell
    name = f"{cell.get('model_label')}, {cell.get('aggregator_label')}, {cell['world_size']} ranks"
    same = "all orders that were priced take equally long"
    best_ms = f"{best_s * 1e3:.4g} ms"
    differs = f"best {_text(best_order)}: {best_ms}; worst {_text(worst_order)}: {gain:.3g} times as long"
    return {
        "simulated": True,
        **cell_fields(cell),
        "topology": topology.name,
        "search": method,
        "best_order": [list(place) for place in best_order],
        "best_s": best_s,
        "worst_order": [list(place) for place in worst_order],
        "worst_s": worst_s,
        "gain_ratio": gain,
        "text": f"{name}: {same if gain < 1 + 1e-9 else differs} (simulated; {method})",
    }


def _text(places: Sequence[Place]) -> str:
    """`gpu0 gpu2 gpu1`, with the node where there are several."""
    several = len({node for node, _ in places}) > 1
    return " ".join(f"{node}/{device}" if several else device for node, device in places)


def _climb(
    everywhere: Sequence[Place],
    world_size: int,
    price: Callable[[Sequence[Place]], float],
    priced: dict[tuple[Place, ...], float],
) -> None:
    """Fills `priced` from several starts, towards the best and towards the worst."""
    for start in _starts(everywhere, world_size):
        for sign in (1, -1):
            current, value = list(start), sign * price(start)
            improved = True
            while improved and len(priced) < MAX_PRICED:
                improved = False
                for candidate in _swapped(current, everywhere, world_size):
                    if len(priced) >= MAX_PRICED:
                        break
                    new = sign * price(candidate[:world_size])
                    if new < value * (1 - 1e-9 * sign):
                        current, value, improved = candidate[:world_size], new, True
                        break


def _starts(everywhere: Sequence[Place], world_size: int) -> Iterator[list[Place]]:
    yield list(everywhere[:world_size])
    yield list(reversed(everywhere[:world_size]))
    nodes = sorted({node for node, _ in everywhere})
    by_node = [[place for place in everywhere if place[0] == node] for node in nodes]
    in_turn = [place for turn in zip(*by_node, strict=False) for place in turn]
    yield in_turn[:world_size]
    yield [*everywhere[::2], *everywhere[1::2]][:world_size]


def _swapped(current: list[Place], everywhere: Sequence[Place], world_size: int) -> Iterator[list[Place]]:
    """Every order that differs in two places, those that are free included."""
    free = [place for place in everywhere if place not in current]
    whole = [*current, *free]
    for i, j in combinations(range(len(whole)), 2):
        if i < world_size:
            swapped = list(whole)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            yield swapped
