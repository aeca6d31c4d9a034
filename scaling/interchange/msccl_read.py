"""Reads MSCCL XML of an all-reduce as others write it (msccl-tools, msccl/language/ir.py, `ir_to_xml`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree import ElementTree

from scaling.errors import ScheduleError
from scaling.files.texts import clean

RECEIVES, SENDS = frozenset({"r", "rcs", "rrs", "rrc", "rrcs"}), frozenset({"s", "rcs", "rrs", "rrcs"})
KINDS = RECEIVES | SENDS | {"re", "cpy", "nop"}
MOST_CHUNKS = 2_000_000  # that all steps together move


class Step(NamedTuple):
    """An operation on chunks of buffers "i", "o" and "s"; `after`: (thread block, step) of the same GPU."""

    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    num_chunks: int
    after: tuple[int, int]


@dataclass(eq=False)
class Block:
    """A thread block and how far it is; `number` counts those of all GPUs, `send` and `recv` are peers."""

    number: int
    gpu: int
    id: int
    send: int
    recv: int
    channel: int
    steps: Sequence[Step]
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
    blocks: list[Block]


def read_algorithm(text: str) -> Algorithm:
    """The algorithm of a text.

    Raises:
        ScheduleError: it is none, or no all-reduce.
    """
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
    blocks: list[Block] = []
    for rank, tb in ((rank, tb) for rank, gpu in gpus for tb in gpu.findall("tb")):
        id_, send, recv, channel = (_number(tb, key) for key in ("id", "send", "recv", "chan"))
        steps = [_step(step) for step in sorted(tb.findall("step"), key=lambda step: _number(step, "s"))]
        blocks.append(Block(len(blocks), rank, id_, send, recv, channel, steps))
    num_chunks = _number(algo, "nchunksperloop")
    _check(blocks, world_size, world_size * num_chunks)
    in_place, both = _number(algo, "inplace", 0) == 1, _number(algo, "outofplace", 0) == 1
    forms = (True, False) if in_place and both else (in_place,)
    scratch = {rank: _number(gpu, "s_chunks", 0) for rank, gpu in gpus}
    name = clean(algo.get("name", "msccl"))
    return Algorithm(name, world_size, num_chunks, forms, scratch, blocks)


def _check(blocks: Sequence[Block], world_size: int, num_values: int) -> None:
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


def _step(step: ElementTree.Element) -> Step:
    source, target = ((step.get(f"{end}buf", "i"), _number(step, f"{end}off", -1)) for end in ("src", "dst"))
    after = _number(step, "depid", -1), _number(step, "deps", -1)
    return Step(step.get("type", ""), source, target, _number(step, "cnt", 1), after)


def _number(element: ElementTree.Element, name: str, default: int | None = None) -> int:
    text = element.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"-1|\d{1,6}", text, re.ASCII):
        raise ScheduleError(f"{name} of <{element.tag}> is {clean(text)!r:.40}; it must be a whole number")
    return int(text)
