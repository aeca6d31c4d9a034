"""What a schedule must be made of before it can be run, symbolically or not: whole numbers, transfers, chunks
that cover the buffer.

A float that equals a rank, or a bool that equals a chunk, passes many comparisons and fails where tensors are
cut; it is refused by its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral
from typing import NoReturn

from scaling.collectives.schedule import ALIGNMENT_ELEMENTS, Columns, Schedule, ScheduleStep, Transfer
from scaling.errors import ScheduleError

NUMBERS = ("source", "target", "start", "stop")
OPERATIONS = ("add", "copy")


def check_shape(schedule: Schedule) -> None:
    """Checks everything but the steps' transfers.

    Raises:
        ScheduleError: naming the field, what it is and what is allowed.
    """
    for field, least in (("world_size", 1), ("num_chunks", 1), ("num_hosts", 0)):
        value = getattr(schedule, field)
        if not _is_whole(value) or value < least:
            raise ScheduleError(
                f"{schedule.name}: {field} is {_shown(value)}; allowed are whole numbers from {least}"
            )
    if not isinstance(schedule.steps, Sequence):
        raise ScheduleError(
            f"{schedule.name}: steps is {_shown(schedule.steps)}; allowed is a sequence of steps"
        )
    _check_chunk_sizes(schedule)
    for num_elements in _sizes(schedule):
        _check_bounds(schedule, num_elements)


def check_types(name: str, index: int, step: ScheduleStep) -> None:
    """Checks what the transfers of a step consist of; whether nodes and chunks exist is not asked here.

    Raises:
        ScheduleError: naming the step, the transfer and the field.
    """
    if not isinstance(step, Sequence):
        raise ScheduleError(f"{name}: step {index} is {_shown(step)}; allowed is a sequence of transfers")
    if isinstance(step, Columns):
        return
    # Sets of types first: a schedule may have millions of transfers.
    if set(map(type, step)) - {Transfer}:
        for number, transfer in enumerate(step):
            if not isinstance(transfer, Transfer):
                _refuse(name, index, number, f"is {_shown(transfer)}; allowed is a Transfer")
    for column, field in enumerate(NUMBERS):
        if {type(transfer[column]) for transfer in step} - {int}:
            for number, transfer in enumerate(step):
                if not _is_whole(transfer[column]):
                    what = f"{field} is {_shown(transfer[column])}; allowed is a whole number"
                    _refuse(name, index, number, what, transfer)
    if {type(transfer.operation) for transfer in step} - {str}:
        for number, transfer in enumerate(step):
            if not isinstance(transfer.operation, str):
                what = f"operation is {_shown(transfer.operation)}; allowed are {', '.join(OPERATIONS)}"
                _refuse(name, index, number, what, transfer)


def _refuse(name: str, index: int, number: int, what: str, transfer: Transfer | None = None) -> NoReturn:
    nodes = "" if transfer is None else f", from {transfer.source!r:.20} to {transfer.target!r:.20}"
    raise ScheduleError(f"{name}: step {index}: transfer {number}{nodes}: {what}")


def _check_chunk_sizes(schedule: Schedule) -> None:
    sizes = schedule.chunk_elements
    if sizes is None:
        return
    if not isinstance(sizes, Sequence):
        raise ScheduleError(
            f"{schedule.name}: chunk_elements is {_shown(sizes)}; allowed is a tuple of whole numbers"
        )
    if len(sizes) != schedule.num_chunks:
        raise ScheduleError(f"{schedule.name}: {len(sizes)} chunk sizes for {schedule.num_chunks} chunks")
    for chunk, size in enumerate(sizes):
        if not _is_whole(size) or size < 0:
            raise ScheduleError(
                f"{schedule.name}: chunk {chunk} has {_shown(size)} elements; "
                "allowed are whole numbers from 0"
            )


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
    if not isinstance(bounds, Sequence):
        raise ScheduleError(f"{where}: {_shown(bounds)}; allowed is a sequence of whole numbers")
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


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _shown(value: object) -> str:
    """`2.0 (float)`."""
    return f"{value!r:.60} ({type(value).__name__})"
