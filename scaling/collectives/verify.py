"""Runs a schedule symbolically: proves that it delivers the sum, and counts what it sends.

A place (one chunk at one node) holds a set of contributions, kept as a bit mask: bit r is rank r's.

1. Every rank starts with its own contribution in every chunk; host memory starts empty.
2. Each step reads the places from before the step, then applies its transfers in their order. A copy replaces
   the set, an add joins two sets that may not overlap. An add into an empty place is a copy: host memory
   counts as zeroed.
3. After the last step every rank must hold every contribution in every chunk. As no add ever joined a
   contribution twice, each is there exactly once.

Whether the sum ends where an aggregator takes its step is checked in `scaling.conformance.check_schedule`.

What is refused is a `ScheduleError` that names the schedule, the step (from 0), the nodes and the chunk.
What a schedule is made of is checked first: whole numbers, transfers, chunks that cover the buffer. A float
that equals a rank, or a bool that equals a chunk, passes many comparisons and fails where tensors are cut;
it is refused by its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, groupby, pairwise
from numbers import Integral
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from scaling.collectives.schedule import ALIGNMENT_ELEMENTS, Columns, Schedule, ScheduleStep, Transfer
from scaling.errors import ScheduleError

OPERATIONS = ("add", "copy")


def check_shape(schedule: Schedule) -> None:
    """Checks everything but the steps' transfers. ScheduleError names the field and what is allowed."""
    name, steps, sizes = schedule.name, schedule.steps, schedule.chunk_elements
    for field, least in (("world_size", 1), ("num_chunks", 1), ("num_hosts", 0)):
        value = getattr(schedule, field)
        is_allowed = _is_whole(value) and value >= least
        _require(is_allowed, f"{name}: {field} is", value, f"are whole numbers from {least}")
    _require(isinstance(steps, Sequence), f"{name}: steps is", steps, "is a sequence of steps")
    if sizes is not None:
        is_tuple = isinstance(sizes, Sequence)
        _require(is_tuple, f"{name}: chunk_elements is", sizes, "is a tuple of whole numbers")
        if len(sizes) != schedule.num_chunks:
            raise ScheduleError(f"{name}: {len(sizes)} chunk sizes for {schedule.num_chunks} chunks")
        for chunk, size in enumerate(sizes):
            if not _is_whole(size) or size < 0:
                what = f"chunk {chunk} has {_shown(size)} elements"
                raise ScheduleError(f"{name}: {what}; allowed are whole numbers from 0")
    for num_elements in _sizes(schedule):
        _check_bounds(schedule, num_elements)


def check_types(name: str, index: int, step: ScheduleStep) -> None:
    """Checks what the transfers of a step consist of; whether nodes and chunks exist is not asked here.
    ScheduleError names the step, the transfer and the field."""
    if not isinstance(step, Sequence):
        raise ScheduleError(f"{name}: step {index} is {_shown(step)}; allowed is a sequence of transfers")
    if isinstance(step, Columns):
        return
    # Sets of types first: a schedule may have millions of transfers.
    if set(map(type, step)) - {Transfer}:
        for number, transfer in enumerate(step):
            if not isinstance(transfer, Transfer):
                _refuse(name, index, number, f"is {_shown(transfer)}; allowed is a Transfer")
    for column, field in enumerate(Transfer._fields):
        is_text = field == "operation"
        allowed = f"are {', '.join(OPERATIONS)}" if is_text else "is a whole number"
        if {type(transfer[column]) for transfer in step} - {str if is_text else int}:
            for number, transfer in enumerate(step):
                value = transfer[column]
                if not (isinstance(value, str) if is_text else _is_whole(value)):
                    _refuse(name, index, number, f"{field} is {_shown(value)}; allowed {allowed}", transfer)


def _refuse(name: str, index: int, number: int, what: str, transfer: Transfer | None = None) -> NoReturn:
    nodes = "" if transfer is None else f", from {transfer.source!r:.20} to {transfer.target!r:.20}"
    raise ScheduleError(f"{name}: step {index}: transfer {number}{nodes}: {what}")


