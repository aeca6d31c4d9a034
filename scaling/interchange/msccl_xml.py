"""Schedules as MSCCL XML, the form of MSCCL and of RCCL; neither engine was run on what is written here.

The attributes are those that msccl-tools writes (microsoft/msccl-tools, msccl/language/ir.py, `ir_to_xml`):
an `algo` of `gpu`s, each with thread blocks `tb`, whose `step`s are done in order; `depid` and `deps` name a
step of another block of the same GPU that must be over. The collective is in place; a receive that adds is
`rrc`, one that replaces is `r`. Every pair (rank, peer) has a thread block for sending and one for receiving,
on one channel. An operation waits for the operations of the last step that touched the same chunks on its GPU
(`nop`s carry further dependencies), and a receive for a send of its chunk in the same step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

from scaling.collectives.schedule import Schedule
from scaling.errors import ScheduleError


@dataclass(eq=False)
class _Operation:
    kind: str  # "s", "r", "rrc" or "nop"
    chunk: int
    count: int
    block: tuple[bool, int] = (True, -1)  # sends?, peer
    after: list[_Operation] = field(default_factory=list)
    index: int = -1


MOST = {"steps of a thread block": 64, "thread blocks of a GPU": 32, "chunks of a step": 71}
"""What RCCL takes, on one channel: src/include/msccl/msccl_struct.h at commit 0088a127, MSCCL_MAX_NUM_STEPS,
MSCCL_MAX_NUM_THREAD_BLOCKS_PER_CHANNEL, and below MSCCL_MAX_COUNT."""


def beyond_limits(text: str) -> list[str]:
    algo = ElementTree.fromstring(text)  # noqa: S314  (what `to_xml` made)
    found = {
        "steps of a thread block": [len(block) for block in algo.iter("tb")],
        "thread blocks of a GPU": [len(gpu) for gpu in algo.iter("gpu")],
        "chunks of a step": [int(step.get("cnt", "0")) for step in algo.iter("step")],
    }
    missing = [name for name in ("outofplace", "minBytes", "maxBytes") if name not in algo.attrib]
    unread = [f"no {', '.join(missing)} in <algo>: RCCL refuses this file"] if missing else []
    return unread + [
        f"{max(numbers)} {what}, and RCCL takes {MOST[what]}: it refuses this file"
        for what, numbers in found.items()
        if max(numbers, default=0) > MOST[what]
    ]


def to_xml(schedule: Schedule, protocol: str = "Simple") -> str:
    """For an in-place all-reduce; ScheduleError where it uses host memory or chunks of unequal size."""
    if schedule.num_hosts or schedule.chunk_elements is not None:
        raise ScheduleError(
            f"{schedule.name}: MSCCL has equal chunks on GPUs alone; host memory and tensors are not exported"
        )
    form = {"coll": "allreduce", "inplace": "1", "outofplace": "0", "minBytes": "0", "maxBytes": "0"}
    sizes = {"nchunksperloop": str(schedule.num_chunks), "ngpus": str(schedule.world_size)}
    head = {"name": schedule.name, "proto": protocol, "nchannels": "1"}
    algo = ElementTree.Element("algo", {**head, **sizes, **form})  # from 0 bytes on, without a bound
    for rank in range(schedule.world_size):
        _add_gpu(algo, schedule, rank)
    ElementTree.indent(algo)
    return ElementTree.tostring(algo, encoding="unicode") + "\n"


def _add_gpu(algo: ElementTree.Element, schedule: Schedule, rank: int) -> None:
    gpu = ElementTree.SubElement(
        algo, "gpu", id=str(rank), i_chunks=str(schedule.num_chunks), o_chunks="0", s_chunks="0"
    )
    blocks = _blocks(schedule, rank)
    numbers = {key: number for number, key in enumerate(blocks)}
    waited_for = {id(other) for block in blocks.values() for operation in block for other in operation.after}
    for (sends, peer), operations in blocks.items():
        ends = {"send": peer if sends else -1, "recv": -1 if sends else peer, "chan": 0}
        block = ElementTree.SubElement(gpu, "tb", _texts({"id": numbers[sends, peer], **ends}))
        for operation in operations:
            after = operation.after[0] if operation.after else None
            source = {"srcbuf": "i", "srcoff": operation.chunk}
            target = {"dstbuf": "i", "dstoff": operation.chunk, "cnt": operation.count}
            waits = {
                "depid": numbers[after.block] if after else -1,
                "deps": after.index if after else -1,
                "hasdep": int(id(operation) in waited_for),
            }
            step = {"s": operation.index, "type": operation.kind, **source, **target, **waits}
            ElementTree.SubElement(block, "step", _texts(step))


def _texts(attributes: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in attributes.items()}


def _blocks(schedule: Schedule, rank: int) -> dict[tuple[bool, int], list[_Operation]]:
    """Numbered operations, with at most one dependency each."""
    blocks: dict[tuple[bool, int], list[_Operation]] = defaultdict(list)
    touched: dict[int, list[_Operation]] = defaultdict(list)  # chunk -> of the last step that touched it
    for step in schedule.steps:
        now: dict[int, list[_Operation]] = defaultdict(list)
        of_rank = [t for t in step if rank in (t.source, t.target)]
        sends = [t for t in of_rank if t.source == rank]
        receives = [t for t in of_rank if t.target == rank]
        for transfer, is_send in [*((t, True) for t in sends), *((t, False) for t in receives)]:
            kind = "s" if is_send else {"add": "rrc", "copy": "r"}[transfer.operation]
            block = (is_send, transfer.target if is_send else transfer.source)
            operation = _Operation(kind, transfer.start, transfer.stop - transfer.start, block)
            chunks = range(transfer.start, transfer.stop)
            before = [other for at in chunks for other in (*touched[at], *(() if is_send else now[at]))]
            _append(blocks[block], operation, before)
            for chunk in chunks:
                now[chunk].append(operation)
        for chunk, operations in now.items():
            touched[chunk] = operations
    return dict(sorted(blocks.items(), key=lambda item: (item[0][1], item[0][0])))


def _append(block: list[_Operation], operation: _Operation, before: list[_Operation]) -> None:
    others = list({id(other): other for other in before if other.block != operation.block}.values())
    for extra in others[1:]:
        block.append(_Operation("nop", operation.chunk, 0, operation.block, [extra], len(block)))
    operation.after, operation.index = others[:1], len(block)
    block.append(operation)
