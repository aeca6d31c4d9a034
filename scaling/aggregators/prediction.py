"""Stages that several aggregators consist of (`scaling.collectives.plan`), and the bytes that they send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from scaling.collectives.composition import placed, split_at_reduction
from scaling.collectives.plan import CodecWork, Exchange, Library, Stage, Update
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Columns, LazySteps, Schedule, ScheduleStep, Transfer


def native_all_reduce(
    sizes: Iterable[int], world_size: int, name: str, library: Library = ""
) -> list[Exchange]:
    """The library's all-reduces, one after the other, as rings: what it chooses it does not tell."""
    return [Exchange(ring(world_size), size, name=name, native=True, library=library) for size in sizes]


def all_reduce_bytes(sizes_bytes: Iterable[int], world_size: int) -> int:
    """What a group meters on each rank for all-reduces of those sizes: a ring's, rounded down."""
    return sum(num_bytes * 2 * (world_size - 1) // world_size for num_bytes in sizes_bytes)


def stepped_by_owners(schedule: Schedule, num_elements: int, world_size: int) -> list[Stage]:
    """A schedule cut where its sums are complete, with the owners' step between the halves."""
    reduction, distribution, owners = split_at_reduction(schedule)
    bounds = schedule.bounds(num_elements)
    owned = [0] * world_size
    for chunk, owner in enumerate(owners):
        owned[owner] += bounds[chunk + 1] - bounds[chunk]
    return [
        Exchange(reduction, num_elements, name="reduce"),
        Update("owner", num_elements, owner_elements=tuple(owned)),
        Exchange(distribution, num_elements, name="distribute"),
    ]


def native_halves(num_elements: int, world_size: int) -> list[Stage]:
    """A library's reduce-scatter, the owners' step and its all-gather, as the halves of a ring."""
    bounds = ring(world_size).bounds(num_elements)
    owned = [bounds[chunk + 1] - bounds[chunk] for chunk in range(world_size)]
    reduction, gathering = halves_in_groups(num_elements, [range(world_size)])
    update = Update("owner", num_elements, owner_elements=(*owned[1:], owned[0]))
    return [reduction, update, gathering]


def halves_in_groups(num_elements: int, groups: Sequence[Sequence[int]]) -> tuple[Exchange, Exchange]:
    """A library's reduce-scatters and its all-gathers of equal groups of ranks at the same time."""
    half = len(groups[0]) - 1
    reduction, gathering = (_rings(groups, first, half) for first in (0, half))
    group = tuple(groups[0]) if len(groups) > 1 else ()
    return (
        Exchange(reduction, num_elements, name="reduce-scatter", native=True, group=group),
        Exchange(gathering, num_elements, name="all-gather", native=True, group=group),
    )


def all_reduces_in_groups(num_elements: int, groups: Sequence[Sequence[int]]) -> Exchange:
    """A library's all-reduces of equal groups of ranks at the same time, each of so many elements."""
    schedule = _rings(groups, 0, 2 * (len(groups[0]) - 1))
    return Exchange(schedule, num_elements, name="all-reduce", native=True, group=tuple(groups[0]))


def _rings(groups: Sequence[Sequence[int]], first: int, number: int) -> Schedule:
    """So many steps of a ring of each group, beginning with that of a number."""
    whole = ring(len(groups[0]))

    def step(t: int) -> ScheduleStep:
        parts = (placed([whole.steps[first + t]], group)[0] for group in groups)
        return whole.steps[first + t] if len(groups) == 1 else tuple(chain.from_iterable(parts))

    steps = LazySteps(number, step, lambda t: whole.kind(first + t))
    return replace(whole, world_size=sum(map(len, groups)), steps=steps)


def sums_alone(schedule: Schedule) -> Schedule:
    """A host-staging schedule without the copies back: what is summed stays in host memory."""
    steps = []
    for step in map(Columns.of, schedule.steps):
        keep = step.is_add
        if keep.any():
            steps.append(
                Columns(step.source[keep], step.target[keep], step.start[keep], step.stop[keep], True)
            )
    return replace(schedule, steps=tuple(steps))


def stripes_and_back(num_bytes: int, world_size: int) -> tuple[Stage, Stage]:
    """Every rank's stripes of an encoded buffer to their owners; the owners' sums, as large, to all. Copies:
    what is added is decoded before. Chunk r n + o is what rank r has for rank o."""
    n = world_size
    rank, other = np.nonzero(~np.eye(n, dtype=bool))
    stripes = Columns(rank, other, rank * n + other, rank * n + other + 1, False)
    sums = Columns(rank, other, rank * n + rank, rank * n + rank + 1, False)
    first, second = (Schedule("stripes", n, n * n, (step,)) for step in (stripes, sums))
    return Exchange(first, n * num_bytes, 1.0), Exchange(second, n * num_bytes, 1.0)


def encoded_stripes(
    num_elements: int, up_bytes: int, down_bytes: int, world_size: int, *, encode: float, decode: float
) -> list[Stage]:
    """Encode, stripes to their owners, sum and encode again, sums to all, decode. `encode`, `decode`: bytes
    moved for each byte that is encoded and whose residual is taken, or decoded."""
    num_bytes = 4.0 * num_elements
    (to_owners, _), (_, to_all) = (stripes_and_back(size, world_size) for size in (up_bytes, down_bytes))
    return [
        CodecWork("encode", num_bytes, bytes_moved=encode),
        to_owners,
        CodecWork("decode", num_bytes, bytes_moved=decode),
        CodecWork("encode", num_bytes / world_size, bytes_moved=encode),
        to_all,
        CodecWork("decode", num_bytes, bytes_moved=decode),
    ]


def gathered_by_all(num_bytes: int, world_size: int) -> Stage:
    n = world_size
    pairs = [(rank, other) for rank in range(n) for other in range(n) if rank != other]
    step = tuple(Transfer(r, o, r, r + 1, "copy") for r, o in pairs)
    return Exchange(Schedule("all_gather", n, n, (step,)), n * num_bytes, 1.0)


def rows_to_host(num_elements: int, world_size: int) -> Exchange:
    up = tuple(Transfer(rank, world_size, rank, rank + 1, "copy") for rank in range(world_size))
    schedule = Schedule("to_host", world_size, world_size, (up,), num_hosts=1)
    return Exchange(schedule, world_size * num_elements)


def rows_from_host(num_elements: int, world_size: int) -> Exchange:
    back = tuple(Transfer(world_size, rank, rank, rank + 1, "copy") for rank in range(world_size))
    schedule = Schedule("rows_from_host", world_size, world_size, (back,), num_hosts=1)
    return Exchange(schedule, world_size * num_elements)


def copies_to_ranks(num_elements: int, world_size: int) -> Exchange:
    back = tuple(Transfer(world_size, rank, 0, 1, "copy") for rank in range(world_size))
    return Exchange(Schedule("from_host", world_size, 1, (back,), num_hosts=1), num_elements)


def stepped_on_host(num_elements: int, world_size: int, num_threads: int) -> list[Stage]:
    """The step in host memory, and the parameters back to the ranks."""
    update = Update("host", num_elements, num_threads=num_threads)
    return [update, copies_to_ranks(num_elements, world_size)]
