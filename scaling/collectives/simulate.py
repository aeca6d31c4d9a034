"""Prices a schedule on a topology: what each step takes, which resource is busiest, who sent what when.

A rank is a GPU of the topology, or a core and its memory where it has no GPU; host h is node h's memory. A
step's messages and sums are activities that share links, host memory and cores max-min fair, shared anew
whenever one ends (`scaling.collectives.fair_sharing`). The step ends with the slowest, and the next begins
then.

1. All transfers between the same two nodes are one message: its latency, then its bytes flow. Chunks without
   elements are not sent.
2. An add is summed at its target when its message has arrived; a transfer is one thread's work, however many
   chunks it has. At a rank, on a GPU or on one core, sums follow one another in the listed order. In host
   memory those into the same chunk do; others run at the same time, one core each.
3. The first add into empty host memory is a copy (`verify`): it costs nothing after its arrival, and those
   after it wait for it.

Steps that are the same are priced once: those of one kind where the schedule says so (`LazySteps`) and its
chunks are equal, so that such steps are not even made; and steps that turn out to have the same messages and
sums in the same order. Of the 1,036 steps of the hierarchical all-reduce of 4,096 GPUs on 512 machines four
are priced. Inside one step routes are found once for a pair of devices (`scaling.collectives.placement`), and
messages that get the same share end in the same event.

Left out: the cost of starting a kernel, what a transfer takes of the memory of a GPU, and steps that run into
one another. A schedule is not checked here: `verify` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from scaling.collectives.fair_sharing import Activities, ActivityTimes, Floats, Ints, Uses, ranges, run
from scaling.collectives.placement import Place, Placement, Resources
from scaling.collectives.schedule import Columns, Schedule, ScheduleStep
from scaling.errors import ScheduleError
from topologies.errors import TopologyError
from topologies.model import Topology


class Event(NamedTuple):
    """A message, or a sum at `target` of what came from `source`; nodes as the schedule numbers them."""

    step: int
    kind: Literal["transfer", "reduce"]
    source: int
    target: int
    start_s: float
    end_s: float
    num_bytes: float


@dataclass(frozen=True)
class Moves:
    """Messages or sums, one entry each."""

    source: Ints
    target: Ints
    num_bytes: Floats

    def events(self, kind: Literal["transfer", "reduce"], times: ActivityTimes) -> Iterator[Event]:
        """One event for each that has bytes, within a step 0 that begins at 0."""
        columns = (self.source, self.target, times.start_s, times.end_s, self.num_bytes)
        for source, target, start_s, end_s, num_bytes in zip(*(c.tolist() for c in columns), strict=True):
            if num_bytes:
                yield Event(0, kind, source, target, start_s, end_s, num_bytes)


@dataclass(frozen=True)
class StepPrice:
    """What a step takes, from its begin to the end of its slowest activity. `arrived_s`: when its last
    message has arrived; `used`: the resources that it used, by number; `bytes_passed`: over each of them."""

    seconds: float
    arrived_s: float
    used: Ints
    bytes_passed: Floats
    messages: Moves
    message_times: ActivityTimes
    sums: Moves
    sum_times: ActivityTimes

    def events(self) -> list[Event]:
        """Its messages and sums in the order in which they start; times within the step."""
        messages = self.messages.events("transfer", self.message_times)
        sums = self.sums.events("reduce", self.sum_times)
        return sorted([*messages, *sums], key=lambda event: (event.start_s, event.end_s))


@dataclass(frozen=True)
class StepWork:
    """A step as activities: messages and then sums are numbered from 0. `sum_message`: of each sum, the
    message that brings it; `sum_after`: pairs (later, earlier) of sums that follow one another."""

    messages: Moves
    sums: Moves
    sum_message: Ints
    sum_after: tuple[Ints, Ints]

    def key(self) -> tuple[bytes, ...]:
        """Equal for steps that take equally long."""
        columns = [*vars(self.messages).values(), *vars(self.sums).values(), self.sum_message]
        return tuple(column.tobytes() for column in [*columns, *self.sum_after])


MAX_HOST_SUMS = 400_000
"""Sums into host memory of one step that are priced: those of a piece wait for one another."""
MAX_MESSAGES = 400_000  # of one step that are priced: more take ten seconds


class StepReader:
    """Reads the steps of a schedule in order, and knows which host memory is still empty."""

    def __init__(self, schedule: Schedule, placement: Placement, num_bytes: float) -> None:
        self._schedule = schedule
        self._placement = placement
        sizes = schedule.chunk_elements or (1,) * schedule.num_chunks
        self._elements_before = np.cumsum([0, *sizes])
        self._element_bytes = num_bytes / max(int(self._elements_before[-1]), 1)
        self._filled = np.zeros(schedule.num_hosts * schedule.num_chunks, dtype=bool)

    def read(self, step: ScheduleStep) -> StepWork:
        moves = Columns.of(step)
        sent = self._elements_before[moves.stop] > self._elements_before[moves.start]
        sources, targets, starts, stops = (
            column[sent] for column in (moves.source, moves.target, moves.start, moves.stop)
        )
        is_add = moves.is_add[sent]
        in_hosts = int((is_add & (targets >= self._schedule.world_size)).sum())
        if in_hosts > MAX_HOST_SUMS:
            raise ScheduleError(
                f"{self._schedule.name} of {self._schedule.world_size} ranks: {in_hosts} sums into host "
                f"memory in one step; up to {MAX_HOST_SUMS} are priced, more take minutes: ask for fewer"
            )
        elements = self._elements_before[stops] - self._elements_before[starts]
        pairs, message = np.unique(sources * self._schedule.num_nodes + targets, return_inverse=True)
        if len(pairs) > MAX_MESSAGES:
            raise ScheduleError(
                f"{self._schedule.name} of {self._schedule.world_size} ranks: {len(pairs)} messages in one "
                f"step; up to {MAX_MESSAGES} are priced: ask for fewer"
            )
        messages = Moves(
            pairs // self._schedule.num_nodes,
            pairs % self._schedule.num_nodes,
            self._element_bytes * np.bincount(message, elements).astype(np.float64),
        )
        adds = np.flatnonzero(is_add)
        self._check_hosts(sources[adds], targets[adds])
        lanes, lane_of = self._lanes(targets[adds], starts[adds], stops[adds])
        after, is_first = _one_after_the_other(lanes, lane_of)
        elements[adds] -= self._copied(lanes, lane_of, is_first, len(adds))
        in_host = targets >= self._schedule.world_size
        first = (targets[in_host] - self._schedule.world_size) * self._schedule.num_chunks
        self._filled[ranges(first + starts[in_host], first + stops[in_host])] = True
        sums = Moves(sources[adds], targets[adds], elements[adds] * self._element_bytes)
        return StepWork(messages, sums, message[adds], after)

    def _check_hosts(self, sources: Ints, targets: Ints) -> None:
        """With several hosts, each rank has to be on the node of the host that it adds to."""
        node, num_ranks = self._placement.node, self._schedule.world_size
        wrong = (sources < num_ranks) & (targets >= num_ranks) & (node[sources] != node[targets])
        if self._schedule.num_hosts > 1 and wrong.any():
            rank, host = int(sources[wrong][0]), int(targets[wrong][0]) - num_ranks
            raise TopologyError(
                f"{self._schedule.name}: rank {rank} adds into host {host}, the memory of node {host}, but "
                f"is on node {node[rank]}; give each host as many ranks as a node has, or give the places"
            )

    def _lanes(self, targets: Ints, starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
        """What makes adds follow one another: pairs (lane, add), a rank or one chunk in host memory."""
        num_ranks = self._schedule.world_size
        in_host = targets >= num_ranks
        first = num_ranks + (targets - num_ranks) * self._schedule.num_chunks  # that of the host's chunk 0
        starts, stops = np.where(in_host, [first + starts, first + stops], [targets, targets + 1])
        return ranges(starts, stops), np.repeat(np.arange(len(targets)), stops - starts)

    def _copied(self, lanes: Ints, lane_of: Ints, is_first: Ints, num_adds: int) -> Ints:
        """The elements of each add that go into empty host memory."""
        places = lanes - self._schedule.world_size
        copies = np.flatnonzero(is_first & (places >= 0))
        copies = copies[~self._filled[places[copies]]]
        chunks = places[copies] % self._schedule.num_chunks
        sizes = np.diff(self._elements_before)[chunks]
        return np.bincount(lane_of[copies], sizes, minlength=num_adds).astype(np.int64)


def _one_after_the_other(lanes: Ints, lane_of: Ints) -> tuple[tuple[Ints, Ints], Ints]:
    """Pairs (later, earlier) of neighbours in a lane, each once; and which entry is the first of its lane."""
    order = np.argsort(lanes, kind="stable")
    same = np.diff(lanes[order]) == 0
    is_first = np.ones(len(lanes), dtype=bool)
    is_first[order[1:][same]] = False
    later, earlier = lane_of[order[1:][same]], lane_of[order[:-1][same]]
    width = int(lane_of.max(initial=0)) + 1
    pairs = np.unique(later * width + earlier)
    return (pairs // width, pairs % width), is_first


def price(work: StepWork, placement: Placement) -> StepPrice:
    """Runs the step's activities."""
    num_first = len(work.messages.source)
    latency_s, of_messages = placement.messages(work.messages.source, work.messages.target)
    sum_rate, shared, rank_uses = placement.sums(work.sums.target)
    shared, rank_uses = (
        Uses(uses.activity + num_first, uses.resource, uses.weight) for uses in (shared, rank_uses)
    )
    later, earlier = work.sum_after
    all_work = np.concatenate([work.messages.num_bytes, work.sums.num_bytes])
    activities = Activities(
        delay_s=np.concatenate([latency_s, np.zeros(len(sum_rate))]),
        work=all_work,
        highest_rate=np.concatenate([np.full(num_first, np.inf), sum_rate]),
        uses=Uses.joined(of_messages, shared),
        follows=(
            np.concatenate([num_first + np.arange(len(sum_rate)), num_first + later]),
            np.concatenate([work.sum_message, num_first + earlier]),
        ),
    )
    times = run(activities, placement.resources.capacity_bytes_per_s)
    uses = Uses.joined(activities.uses, rank_uses)
    used, position = np.unique(uses.resource, return_inverse=True)
    return StepPrice(
        seconds=float(times.end_s.max(initial=0.0)),
        arrived_s=float(times.end_s[:num_first].max(initial=0.0)),
        used=used,
        bytes_passed=Uses(uses.activity, position, uses.weight).units(all_work, len(used)),
        messages=work.messages,
        message_times=ActivityTimes(times.start_s[:num_first], times.end_s[:num_first]),
        sums=work.sums,
        sum_times=ActivityTimes(times.start_s[num_first:], times.end_s[num_first:]),
    )


