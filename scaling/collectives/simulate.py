"""Prices a schedule on a topology: what each step takes, which resource is busiest, who sent what when.

1. A rank is a GPU of the topology, or a core and its memory where it has no GPU; host h is node h's memory.
2. Each step's messages and sums are activities (step_pricing.py) that share links, host memory and cores
   max-min fair, shared anew whenever one ends (fair_sharing.py). The step ends with the slowest.
3. The next step begins then; the time of the collective is the sum.

Steps that are the same are priced once. Which are: those of one kind where the schedule says so (`LazySteps`)
and its chunks are equal, so that such steps are not even made; besides these, steps that turn out to have the
same messages and sums in the same order. Of the 1,036 steps of the hierarchical all-reduce of 4,096 GPUs on
512 machines four are priced. Inside one step all machines are the same, too: routes are found once for a pair
of devices (placement.py), and messages that get the same share end in the same event.

Left out: the cost of starting a kernel, what a transfer takes of the memory of a GPU, and steps that run into
one another. A schedule is not checked here: `verify` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from scaling.collectives.fair_sharing import Floats
from scaling.collectives.placement import Place, Placement, Resources
from scaling.collectives.schedule import Schedule
from scaling.collectives.step_pricing import Event, StepPrice, StepReader, StepWork, price
from scaling.errors import ScheduleError
from topologies.model import Topology


@dataclass(frozen=True)
class Simulation:
    """What a schedule takes.

    Attributes:
        name: the schedule's, its ranks and the topology's, for people.
        num_bytes: of the buffer.
        prices: those of the steps that were priced.
        price_of_step: of each step, its entry in `prices`.
        resources: the topology's, by number.
    """

    name: str
    num_bytes: float
    prices: tuple[StepPrice, ...] = field(repr=False)
    price_of_step: tuple[int, ...] = field(repr=False)
    resources: Resources = field(repr=False)

    @cached_property
    def step_seconds(self) -> list[float]:
        """What each step takes."""
        return [self.prices[i].seconds for i in self.price_of_step]

    @cached_property
    def seconds(self) -> float:
        """What all take, one after the other."""
        return sum(self.step_seconds)

    @property
    def reduce_seconds(self) -> float:
        """Of these, what passes in each step after its last message has arrived."""
        return sum(self.prices[i].seconds - self.prices[i].arrived_s for i in self.price_of_step)

    @property
    def num_priced_steps(self) -> int:
        """Steps that were priced; the others are like one of them."""
        return len(self.prices)

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

    def describe(self) -> str:
        """A few lines for people."""
        steps = f"{len(self.price_of_step)} steps ({self.num_priced_steps} of them different)"
        lines = [
            f"{self.name}: {self.num_bytes / 1e6:.4g} MB in {self.seconds * 1e3:.4g} ms, {steps}",
            f"  sums after the last message of their step: {self.reduce_seconds * 1e3:.4g} ms",
        ]
        busiest = self.busiest_resource
        if busiest is not None:
            capacity = self.resources.capacity_bytes_per_s[int(self._busy_s.argmax())]
            lines.append(
                f"  busiest: {busiest}, {self.bytes_per_resource[busiest] / 1e6:.4g} MB at "
                f"{capacity / 1e9:.4g} GB/s, {self.utilisation_ratio:.0%} of the time"
            )
        return "\n".join(lines)


def simulate(
    schedule: Schedule,
    topology: Topology,
    num_bytes: float,
    *,
    peer_access: bool = True,
    places: Sequence[Place] | None = None,
    num_messages: int = 1,
) -> Simulation:
    """Prices `schedule`.

    Args:
        schedule: a correct one.
        topology: where it runs.
        num_bytes: of the buffer; a chunk is its equal part, or what `chunk_elements` says.
        peer_access: False forbids direct access between GPUs (host-only).
        places: (node, device id) of each rank; None takes `topology.ranks`.
        num_messages: that each message is really sent as, one after the other (a tensor each, say): its
            latency counts that often.

    Raises:
        TopologyError: the topology has not what the schedule needs.
        ScheduleError: `places` are not as many as ranks, or a count is negative.
    """
    if num_bytes < 0 or num_messages < 1:
        raise ScheduleError(
            f"{schedule.name}: {num_bytes} bytes, each message sent as {num_messages}; "
            "allowed are 0 and more bytes, 1 and more messages"
        )
    ranks = topology.ranks(schedule.world_size) if places is None else places
    if len(ranks) != schedule.world_size:
        raise ScheduleError(f"{schedule.name}: {len(ranks)} places for {schedule.world_size} ranks")
    placement = Placement(topology, ranks, schedule.num_hosts, peer_access=peer_access)
    reader = StepReader(schedule, placement, num_bytes)
    prices, price_of_step = _price_steps(schedule, reader, lambda work: price(work, placement, num_messages))
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
    for index in range(len(schedule.steps)):
        kind = _kind(schedule, index)
        if kind not in by_kind:
            work = reader.read(schedule.steps[index])
            by_kind[kind] = by_work.setdefault(work.key(), len(prices))
            if by_kind[kind] == len(prices):
                prices.append(price_of(work))
        price_of_step.append(by_kind[kind])
    return prices, price_of_step


def _kind(schedule: Schedule, index: int) -> Hashable:
    """The step's kind, where those of one kind cost the same."""
    # Most kinds say nothing of unequal chunks, nor of host memory that is empty in one step only.
    alike = not schedule.num_hosts or getattr(schedule.steps, "hosts_are_alike", False)
    return schedule.kind(index) if alike and schedule.chunk_elements is None else index
