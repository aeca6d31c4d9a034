"""Runs MSCCL's steps on symbols: an all-reduce is proven, or refused with the step that is wrong.

`s` sends; `r` receives; `rrc` adds what is received to the source and stores the sum, `rrs` sends it on,
`rrcs` does both; `rcs` stores what is received and sends it on; `re` adds source to target, `cpy` copies,
`nop` waits (RCCL, src/device/msccl_kernel_impl.h). In place, the output is the input. Two accesses to one
place without an order (a thread block's, `depid`, a send before its receive), of which one writes, are
refused: so every order gives the proven result. That an engine has room for all messages is not proven.

A `Schedule` has no scratch: what lands there moves when it is added or copied from there. Its steps follow
from the data, not from thread blocks; `scaling.collectives.verify` proves it once more."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from scaling.collectives.schedule import Schedule, Transfer
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from scaling.files.texts import clean

RECEIVES, SENDS = frozenset({"r", "rcs", "rrs", "rrc", "rrcs"}), frozenset({"s", "rcs", "rrs", "rrcs"})
KINDS = RECEIVES | SENDS | {"re", "cpy", "nop"}
MOST_CHUNKS = 2_000_000  # that all steps together move


class XmlStep(NamedTuple):
    """An operation on chunks of buffers "i", "o" and "s"; `after`: (thread block, step) of the same GPU."""

    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    num_chunks: int
    after: tuple[int, int]


@dataclass(eq=False)
class ThreadBlock:
    """A thread block and how far it is; `number` counts those of all GPUs, `send` and `recv` are peers."""

    number: int
    gpu: int
    id: int
    send: int
    recv: int
    channel: int
    steps: Sequence[XmlStep]
    done: int = 0

    def name(self, step: int | None = None) -> str:
        """`GPU 0, thread block 1, step 3 (rrc)`, by default of the next step."""
        at = self.done if step is None else step
        return f"GPU {self.gpu}, thread block {self.id}, step {at} ({clean(self.steps[at].kind)})"


class Algorithm(NamedTuple):
    """An all-reduce; `in_place` has the forms that it is for, `scratch` the chunks of each GPU's."""

    name: str
    world_size: int
    num_chunks: int
    in_place: tuple[bool, ...]
    scratch: dict[int, int]
    blocks: list[ThreadBlock]


def read_algorithm(text: str) -> Algorithm:
    """ScheduleError where it is no all-reduce."""
    try:
        algo = ElementTree.fromstring(text)  # noqa: S314 (expat limits entities since 2.4.1)
    except ElementTree.ParseError as error:
        raise ScheduleError(f"no XML from line {error.position[0]} on; give MSCCL's XML") from error
    if algo.tag != "algo" or algo.find("gpu/tb/step") is None:
        raise ScheduleError("no <algo> of <gpu>s with <tb>s; give MSCCL's XML")
    if (collective := algo.get("coll", "")) != "allreduce":
        raise ScheduleError(f"coll is {clean(collective)!r:.40}; read is allreduce")
    world_size, gpus = _number(algo, "ngpus"), [(_number(gpu, "id"), gpu) for gpu in algo.findall("gpu")]
    if sorted(rank for rank, _ in gpus) != list(range(world_size)):
        raise ScheduleError(f"ngpus is {world_size}, and the <gpu>s are not 0 to {world_size - 1}")
    blocks: list[ThreadBlock] = []
    for rank, tb in ((rank, tb) for rank, gpu in gpus for tb in gpu.findall("tb")):
        id_, send, recv, channel = (_number(tb, key) for key in ("id", "send", "recv", "chan"))
        steps = [_step(step) for step in sorted(tb.findall("step"), key=lambda step: _number(step, "s"))]
        blocks.append(ThreadBlock(len(blocks), rank, id_, send, recv, channel, steps))
    num_chunks = _number(algo, "nchunksperloop")
    _check(blocks, world_size, world_size * num_chunks)
    in_place, both = _number(algo, "inplace", 0) == 1, _number(algo, "outofplace", 0) == 1
    forms = (True, False) if in_place and both else (in_place,)
    scratch = {rank: _number(gpu, "s_chunks", 0) for rank, gpu in gpus}
    name = clean(algo.get("name", "msccl"))
    return Algorithm(name, world_size, num_chunks, forms, scratch, blocks)