@dataclass(frozen=True)
class Simulation:
    """What a schedule takes. `name`: the schedule's, its ranks and the topology's, for people; `prices`:
    those of the steps that were priced; `price_of_step`: of each step, its entry in `prices`."""

    name: str
    num_bytes: float
    prices: tuple[StepPrice, ...] = field(repr=False)
    price_of_step: tuple[int, ...] = field(repr=False)
    resources: Resources = field(repr=False)

    @cached_property
    def step_seconds(self) -> list[float]:
        return [self.prices[i].seconds for i in self.price_of_step]

    @cached_property
    def seconds(self) -> float:
        return sum(self.step_seconds)

    @property
    def reduce_seconds(self) -> float:
        """Of these, what passes in each step after its last message has arrived."""
        return sum(self.prices[i].seconds - self.prices[i].arrived_s for i in self.price_of_step)

    @cached_property
    def bytes_per_resource(self) -> dict[str, float]:
        """The bytes that passed each resource, of those that were used."""
        passed = self._passed
        return {self.resources.name(i): float(passed[i]) for i in np.flatnonzero(passed).tolist()}

    @property
    def busiest_resource(self) -> str | None:
        """The resource that is busy longest; None if nothing moved."""
        busy_s = self._busy_s
        return self.resources.name(int(busy_s.argmax())) if busy_s.any() else None

    @property
    def utilisation_ratio(self) -> float:
        """The busiest resource's time at its full capacity over all the time; 0 if nothing moved."""
        return float(self._busy_s.max(initial=0.0)) / self.seconds if self.seconds else 0.0

    @cached_property
    def _passed(self) -> Floats:
        passed = np.zeros(len(self.resources.capacity_bytes_per_s))
        times = np.bincount(np.array(self.price_of_step, dtype=np.int64), minlength=len(self.prices))
        for count, step in zip(times.tolist(), self.prices, strict=True):
            passed[step.used] += count * step.bytes_passed
        return passed

    @property
    def _busy_s(self) -> Floats:
        return self._passed / self.resources.capacity_bytes_per_s

    def timeline(self) -> Iterator[Event]:
        """Every message and sum, made when it is read: a large world has millions."""
        begin_s = 0.0
        for step, i in enumerate(self.price_of_step):
            for event in self.prices[i].events():
                yield event._replace(step=step, start_s=begin_s + event.start_s, end_s=begin_s + event.end_s)
            begin_s += self.prices[i].seconds


