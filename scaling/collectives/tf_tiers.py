"""What TensorFlow's all_reduce_spec comes to for the tensors of a model: schedules for its tiers.

A tensor is reduced by itself: cut into its own segments or pieces. All tensors between ranks go side by side
(parts.py); those that are summed in host memory are packed one behind the other.

References and differences: `scaling.aggregators.presets.tf_spec`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from scaling.bucket import BucketLayout
from scaling.collectives.halving_doubling import halving_doubling
from scaling.collectives.parts import BufferPart, of_parts
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, Transfer, chunk_bounds
from scaling.collectives.shuffle import shuffle
from scaling.collectives.tf_spec import Tier, tier_of
from scaling.errors import ScheduleError

Span = tuple[int, int]

BETWEEN_RANKS = ("xring", "psgpu", "rechd")
NATIVE = ("nccl", "collective")
IN_HOST_MEMORY = "pscpu"


@dataclass(frozen=True)
class TierTensors:
    """A tier, and the elements of its tensors in the bucket's order."""

    tier: Tier
    spans: tuple[Span, ...]


def tensors_of_tiers(tiers: list[Tier], layout: BucketLayout) -> list[TierTensors]:
    """Every tier with its tensors; tensors without elements belong to no tier."""
    spans: list[list[Span]] = [[] for _ in tiers]
    for offset, shape in zip(layout.offsets, layout.shapes, strict=True):
        if math.prod(shape):
            spans[tier_of(tiers, math.prod(shape))].append((offset, offset + math.prod(shape)))
    return [TierTensors(tier, tuple(of_one)) for tier, of_one in zip(tiers, spans, strict=True)]


def schedule_between_ranks(tiers: list[TierTensors], num_elements: int, world_size: int) -> Schedule | None:
    """The tensors of `xring`, `psgpu` and `rechd` in the whole bucket; None if there are none.

    Raises:
        ScheduleError: more shards than ranks, or `rechd` for ranks that are no power of two.
    """
    collectives: dict[Span, Schedule] = {}
    for of_tier in tiers:
        if of_tier.tier.inside in BETWEEN_RANKS and of_tier.spans:
            make = _maker(of_tier.tier, world_size)
            collectives |= {span: make(turn) for turn, span in enumerate(of_tier.spans)}
    if not collectives:
        return None
    parts, at = [], 0
    for (start, stop), schedule in sorted(collectives.items(), key=lambda item: item[0]):
        parts += [BufferPart(start - at, None)] * (start > at) + [BufferPart(stop - start, schedule)]
        at = stop
    parts += [BufferPart(num_elements - at, None)] * (num_elements > at)
    return of_parts("tf_spec", world_size, parts)


def _maker(tier: Tier, world_size: int) -> Callable[[int], Schedule]:
    """The schedule of the tier's i-th tensor."""
    shards = tier.inside_shards
    if shards > world_size > 1:
        raise ScheduleError(
            f"tf_spec: {tier.inside}#{shards} needs {shards} ranks at least, not {world_size}"
        )
    if tier.inside == "rechd" and world_size & (world_size - 1):
        raise ScheduleError(
            f"tf_spec: rechd runs on 2, 4, 8, ... ranks, not on {world_size}; use xring, or other world sizes"
        )
    shards = min(shards, world_size)
    if tier.inside == "psgpu":
        # TensorFlow deals the devices out to the groups in turn: 0 and 2, 1 and 3 for two groups of two.
        num_groups = -(-world_size // shards)
        return lambda turn: shuffle(
            world_size, [(turn % num_groups + i * num_groups) % world_size for i in range(shards)]
        )
    schedule = ring(world_size, shards) if tier.inside == "xring" else halving_doubling(world_size)
    return lambda _: schedule


def schedule_in_host_memory(of_tier: TierTensors, world_size: int) -> Schedule:
    """The tensors of a tier of `pscpu`, packed one behind the other: all up, then all back."""
    sizes = [
        stop - start
        for first, last in of_tier.spans
        for start, stop in _pieces(last - first, of_tier.tier.inside_shards)
    ]
    ranks, host, chunks = range(world_size), world_size, range(len(sizes))
    up = tuple(Transfer(rank, host, chunk, chunk + 1, "add") for rank in ranks for chunk in chunks)
    back = tuple(Transfer(host, rank, 0, len(sizes), "copy") for rank in ranks)
    return Schedule("pscpu", world_size, len(sizes), (up, back), num_hosts=1, chunk_elements=tuple(sizes))


def _pieces(num_elements: int, count: int) -> list[Span]:
    bounds = chunk_bounds(num_elements, count)
    return list(pairwise(bounds))
