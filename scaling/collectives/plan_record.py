"""The plan of an exchange as a run records it: which node sends how many bytes to which other in one step.

It is summed over the steps of each exchange (`PlannedExchange`), so it has an entry for each pair of nodes
that exchange anything: n for a ring of n ranks, n (n - 1) where all send to all. At most `MOST_PAIRS` are
recorded, which is 128 ranks that all send to all and less than 300 kB of text; of larger plans the reason is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scaling.collectives.mpi_library import process_places
from scaling.collectives.placement import Placement
from scaling.collectives.plan import Exchange
from scaling.collectives.schedule import Schedule
from scaling.errors import ScheduleError
from topologies.model import Topology

MOST_PAIRS = 16_384

Pair = tuple[int, int]  # Source and target: ranks, and from the world size on the host memory of each machine

_RECORDED = ("schedule", "native", "library", "num_steps")
_PAIR = re.compile(r"(h?)(\d{1,7})>(h?)(\d{1,7})")


@dataclass(frozen=True)
class PlannedExchange:
    """What one exchange sends in one training step: pair -> the bytes that its source sends to its target.
    `native`: a library does it in its own way, and the schedule stands for that."""

    schedule: str
    native: bool
    library: str
    num_steps: int
    num_bytes: Mapping[Pair, float]


@dataclass(frozen=True)
class ExchangePlan:
    """The exchanges of one training step on `world_size` ranks, one after the other."""

    world_size: int
    exchanges: tuple[PlannedExchange, ...]

    @property
    def native(self) -> list[PlannedExchange]:
        """Those that a library does in its own way, one of each library and schedule."""
        natives = {(each.library, each.schedule): each for each in self.exchanges if each.native}
        return list(natives.values())

    def sent_bytes(self, rank: int) -> float:
        """What a rank moves, as its group meters it: what it sends, and what it copies from host memory."""
        return sum(
            count
            for exchange in self.exchanges
            for (source, target), count in exchange.num_bytes.items()
            if source == rank or (target == rank and source >= self.world_size)
        )

    def sent_to(self, rank: int) -> dict[str, float]:
        """Node, a rank or as `h0` the host memory of a machine -> the bytes that a rank sends it."""
        sent = defaultdict[str, float](float)
        for exchange in self.exchanges:
            for (source, target), count in exchange.num_bytes.items():
                if source == rank:
                    sent[self._node(target)] += count
        return dict(sent)

    def over_steps(self, num_steps: int) -> ExchangePlan:
        """The mean of a step where one in `num_steps` exchanges."""
        if num_steps == 1:
            return self
        means = (
            replace(each, num_bytes={pair: count / num_steps for pair, count in each.num_bytes.items()})
            for each in self.exchanges
        )
        return ExchangePlan(self.world_size, tuple(means))

    def bytes_per_resource(self, topology: Topology, *, peer_access: bool = True) -> dict[str, float]:
        """The bytes that pass each link (and memory) of the topology, by its name there. TopologyError: the
        topology has fewer ranks or nodes than the plan, or no route."""
        passed = defaultdict[str, float](float)
        for exchange in self.exchanges:
            ranks = topology.ranks(self.world_size)
            if exchange.library in ("mpi", "gloo"):
                ranks = process_places(topology, self.world_size)
            num_hosts = max((max(pair) + 1 for pair in exchange.num_bytes), default=0) - self.world_size
            placement = Placement(topology, ranks, max(num_hosts, 0), peer_access=peer_access)
            for pair, count in exchange.num_bytes.items():
                for name, weight in placement.resources_of_message(*pair).items():
                    passed[name] += weight * count
        return dict(passed)

    def to_record(self) -> list[dict[str, Any]]:
        """For run.json: pairs with as many bytes are listed together, `{"6000": "0>1 1>h0"}`; h0 is host 0.
        ScheduleError: there are more pairs than `MOST_PAIRS`."""
        num_pairs = sum(len(exchange.num_bytes) for exchange in self.exchanges)
        if num_pairs > MOST_PAIRS:
            raise ScheduleError(f"its plan has {num_pairs} pairs of nodes; at most {MOST_PAIRS} are recorded")
        records = []
        for exchange in self.exchanges:
            pairs = defaultdict[str, list[str]](list)
            for (source, target), count in exchange.num_bytes.items():
                pairs[str(round(count))].append(f"{self._node(source)}>{self._node(target)}")
            record = {name: getattr(exchange, name) for name in _RECORDED}
            records.append({**record, "bytes": {count: " ".join(names) for count, names in pairs.items()}})
        return records

    def _node(self, node: int) -> str:
        return str(node) if node < self.world_size else f"h{node - self.world_size}"


def plan_of(exchanges: Iterable[Exchange], world_size: int) -> ExchangePlan:
    """The plan of the exchanges of one training step; those of one schedule and size are summed up."""
    planned: dict[tuple[str, bool, str], PlannedExchange] = {}
    for each in exchanges:
        bounds = [each.bytes_per_element * bound for bound in each.schedule.bounds(each.num_elements)]
        key = each.name or each.schedule.name, each.native, each.library
        first = planned.get(key) or PlannedExchange(each.schedule.name, each.native, each.library, 0, {})
        totals = defaultdict[Pair, float](float, first.num_bytes)
        for pair, count in sent_by_pair(each.schedule, bounds).items():
            totals[pair] += count
        num_steps = first.num_steps + len(each.schedule.steps)
        planned[key] = replace(first, num_steps=num_steps, num_bytes=dict(totals))
    return ExchangePlan(world_size, tuple(planned.values()))


def sent_by_pair(schedule: Schedule, bounds: Sequence[float]) -> dict[Pair, float]:
    """The bytes of each pair of nodes over all steps of a schedule, by the step that uses the pair first.
    `bounds` are `num_chunks` + 1: chunk c is the bytes [bounds[c], bounds[c + 1])."""
    totals: dict[Pair, float] = {}
    for step in schedule.steps:
        for source, target, start, stop, _ in sorted(step):
            if bounds[stop] > bounds[start]:
                pair = (source, target)
                totals[pair] = totals.get(pair, 0.0) + bounds[stop] - bounds[start]
    return totals


def read_plan(record: object, world_size: int) -> ExchangePlan:
    """What `to_record` wrote, checked: results are data. ScheduleError: it is damaged."""
    try:
        return ExchangePlan(world_size, tuple(_read_exchange(dict(each), world_size) for each in record))  # type: ignore[attr-defined]  # checked by reading it
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise ScheduleError(f"`plan` of its run.json is damaged ({error}); measure it again") from None


def _read_exchange(record: Mapping[str, Any], world_size: int) -> PlannedExchange:
    num_bytes: dict[Pair, float] = {}
    for count, names in record["bytes"].items():
        for name in names.split():
            match = _PAIR.fullmatch(name)
            if match is None:
                raise ValueError(f"{name!r} is not a pair of nodes")
            source_host, source, target_host, target = match.groups()
            pair = int(source) + world_size * bool(source_host), int(target) + world_size * bool(target_host)
            num_bytes[pair] = float(int(count))
    schedule, native, library, num_steps = (record[name] for name in _RECORDED)
    return PlannedExchange(str(schedule), bool(native), str(library), int(num_steps), num_bytes)