def _check(blocks: Sequence[ThreadBlock], world_size: int, num_values: int) -> None:
    ends: set[tuple[int, str]] = set()
    for block in blocks:
        for at, step in enumerate(block.steps):
            if step.kind not in KINDS:
                raise ScheduleError(f"{block.name(at)}: this type is not known")
            peers = [block.send] * (step.kind in SENDS) + [block.recv] * (step.kind in RECEIVES)
            if any(not 0 <= peer < world_size for peer in peers):
                raise ScheduleError(f"{block.name(at)}: its thread block has no such peer")
        channel = f"chan={block.channel}"
        for end in (f"send={block.send} {channel}", f"recv={block.recv} {channel}", f"id={block.id}"):
            if (block.gpu, end) in ends and "=-1 " not in end:
                raise ScheduleError(f"GPU {block.gpu}: two thread blocks have {end}")
            ends.add((block.gpu, end))
    moved = sum(step.num_chunks for block in blocks for step in block.steps)
    clocks = len(blocks) * sum(len(block.steps) for block in blocks)
    if max(moved, num_values, clocks // 50) > MOST_CHUNKS:
        raise ScheduleError("too large to be proven")


def _step(step: ElementTree.Element) -> XmlStep:
    source, target = ((step.get(f"{end}buf", "i"), _number(step, f"{end}off", -1)) for end in ("src", "dst"))
    after = _number(step, "depid", -1), _number(step, "deps", -1)
    return XmlStep(step.get("type", ""), source, target, _number(step, "cnt", 1), after)


def _number(element: ElementTree.Element, name: str, default: int | None = None) -> int:
    text = element.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"-1|\d{1,6}", text, re.ASCII):
        raise ScheduleError(f"{name} of <{element.tag}> is {clean(text)!r:.40}; it must be a whole number")
    return int(text)


Clock = NDArray[np.int32]  # [thread blocks]: how many steps of each have surely been done
Value = tuple[int, int]  # a chunk of the input, and the bits of the ranks that have contributed


class ChunkPlace(NamedTuple):
    gpu: int
    buffer: str
    chunk: int


Origin = tuple[ChunkPlace, int]  # of what is sent, and how many moves were before
Message = tuple[list[Value], Origin, Clock]
Move = tuple[Origin, ChunkPlace, bool]  # from, to, whether it is added


def prove(algorithm: Algorithm) -> tuple[Schedule | None, str]:
    """Each of its forms; the schedule, or None and why; ScheduleError names a step that is wrong."""
    runs = [_Run(algorithm, in_place=form) for form in algorithm.in_place]
    for run in runs:
        run.prove()
    if runs[0].inexpressible:
        return None, runs[0].inexpressible
    steps = _steps(runs[0].moves)
    schedule = Schedule(algorithm.name, algorithm.world_size, algorithm.num_chunks, steps)
    try:
        verify(schedule)
    except ScheduleError as error:
        return None, f"chunks change between their sending and their receipt ({error})"
    return schedule, ""