def simulate(
    schedule: Schedule,
    topology: Topology,
    num_bytes: float,
    *,
    peer_access: bool = True,
    places: Sequence[Place] | None = None,
) -> Simulation:
    """Prices `schedule`, a correct one, on a topology. `num_bytes`: of the buffer; a chunk is its equal part,
    or what `chunk_elements` says. `peer_access`: False forbids direct access between GPUs (host-only).
    `places`: (node, device id) of each rank; None takes `topology.ranks`. TopologyError: the topology has not
    what the schedule needs. ScheduleError: `places` are not as many as ranks, or a count is negative."""
    if num_bytes < 0:
        raise ScheduleError(f"{schedule.name}: {num_bytes} bytes; allowed are 0 and more")
    ranks = topology.ranks(schedule.world_size) if places is None else places
    if len(ranks) != schedule.world_size:
        raise ScheduleError(f"{schedule.name}: {len(ranks)} places for {schedule.world_size} ranks")
    placement = Placement(topology, ranks, schedule.num_hosts, peer_access=peer_access)
    reader = StepReader(schedule, placement, num_bytes)
    prices, price_of_step = _price_steps(schedule, reader, lambda work: price(work, placement))
    name = f"{schedule.name}, {schedule.world_size} ranks on {topology.name}"
    return Simulation(name, num_bytes, tuple(prices), tuple(price_of_step), placement.resources)


def _price_steps(
    schedule: Schedule, reader: StepReader, price_of: Callable[[StepWork], StepPrice]
) -> tuple[list[StepPrice], list[int]]:
    """The different prices, and which is each step's."""
    prices: list[StepPrice] = []
    by_kind: dict[Hashable, int] = {}
    by_work: dict[Hashable, int] = {}
    price_of_step = []
    # Steps of one kind cost the same, but most kinds say nothing of unequal chunks, nor of host memory that
    # is empty in one step only.
    alike = not schedule.num_hosts or getattr(schedule.steps, "hosts_are_alike", False)
    by_the_kind = alike and schedule.chunk_elements is None
    for index in range(len(schedule.steps)):
        kind: Hashable = schedule.kind(index) if by_the_kind else index
        if kind not in by_kind:
            work = reader.read(schedule.steps[index])
            by_kind[kind] = by_work.setdefault(work.key(), len(prices))
            if by_kind[kind] == len(prices):
                prices.append(price_of(work))
        price_of_step.append(by_kind[kind])
    return prices, price_of_step
