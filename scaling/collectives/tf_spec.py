"""The language in which TensorFlow's benchmarks say which tensors are reduced how, and the schedules it asks
for.

    spec       = range_spec, { ":", limit, ":", range_spec } ;
    limit      = int, [ "k" | "K" | "M" | "G" | "T" ] ;           powers of 1024
    range_spec = algorithm, [ "/", algorithm ], [ "#", int ] ;    inside / between nodes, shards

`pscpu:2k:pscpu#2:64k:xring` has three tiers: tensors of up to 2,048 elements, of up to 65,536, and the rest.
A tensor is of the first tier whose limit it does not exceed. Limits are elements, as the code compares them;
the help of the flag says bytes. A tensor is reduced by itself: cut into its own segments or pieces. All
tensors between ranks go side by side (`of_parts`); those that are summed in host memory are packed one behind
the other.

Reference: tensorflow/benchmarks, scripts/tf_cnn_benchmarks/allreduce.py (`parse_general_int`,
`parse_all_reduce_spec`, `split_grads_by_size`). Differences: `rechd` alone is allowed, there only
`nccl/rechd` is; a limit that is not above the one before it is refused, there its tier is silently empty; so
are shards that the algorithm does not know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, NoReturn

from scaling.bucket import BucketLayout
from scaling.collectives.composition import BufferPart, of_parts
from scaling.collectives.halving_doubling import halving_doubling
from scaling.collectives.owners import shuffle
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, Transfer, chunk_bounds
from scaling.errors import ScheduleError, StudyError

SUFFIXES = {"": 1, "k": 1024, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
ALGORITHMS = (
    "nccl", "nccl/xring", "nccl/rechd", "nccl/pscpu", "xring", "rechd", "pscpu", "psgpu", "pscpu/pscpu",
    "collective",
)  # fmt: skip
MAX_COLLECTIVE_SHARDS = 2
UNSHARDED = ("nccl", "nccl/rechd", "rechd")
NO_LIMIT = -1


class Tier(NamedTuple):
    """Tensors of up to `limit` elements (-1: of any size) are reduced by `algorithm` in `shards` shards."""

    algorithm: str
    shards: int
    limit: int

    @property
    def inside(self) -> str:
        """The algorithm between the ranks of one node."""
        return self.algorithm.partition("/")[0]

    @property
    def inside_shards(self) -> int:
        """Shards inside it; those of `a/b` belong to b, between nodes."""
        return 1 if "/" in self.algorithm else self.shards


def parse_spec(spec: str) -> list[Tier]:
    """The tiers of an all_reduce_spec, in order; the last has no limit. StudyError: naming the part that is
    wrong and what is allowed."""
    fields = spec.split(":")
    if len(fields) % 2 == 0:
        _refuse(
            spec,
            "it ends with a limit",
            "algorithms and limits alternate, and an algorithm for the rest is last",
        )
    limits = [_limit(spec, field) for field in fields[1::2]]
    for before, limit in pairwise(limits):
        if limit <= before:
            _refuse(spec, f"limit {limit} follows {before}", "each limit is above the one before it")
    algorithms = [_algorithm(spec, field) for field in fields[::2]]
    return [Tier(*algorithm, limit) for algorithm, limit in zip(algorithms, [*limits, NO_LIMIT], strict=True)]


def tier_of(tiers: list[Tier], num_elements: int) -> int:
    """The index of the tier of a tensor of that size."""
    return next(i for i, tier in enumerate(tiers) if tier.limit == NO_LIMIT or num_elements <= tier.limit)


def _limit(spec: str, text: str) -> int:
    match = re.fullmatch(r"([0-9]+)([kKMGT]?)", text)
    if match is None or not int(match[1]):
        _refuse(
            spec,
            f"limit {text!r}",
            "a limit is a whole number above 0, with k, K, M, G or T behind it or not",
        )
    return int(match[1]) * SUFFIXES[match[2]]


def _algorithm(spec: str, text: str) -> tuple[str, int]:
    algorithm, mark, shards = text.partition("#")
    if algorithm not in ALGORITHMS:
        _refuse(spec, f"algorithm {algorithm!r}", f"the algorithms are {', '.join(ALGORITHMS)}")
    if not mark:
        return algorithm, 1
    if re.fullmatch(r"[0-9]+", shards) is None or not int(shards):
        _refuse(spec, f"{shards!r} shards of {algorithm}", "shards are a whole number above 0")
    if int(shards) > 1 and algorithm in UNSHARDED:
        _refuse(spec, f"{shards} shards of {algorithm}", f"{algorithm} has no shards")
    if int(shards) > MAX_COLLECTIVE_SHARDS and algorithm == "collective":
        _refuse(spec, f"{shards} shards of collective", "1 and 2 are allowed")
    return algorithm, int(shards)


def _refuse(spec: str, problem: str, rule: str) -> NoReturn:
    raise StudyError(f"all_reduce_spec {spec!r}: {problem}: {rule}")


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
    """The tensors of `xring`, `psgpu` and `rechd` in the whole bucket; None if there are none. ScheduleError:
    more shards than ranks, or `rechd` for ranks that are no power of two."""
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
