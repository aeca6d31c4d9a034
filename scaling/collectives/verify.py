"""Runs a schedule symbolically: proves that it delivers the sum, and counts what it sends.

A place (one chunk at one node) holds a set of contributions, kept as a bit mask: bit r is rank r's.

1. Every rank starts with its own contribution in every chunk; host memory starts empty.
2. Each step reads the places from before the step, then applies its transfers in their order. A copy replaces the
   set, an add joins two sets that may not overlap. An add into an empty place is a copy: host memory counts as zeroed.
3. After the last step every rank must hold every contribution in every chunk. As no add ever joined a contribution
   twice, each is there exactly once.

What is refused is a `ScheduleError` that names the schedule, the step (from 0), the nodes and the chunk.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, groupby
from typing import NoReturn

from scaling.collectives.schedule import Schedule, Step, Transfer
from scaling.errors import ScheduleError

MAX_LISTED = 8  # contributions named in a message


@dataclass(frozen=True)
class Verification:
    """What a correct schedule sends.

    Attributes:
        num_steps: steps.
        messages_per_rank: messages that each rank sends (all transfers to one node in a step are one message).
        sent_ratio_per_rank: bytes that each rank sends, as a fraction of the buffer's bytes S.
        messages_per_host, sent_ratio_per_host: the same for host memories.
    """

    num_steps: int
    messages_per_rank: list[int]
    sent_ratio_per_rank: list[Fraction]
    messages_per_host: list[int]
    sent_ratio_per_host: list[Fraction]

    @property
    def num_messages(self) -> int:
        """Messages of all ranks and hosts together."""
        return sum(self.messages_per_rank) + sum(self.messages_per_host)


def verify(schedule: Schedule) -> Verification:
    """Proves that every rank ends with each contribution exactly once in every chunk.

    Raises:
        ScheduleError: it does not, or a step breaks a rule; the message says which, where and when.
    """
    _check_shape(schedule)
    interpreter = _Interpreter(schedule)
    num_steps = 0
    for index, step in enumerate(schedule.steps):
        interpreter.run(index, step)
        num_steps += 1
    interpreter.check_result()
    ranks = schedule.world_size
    total = interpreter.elements_before[-1] or 1
    ratios = [Fraction(sent, total) for sent in interpreter.elements_sent]
    messages = interpreter.messages_sent
    return Verification(num_steps, messages[:ranks], ratios[:ranks], messages[ranks:], ratios[ranks:])


def _check_shape(schedule: Schedule) -> None:
    if schedule.world_size < 1 or schedule.num_chunks < 1 or schedule.num_hosts < 0:
        raise ScheduleError(
            f"{schedule.name}: {schedule.world_size} ranks, {schedule.num_chunks} chunks and {schedule.num_hosts} "
            "hosts; there must be at least one rank and one chunk"
        )
    if schedule.chunk_elements is not None and len(schedule.chunk_elements) != schedule.num_chunks:
        raise ScheduleError(
            f"{schedule.name}: {len(schedule.chunk_elements)} chunk sizes for {schedule.num_chunks} chunks"
        )


class _Interpreter:
    """The contributions at every place, and the counts so far."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        chunks, ranks = schedule.num_chunks, schedule.world_size
        self.places = [[1 << rank] * chunks for rank in range(ranks)]
        self.places += [[0] * chunks for _ in range(schedule.num_hosts)]
        self.elements_before = [0, *accumulate(schedule.chunk_elements or [1] * chunks)]
        self.elements_sent = [0] * schedule.num_nodes
        self.messages_sent = [0] * schedule.num_nodes

    def run(self, index: int, step: Step) -> None:
        """One step: all reads, then all writes in the order listed."""
        places, before, sent = self.places, self.elements_before, self.elements_sent
        num_nodes, num_chunks = self.schedule.num_nodes, self.schedule.num_chunks
        arrivals = []
        for transfer in step:
            source, target, start, stop, _ = transfer
            if not (
                0 <= source < num_nodes
                and 0 <= target < num_nodes
                and source != target
                and 0 <= start < stop <= num_chunks
            ):
                self._refuse_malformed(index, transfer)
            arrivals.append(places[source][start:stop])
            sent[source] += before[stop] - before[start]
        for source, _ in {(transfer[0], transfer[1]) for transfer in step}:
            self.messages_sent[source] += 1
        self._check_conflicts(index, step)
        for transfer, arriving in zip(step, arrivals, strict=True):
            self._apply(index, transfer, arriving)

    def _apply(self, index: int, transfer: Transfer, arriving: list[int]) -> None:
        _, target, start, stop, operation = transfer
        if 0 in arriving:
            chunk = start + arriving.index(0)
            self._refuse(index, transfer, f"chunk {chunk} is empty at the source")
        place = self.places[target]
        if operation == "copy":
            place[start:stop] = arriving
            return
        held, first = place[start:stop], arriving[0]
        if arriving.count(first) == len(arriving) == held.count(held[0]):
            # Most ranges are uniform: one test and one sum, whatever their length.
            overlap = held[0] & first
            place[start:stop] = [held[0] | first] * len(arriving)
        else:
            overlap = any(mine & other for mine, other in zip(held, arriving, strict=True))
            place[start:stop] = [mine | other for mine, other in zip(held, arriving, strict=True)]
        if overlap:
            self._refuse_doubled(index, transfer, held, arriving)

    def _check_conflicts(self, index: int, step: Step) -> None:
        """Refuses a copy whose chunks another transfer of the step writes at the same node."""
        if all(transfer[4] == "add" for transfer in step) or len({t[1] for t in step}) == len(step):
            return
        by_target = defaultdict(list)
        for transfer in step:
            by_target[transfer.target].append(transfer)
        for transfers in by_target.values():
            copies_until = adds_until = 0  # the first chunk that is free of all copies (adds) so far
            for transfer in sorted(transfers, key=lambda transfer: transfer.start):
                is_copy = transfer.operation == "copy"
                if transfer.start < copies_until or (is_copy and transfer.start < adds_until):
                    other = (
                        "a second copy"
                        if is_copy and transfer.start < copies_until
                        else "both a copy and an add"
                    )
                    self._refuse(index, transfer, f"chunk {transfer.start} gets {other} at the target")
                copies_until = max(copies_until, transfer.stop if is_copy else 0)
                adds_until = max(adds_until, 0 if is_copy else transfer.stop)

    def check_result(self) -> None:
        """Refuses if a rank lacks a contribution after the last step."""
        name, ranks = self.schedule.name, self.schedule.world_size
        complete = (1 << ranks) - 1
        for rank in range(ranks):
            held = self.places[rank]
            if held.count(complete) == len(held):
                continue
            chunk = next(chunk for chunk, mask in enumerate(held) if mask != complete)
            raise ScheduleError(
                f"{name}: after the last step rank {rank} lacks the contribution of "
                f"{_ranks(complete & ~held[chunk])} in chunk {chunk}"
            )

    def _refuse_doubled(
        self, index: int, transfer: Transfer, held: list[int], arriving: list[int]
    ) -> NoReturn:
        both = [mine & other for mine, other in zip(held, arriving, strict=True)]
        offset = next(offset for offset, mask in enumerate(both) if mask)
        chunk = transfer.start + offset
        self._refuse(
            index, transfer, f"chunk {chunk} already holds the contribution of {_ranks(both[offset])}"
        )

    def _refuse_malformed(self, index: int, transfer: Transfer) -> NoReturn:
        source, target, start, stop, _ = transfer
        schedule = self.schedule
        nodes = [node for node in (source, target) if not 0 <= node < schedule.num_nodes]
        if nodes:
            raise ScheduleError(
                f"{schedule.name}: step {index}: node {nodes[0]} in the transfer of chunks {start} to {stop - 1} is "
                f"out of range; there are {schedule.world_size} ranks and {schedule.num_hosts} hosts"
            )
        if source == target:
            self._refuse(index, transfer, "the source is the target")
        if start >= stop:
            self._refuse(index, transfer, f"the range from chunk {start} to before chunk {stop} is empty")
        chunk = start if start < 0 else stop - 1
        self._refuse(index, transfer, f"chunk {chunk} is out of range, there are {schedule.num_chunks}")

    def _refuse(self, index: int, transfer: Transfer, problem: str) -> NoReturn:
        source, target = map(self.schedule.node_name, (transfer.source, transfer.target))
        raise ScheduleError(
            f"{self.schedule.name}: step {index}: {transfer.operation} from {source} to {target}: {problem}"
        )


def _ranks(mask: int) -> str:
    """`rank 3` or `ranks 0-2, 5` from a mask; at most MAX_LISTED runs."""
    ranks = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
    runs = [[r for _, r in run] for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])]
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    listed = ", ".join(texts[:MAX_LISTED]) + (", ..." if len(texts) > MAX_LISTED else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
