"""Steps and schedules as Chakra execution traces, which ASTRA-sim reads: one file a rank, `<name>.<rank>.et`.

A file is a sequence of messages, each behind its length as a varint: one GlobalMetadata, then Nodes
(mlcommons/chakra, schema/protobuf/et_def.proto; attributes and their types as in src/generator/generator.py
and the feeder's `comm_src`, `comm_dst`, `comm_tag`, `comm_size`): a COMP_NODE for the computation, where its
time is known, in whole microseconds; for a library's all-reduce one COMM_COLL_NODE; for a schedule a
COMM_SEND_NODE and a COMM_RECV_NODE a message, after all nodes of the rank's step before. Sums after a receive
take no time there, and host memory is no rank: schedules that use it are refused."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaling.collectives.schedule import Schedule, messages
from scaling.errors import ScheduleError

VARINT, LENGTH = 0, 2
Attributes = Sequence[tuple[str, int, int]]  # name, field of AttributeProto, value


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow. For numbers of at least 0."""
    parts = []
    while True:
        number, low = number >> 7, number & 0x7F
        parts.append(low | (0x80 if number else 0))
        if not number:
            return bytes(parts)


def number_field(field: int, number: int) -> bytes:
    return varint(field << 3 | VARINT) + varint(number)


def bytes_field(field: int, content: bytes) -> bytes:
    return varint(field << 3 | LENGTH) + varint(len(content)) + content


def text_field(field: int, text: str) -> bytes:
    return bytes_field(field, text.encode())


COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE = 4, 5, 6, 7
INT64, UINT32, UINT64, BOOL = 9, 11, 13, 27  # fields of AttributeProto


def traces(schedule: Schedule, num_elements: int, compute_s: float = 0.0, itemsize: int = 4) -> list[bytes]:
    """Of each rank: the computation, then the schedule; ScheduleError where it uses host memory."""
    if schedule.num_hosts:
        raise ScheduleError(f"{schedule.name}: Chakra has no host memory; export a schedule between ranks")
    bounds = schedule.bounds(num_elements)
    return [_trace(schedule, rank, bounds, compute_s, itemsize) for rank in range(schedule.world_size)]


def all_reduce_traces(world_size: int, num_bytes: int, compute_s: float = 0.0) -> list[bytes]:
    """The same for a library's all-reduce, which the engine simulates in its own way."""
    nodes = _compute(compute_s)
    attributes = [("comm_type", INT64, 0), ("comm_size", UINT64, num_bytes)]
    nodes.append(_node(len(nodes), "all_reduce", COMM_COLL_NODE, range(len(nodes)), attributes))
    return [_file(nodes) for _ in range(world_size)]


def _trace(schedule: Schedule, rank: int, bounds: list[int], compute_s: float, itemsize: int) -> bytes:
    nodes = _compute(compute_s)
    before: Sequence[int] = range(len(nodes))
    tag = 0
    for number, step in enumerate(schedule.steps):
        operations = []
        for source, target, transfers in messages(step):
            tag += 1
            num_bytes = itemsize * sum(bounds[t.stop] - bounds[t.start] for t in transfers)
            if rank not in (source, target) or not num_bytes:
                continue
            kind = COMM_SEND_NODE if rank == source else COMM_RECV_NODE
            ends = [("comm_src", UINT32, source), ("comm_dst", UINT32, target), ("comm_tag", UINT32, tag)]
            attributes = [("comm_size", UINT64, num_bytes), *ends]
            name = f"{schedule.name} step {number}: {source} to {target}"
            nodes.append(_node(len(nodes), name, kind, before, attributes))
            operations.append(len(nodes) - 1)
        before = operations or before
    return _file(nodes)


def _compute(compute_s: float) -> list[bytes]:
    duration_micros = math.ceil(compute_s * 1e6)
    return [_node(0, "compute", COMP_NODE, (), [], duration_micros)] if compute_s else []


def _node(
    number: int, name: str, kind: int, after: Sequence[int], attributes: Attributes, duration_micros: int = 0
) -> bytes:
    content = number_field(1, number) + text_field(2, name) + number_field(3, kind)
    if after:
        content += bytes_field(5, b"".join(varint(node) for node in after))  # data_deps, packed
    if duration_micros:
        content += number_field(7, duration_micros)
    for attribute, field, value in [("is_cpu_op", BOOL, 0), *attributes]:
        content += bytes_field(10, text_field(1, attribute) + number_field(field, value))
    return content


def _file(nodes: Sequence[bytes]) -> bytes:
    parts = [text_field(1, "0.0.4"), *nodes]
    return b"".join(varint(len(part)) + part for part in parts)