class _Run:
    def __init__(self, algorithm: Algorithm, *, in_place: bool) -> None:
        self.algorithm, self.output = algorithm, "i" if in_place else "o"
        ranks, chunks = range(algorithm.world_size), range(algorithm.num_chunks)
        self.values: dict[ChunkPlace, Value] = {
            ChunkPlace(r, "i", at): (at, 1 << r) for r in ranks for at in chunks
        }
        self.by_id = {(block.gpu, block.id): block for block in algorithm.blocks}
        self.queues: dict[tuple[int, int, int], deque[Message]] = defaultdict(deque)
        self.clocks: dict[tuple[int, tuple[int, int]], Clock] = {}
        self.writes: dict[ChunkPlace, list[tuple[ThreadBlock, int]]] = defaultdict(list)
        self.reads: dict[ChunkPlace, list[tuple[ThreadBlock, int]]] = defaultdict(list)
        self.landed: dict[ChunkPlace, Origin] = {}
        self.moves: list[Move] = []
        self.inexpressible = ""

    def prove(self) -> None:
        """Receives come before sends, so that messages are received soon."""
        blocks = self.algorithm.blocks
        self.awaited = {(block.gpu, step.after) for block in blocks for step in block.steps}
        self.now = [np.zeros(len(blocks), dtype=np.int32) for _ in blocks]
        for block in blocks:
            block.done = 0
        while sum(self._advance(block, sends=False) for block in blocks) or sum(
            self._advance(block, sends=True) for block in blocks
        ):
            pass
        if stuck := [block for block in blocks if block.done < len(block.steps)]:
            _refuse(stuck[0], f"waits for ever, as {len(stuck) - 1} other thread blocks do")
        if lost := [ends for ends, queue in self.queues.items() if queue]:
            raise ScheduleError(
                "messages from GPU {} to GPU {} on channel {} are not received".format(*lost[0])
            )
        for rank in range(self.algorithm.world_size):
            for chunk in range(self.algorithm.num_chunks):
                place, everyone = ChunkPlace(rank, self.output, chunk), (1 << self.algorithm.world_size) - 1
                held, ranks = self.values.get(place, (chunk, 0))
                if (held, ranks) != (chunk, everyone):
                    last = [f"last written by {block.name(step)}" for block, step in self.writes[place]]
                    raise ScheduleError(
                        f"chunk {chunk} of GPU {rank} ends as chunk {held} without ranks "
                        f"{_ranks(everyone & ~ranks)}; {last[0] if last else 'no step writes it'}"
                    )

    def _advance(self, block: ThreadBlock, *, sends: bool) -> bool:
        """Does the block's next step if it can, and if it is a send or is none."""
        if block.done == len(block.steps) or (block.steps[block.done].kind == "s") != sends:
            return False
        step, clock, message = block.steps[block.done], self.now[block.number].copy(), None
        if step.after[0] >= 0:
            other = self.by_id.get((block.gpu, step.after[0]))
            if other is None or not 0 <= step.after[1] < len(other.steps):
                _refuse(block, f"waits for thread block {step.after[0]}, step {step.after[1]}; there is none")
            if other.done <= step.after[1]:
                return False
            clock = np.maximum(clock, self.clocks[block.gpu, step.after])
        if step.kind in RECEIVES:
            queue = self.queues[block.recv, block.gpu, block.channel]
            if not queue:
                return False
            message = queue.popleft()
            clock = np.maximum(clock, message[2])
        clock[block.number] = block.done + 1
        if step.kind != "nop":
            self._do(block, step, message, clock)
        self.now[block.number] = clock
        if (key := (block.gpu, (block.id, block.done))) in self.awaited:
            self.clocks[key] = clock
        block.done += 1
        return True

    def _do(self, block: ThreadBlock, step: XmlStep, message: Message | None, clock: Clock) -> None:
        source = [] if step.kind in ("r", "rcs") else self._places(block, step.source, step.num_chunks)
        target = [] if step.kind in ("s", "rrs") else self._places(block, step.target, step.num_chunks)
        if message is not None and len(message[0]) != step.num_chunks:
            _refuse(block, f"receives {len(message[0])} chunks and takes {step.num_chunks}")
        values = [self._read(block, place, clock) for place in source]
        others = [self._read(block, place, clock) for place in target if step.kind == "re"]
        others = others if message is None else message[0]
        if values and others:
            values = [_sum(block, one, other) for one, other in zip(values, others, strict=True)]
        self._record(block, step, message, source, target)
        for place, value in zip(target, values or others, strict=bool(target)):
            _check_order(block, place, clock, [*self.writes[place], *self.reads[place]])
            self.writes[place], self.reads[place], self.values[place] = [(block, block.done)], [], value
        if step.kind in SENDS:
            sent = values or others, ((target or source)[0], len(self.moves)), clock
            self.queues[block.gpu, block.send, block.channel].append(sent)

    def _read(self, block: ThreadBlock, place: ChunkPlace, clock: Clock) -> Value:
        _check_order(block, place, clock, self.writes[place])
        self.reads[place].append((block, block.done))
        if place not in self.values:
            _refuse(block, f"chunk {place.chunk} of buffer {place.buffer!r} holds nothing yet")
        return self.values[place]

    def _places(self, block: ThreadBlock, start: tuple[str, int], number: int) -> list[ChunkPlace]:
        buffer, first = start
        size = self.algorithm.scratch[block.gpu] if buffer == "s" else self.algorithm.num_chunks
        if buffer not in ("i", "o", "s") or first < 0 or number < 1 or first + number > size:
            _refuse(
                block, f"chunks {first} to {first + number - 1} of buffer {buffer!r:.9}, which has {size}"
            )
        name = self.output if buffer == "o" else buffer
        return [ChunkPlace(block.gpu, name, chunk) for chunk in range(first, first + number)]

    def _record(
        self,
        block: ThreadBlock,
        step: XmlStep,
        message: Message | None,
        source: list[ChunkPlace],
        target: list[ChunkPlace],
    ) -> None:
        for at, place in enumerate([] if step.kind == "s" else target or source):
            origin, sent_at = self.landed.get(source[at], (source[at], 0)) if message is None else message[1]
            origin = origin if message is None else origin._replace(chunk=origin.chunk + at)
            if place.buffer == "s" and step.kind == "r":
                self.landed[place] = origin, sent_at
            elif "s" in (place.buffer, origin.buffer) or place.chunk != origin.chunk:
                self.inexpressible = self.inexpressible or f"{block.name()} sums or sends what is in scratch"
            elif origin.gpu != place.gpu:
                self.moves.append(((origin, sent_at), place, step.kind in ("re", "rrs", "rrc", "rrcs")))