def _sizes(schedule: Schedule) -> list[int]:
    """Buffers on both sides of where chunks are cut otherwise."""
    if schedule.chunk_elements is not None:
        return [sum(schedule.chunk_elements)]
    chunks = schedule.num_chunks
    aligned = 100 * ALIGNMENT_ELEMENTS * chunks
    return [0, 1, chunks - 1, chunks, chunks + 1, aligned - 1, aligned, aligned + ALIGNMENT_ELEMENTS + 1]


def _check_bounds(schedule: Schedule, num_elements: int) -> None:
    """Chunks follow one another from the first element to the last."""
    bounds = schedule.bounds(num_elements)
    where = f"{schedule.name}: bounds of {num_elements} elements"
    _require(isinstance(bounds, Sequence), f"{where}:", bounds, "is a sequence of whole numbers")
    if len(bounds) != schedule.num_chunks + 1:
        raise ScheduleError(f"{where}: {len(bounds)} for {schedule.num_chunks} chunks; allowed is one more")
    for place, bound in enumerate(bounds):
        if not _is_whole(bound):
            raise ScheduleError(f"{where}: bound {place} is {_shown(bound)}; allowed is a whole number")
    for chunk, (start, stop) in enumerate(pairwise(bounds)):
        if start > stop:
            raise ScheduleError(f"{where}: chunk {chunk} begins at {start} and ends at {stop}, before that")
    if (bounds[0], bounds[-1]) != (0, num_elements):
        raise ScheduleError(f"{where}: the chunks cover {bounds[0]} to {bounds[-1]}, not all of the buffer")


def _require(holds: bool, what: str, value: object, allowed: str) -> None:
    if not holds:
        raise ScheduleError(f"{what} {_shown(value)}; allowed {allowed}")


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _shown(value: object) -> str:
    """`2.0 (float)`."""
    return f"{value!r:.60} ({type(value).__name__})"


MAX_LISTED = 8  # contributions named in a message


@dataclass(frozen=True)
class Verification:
    """What a correct schedule sends. `messages_per_rank`: messages that each rank sends; all transfers to one
    node in a step are one. `sent_ratio_per_rank`: bytes that each rank sends, as a fraction of the buffer's
    bytes S."""

    num_steps: int
    messages_per_rank: list[int]
    sent_ratio_per_rank: list[Fraction]
    messages_per_host: list[int]
    sent_ratio_per_host: list[Fraction]

    @property
    def num_messages(self) -> int:
        return sum(self.messages_per_rank) + sum(self.messages_per_host)


@dataclass(frozen=True)
class SentSample:
    """What a schedule sends at one world size: of the rank that sends most messages, and of that which sends
    most bytes, as a ratio to the buffer's."""

    world_size: int
    num_steps: int
    max_messages_per_rank: int
    max_sent_ratio_per_rank: float

    def __str__(self) -> str:
        return (
            f"at {self.world_size}: {self.num_steps} steps, {self.max_messages_per_rank} messages and "
            f"{self.max_sent_ratio_per_rank:.4g} S by the rank that sends most"
        )


def verify(schedule: Schedule) -> Verification:
    """Proves that every rank ends with each contribution exactly once in every chunk. ScheduleError: it does
    not, or a step breaks a rule; the message says which, where and when."""
    check_shape(schedule)
    interpreter = Interpreter(schedule)
    num_steps = 0
    for index, step in enumerate(schedule.steps):
        interpreter.run(index, step)
        num_steps += 1
    interpreter.check_result()
    num_ranks, num_elements = schedule.world_size, int(interpreter.elements_before[-1])
    messages = interpreter.messages_sent.tolist()
    ratios = [Fraction(sent, max(num_elements, 1)) for sent in interpreter.elements_sent.tolist()]
    return Verification(
        num_steps, messages[:num_ranks], ratios[:num_ranks], messages[num_ranks:], ratios[num_ranks:]
    )