def _check_order(
    block: ThreadBlock, place: ChunkPlace, clock: Clock, before: Sequence[tuple[ThreadBlock, int]]
) -> None:
    for other, step in before:
        if clock[other.number] <= step:
            shared = f"chunk {place.chunk} of buffer {place.buffer!r}"
            _refuse(block, f"uses {shared}, as {other.name(step)} does, and nothing says which is first")


def _refuse(block: ThreadBlock, what: str) -> NoReturn:
    raise ScheduleError(f"{block.name()}: {what}")


def _sum(block: ThreadBlock, one: Value, other: Value) -> Value:
    if one[0] != other[0]:
        _refuse(block, f"adds chunk {other[0]} to chunk {one[0]}")
    if twice := one[1] & other[1]:
        _refuse(block, f"adds the contributions of ranks {_ranks(twice)} twice")
    return one[0], one[1] | other[1]


def _ranks(bits: int) -> str:
    return ", ".join(str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1) or "none"


def _steps(moves: Sequence[Move]) -> tuple[tuple[Transfer, ...], ...]:
    """Each move as early as its chunk is there, and its target is read no more and added to alone."""
    steps: dict[int, list[Transfer]] = defaultdict(list)
    written: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(lambda: [(-1, -1)])  # (move, step)
    copied: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    read = copied.copy()
    for number, ((source, sent_at), target, is_add) in enumerate(moves):
        start, end, chunk = (source.gpu, source.chunk), (target.gpu, target.chunk), source.chunk
        there = max(step for move, step in written[start] if move < sent_at)
        free = max(copied[end] + 1, written[end][-1][1]) if is_add else written[end][-1][1] + 1
        at = max(there + 1, read[end], free)
        transfer = Transfer(source.gpu, target.gpu, chunk, chunk + 1, "add" if is_add else "copy")
        if (row := steps[at]) and row[-1] == transfer._replace(start=row[-1].start, stop=chunk):
            transfer = row.pop()._replace(stop=chunk + 1)
        row.append(transfer)
        written[end].append((number, at))
        read[start] = max(read[start], at)
        copied[end] = copied[end] if is_add else at
    return tuple(tuple(steps[at]) for at in sorted(steps))