@dataclass
class _Moves:
    """One step as columns, one entry a chunk of a transfer, in order: loops over millions are too slow."""

    index: int
    step: ScheduleStep
    transfer: NDArray[np.int64]  # the entry's transfer, as its position in the step
    chunk: NDArray[np.int64]
    target: NDArray[np.int64]  # the place that it writes
    is_add: NDArray[np.bool_]
    arriving: NDArray[Any]  # the contributions that it carries


class Interpreter:
    """The contributions at every place, and the counts so far."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        masks = [1 << rank for rank in range(schedule.world_size)] + [0] * schedule.num_hosts
        # Python's integers, as a mask has a bit a rank; chunk c at node i is entry i * num_chunks + c.
        self.places = np.repeat(np.array(masks, dtype=object), schedule.num_chunks)
        self.elements_before = np.array(
            [0, *accumulate(schedule.chunk_elements or [1] * schedule.num_chunks)]
        )
        self.elements_sent = np.zeros(schedule.num_nodes, dtype=np.int64)
        self.messages_sent = np.zeros(schedule.num_nodes, dtype=np.int64)

    def run(self, index: int, step: ScheduleStep) -> None:
        """One step: all reads, then all writes in the order listed."""
        check_types(self.schedule.name, index, step)
        if not step:
            return
        moves = self._read(index, step)
        written = np.sort(moves.target)
        shared = written[1:][written[1:] == written[:-1]]
        if shared.size:
            self._check_conflicts(moves, shared)
            self._write_in_order(moves)
        else:
            self._write_at_once(moves)

    def _read(self, index: int, step: ScheduleStep) -> _Moves:
        if not isinstance(step, Columns):
            wrong = next((t for t in step if t.operation not in OPERATIONS), None)
            if wrong is not None:
                allowed = ", ".join(OPERATIONS)
                raise ScheduleError(f"{self._where(index, wrong)}: unknown operation; allowed: {allowed}")
        columns = Columns.of(step)
        sources, targets, starts, stops = columns.source, columns.target, columns.start, columns.stop
        self._check_ranges(index, step, sources, targets, starts, stops)
        np.add.at(self.elements_sent, sources, self.elements_before[stops] - self.elements_before[starts])
        pairs = np.sort(sources * self.schedule.num_nodes + targets)
        pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])]  # np.unique takes many times as long
        np.add.at(self.messages_sent, pairs // self.schedule.num_nodes, 1)
        lengths, is_add = stops - starts, columns.is_add
        transfer, chunk = np.arange(len(sources)), starts
        if (lengths > 1).any():
            transfer = np.repeat(transfer, lengths)
            chunk = np.arange(len(transfer)) + (starts - (np.cumsum(lengths) - lengths))[transfer]
            sources, targets, is_add = sources[transfer], targets[transfer], is_add[transfer]
        target = targets * self.schedule.num_chunks + chunk
        arriving = self.places[sources * self.schedule.num_chunks + chunk]
        moves = _Moves(index, step, transfer, chunk, target, is_add, arriving)
        if self.schedule.num_hosts and 0 in arriving:
            self._refuse(moves, int(np.argmax(arriving == 0)), "is empty at the source")
        return moves

    def _write_at_once(self, moves: _Moves) -> None:
        """Where no place is written twice."""
        adds = np.flatnonzero(moves.is_add)
        held, arriving = self.places[moves.target[adds]], moves.arriving[adds]
        overlap = np.flatnonzero(held & arriving)
        if overlap.size:
            self._refuse_doubled(moves, adds[overlap[0]], held[overlap[0]])
        moves.arriving[adds] |= held
        self.places[moves.target] = moves.arriving

    def _write_in_order(self, moves: _Moves) -> None:
        entries = zip(moves.target.tolist(), moves.is_add.tolist(), moves.arriving, strict=True)
        for entry, (place, is_add, arriving) in enumerate(entries):
            held = self.places[place] if is_add else 0
            if held & arriving:
                self._refuse_doubled(moves, entry, held)
            self.places[place] = held | arriving

    def _check_conflicts(self, moves: _Moves, shared: NDArray[np.int64]) -> None:
        """Refuses a copy into one of the `shared` places, those that several transfers write."""
        clashes = np.flatnonzero(~moves.is_add & np.isin(moves.target, shared))
        if clashes.size:
            entry = clashes[-1]
            both = moves.is_add[moves.target == moves.target[entry]].any()
            self._refuse(moves, entry, f"gets {'a copy and an add' if both else 'two copies'} in this step")

    def complete(self) -> NDArray[np.bool_]:
        """[node, chunk]: whether every contribution is there."""
        whole: NDArray[np.bool_] = self.places == (1 << self.schedule.world_size) - 1
        return whole.reshape(self.schedule.num_nodes, self.schedule.num_chunks)

    def check_result(self) -> None:
        """Refuses if a rank lacks a contribution after the last step."""
        lacking = np.argwhere(~self.complete()[: self.schedule.world_size])
        if lacking.size:
            rank, chunk = lacking[0].tolist()
            held = self.places[rank * self.schedule.num_chunks + chunk]
            missing = _ranks(((1 << self.schedule.world_size) - 1) & ~held)
            raise ScheduleError(
                f"{self.schedule.name}: after the last step rank {rank} lacks the contribution of {missing} "
                f"in chunk {chunk}"
            )

    def _check_ranges(self, index: int, step: ScheduleStep, *columns: NDArray[np.int64]) -> None:
        sources, targets, starts, stops = columns
        num_nodes, num_chunks = self.schedule.num_nodes, self.schedule.num_chunks
        in_range = np.min(columns) >= 0 and np.max((sources, targets)) < num_nodes
        if in_range and stops.max() <= num_chunks and ((sources != targets) & (starts < stops)).all():
            return  # as nearly always: one by one they take longer
        for wrong, problem in (
            ((sources < 0) | (sources >= num_nodes), "node {0.source} is out of range"),
            ((targets < 0) | (targets >= num_nodes), "node {0.target} is out of range"),
            (sources == targets, "a node sends to itself"),
            (starts >= stops, "the range from chunk {0.start} to before chunk {0.stop} is empty"),
            (starts < 0, "chunk {0.start} is out of range"),
            (stops > num_chunks, "chunk {last} is out of range"),
        ):
            if wrong.any():
                transfer = step[int(np.argmax(wrong))]
                text = problem.format(transfer, last=transfer.stop - 1)
                raise ScheduleError(
                    f"{self._where(index, transfer)}: {text}; there are {self.schedule.world_size} ranks, "
                    f"{self.schedule.num_hosts} hosts and {self.schedule.num_chunks} chunks"
                )

    def _where(self, index: int, transfer: Transfer) -> str:
        nodes = [
            self.schedule.node_name(node) if 0 <= node < self.schedule.num_nodes else f"node {node}"
            for node in (transfer.source, transfer.target)
        ]
        return f"{self.schedule.name}: step {index}: {transfer.operation} from {nodes[0]} to {nodes[1]}"

    def _refuse(self, moves: _Moves, entry: int, problem: str) -> NoReturn:
        where = self._where(moves.index, moves.step[moves.transfer[entry]])
        raise ScheduleError(f"{where}: chunk {moves.chunk[entry]} {problem}")

    def _refuse_doubled(self, moves: _Moves, entry: int, held: int) -> NoReturn:
        doubled = _ranks(held & moves.arriving[entry])
        self._refuse(moves, entry, f"already holds the contribution of {doubled} at the target")


def _ranks(mask: int) -> str:
    """`rank 3` or `ranks 0-2, 5` from a mask; at most MAX_LISTED runs."""
    ranks = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
    runs = [[r for _, r in run] for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])]
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    listed = ", ".join(texts[:MAX_LISTED]) + (", ..." if len(texts) > MAX_LISTED else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
