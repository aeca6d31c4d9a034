"""TensorFlow's benchmarks again: each tensor is reduced by the algorithm for its size.

`tf_spec` (all_reduce_spec of tf_cnn_benchmarks):
1. A tensor is of the first tier of `spec` whose limit it does not exceed:

       spec       = range_spec, { ":", limit, ":", range_spec } ;
       limit      = int, [ "k" | "K" | "M" | "G" | "T" ] ;           powers of 1024
       range_spec = algorithm, [ "/", algorithm ], [ "#", int ] ;    inside / between nodes, shards

   `pscpu:2k:pscpu#2:64k:xring` has three tiers: tensors of up to 2,048 elements, of up to 65,536, and the
   rest. Limits are elements, as the code compares them; the help of the flag says bytes.
2. It is reduced as its tier says, where k is the number behind `#`: `xring`: round a ring; k sub-rings with
   rotated starts. `psgpu`: tensors take turns in groups of k ranks; each rank of the group sums 1/k
   of it. `rechd`: recursive halving and doubling ; n a power of two.
   `pscpu`: in host memory, cut into k pieces. `nccl`, `collective`: the communication library's all-reduce.
   `a/b`: a inside a node and b between nodes; here all ranks count as one node's, and a is run.
3. Every rank takes the step.

A tensor is reduced by itself, as TensorFlow does unless agg_small_grads_max_bytes is set (0 by default): it
is cut into its own segments or pieces, and `nccl` is called once for each. But what two ranks have for each
other in a step is one message, and the tensors of a tier of `pscpu` go to the host in one copy.

Steps: those of the algorithm that has most. Bytes sent per rank, for tensors of s bytes: `xring`, `rechd`
2(n-1)/n s; `nccl` as much, a tensor's rounded down to whole bytes; `pscpu` s, what goes to the host; `psgpu`
s (s - o for its own 1/k, o) and (n-1) o. Error: each element is summed in one order, so the ranks agree bit
for bit.

It delivers the sum in TensorFlow (variable_update=distributed_all_reduce), ours the mean.

Reference: tensorflow/benchmarks, scripts/tf_cnn_benchmarks/allreduce.py (`parse_all_reduce_spec`,
`split_grads_by_size`, `sum_gradients_all_reduce`, `group_device_names`) and variable_mgr.py
(`VariableMgrDistributedAllReduce`); tensorflow/python/distribute/v1/all_reduce.py. Differences: TensorFlow
starts a tensor as soon as backward has it; here the tiers between ranks come first, then `nccl`, then
`pscpu`. On one node TensorFlow has one CPU device, and refuses `pscpu#2`; here the pieces are summed by k of
the ranks' processes. Pieces differ in size by one element at most, TensorFlow pads them; an element of
`psgpu` is summed from the owner's on, TensorFlow adds in the order of the GPUs. `rechd` alone is allowed,
there only `nccl/rechd` is; a limit that is not above the one before it is refused, there its tier is silently
empty; so are shards that the algorithm does not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, NamedTuple, NoReturn, final

import torch
from pydantic import AfterValidator
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, Stated, unmarked
from scaling.aggregators.prediction import all_reduce_bytes, native_all_reduce
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout, Span
from scaling.collectives.composition import BufferPart, of_parts
from scaling.collectives.exchange import RankExchange, Transport
from scaling.collectives.execute_host import HostExecution
from scaling.collectives.execute_peer import sent_sizes
from scaling.collectives.halving_doubling import halving_doubling
from scaling.collectives.owners import shuffle
from scaling.collectives.plan import Exchange, Stage
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, Transfer, chunk_bounds
from scaling.errors import ScheduleError, StudyError
from scaling.process_group import Group

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
    for start, stop in layout.spans:
        if start < stop:
            spans[tier_of(tiers, stop - start)].append((start, stop))
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
    cuts = [chunk_bounds(stop - start, of_tier.tier.inside_shards) for start, stop in of_tier.spans]
    sizes = [stop - start for bounds in cuts for start, stop in pairwise(bounds)]
    ranks, host, chunks = range(world_size), world_size, range(len(sizes))
    up = tuple(Transfer(rank, host, chunk, chunk + 1, "add") for rank in ranks for chunk in chunks)
    back = tuple(Transfer(host, rank, 0, len(sizes), "copy") for rank in ranks)
    return Schedule("pscpu", world_size, len(sizes), (up, back), num_hosts=1, chunk_elements=tuple(sizes))


class HostTier:
    """A tier's tensors, which are reduced in host memory."""

    def __init__(self, tensors: TierTensors, group: Group, dtype: torch.dtype, device: torch.device) -> None:
        self.spans = tensors.spans
        size = sum(stop - start for start, stop in self.spans)
        schedule, shards = schedule_in_host_memory(tensors, group.world_size), tensors.tier.inside_shards
        self.execution = HostExecution(schedule, group, size, dtype, device, num_summing=shards)
        self.packed, self.sums = (torch.empty(size, dtype=dtype, device=device) for _ in range(2))

    def reduce(self, gradient: Tensor, phase: PhaseMarker) -> None:
        tensors = [gradient[start:stop] for start, stop in self.spans]
        with phase("encode"):
            torch.cat(tensors, out=self.packed)
        self.execution.run(self.packed, self.sums, phase)
        with phase("decode"):
            for tensor, sums in zip(tensors, torch.split(self.sums, [*map(len, tensors)]), strict=True):
                tensor.copy_(sums)


class TfSpecState(AggregatorState):
    def __init__(
        self, of: TfSpec, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(group, layout)
        n = layout.num_elements
        self.tiers, between = of.plan(layout, group.world_size)
        self.exchange = (
            RankExchange(between, group, n, dtype, device, transport=of.transport) if between else None
        )
        self.native = [span for tier in self.tiers if tier.tier.inside in NATIVE for span in tier.spans]
        in_host = [tier for tier in self.tiers if tier.tier.inside == IN_HOST_MEMORY and tier.spans]
        self.host = [HostTier(tier, group, dtype, device) for tier in in_host]

    @property
    def gradient_buffer(self) -> Tensor | None:
        return self.exchange.buffer if self.exchange else None

    @property
    def notes(self) -> list[str]:
        counts = ", ".join(f"{len(tier.spans)} by {tier.tier.algorithm}" for tier in self.tiers)
        between = [tier.tier.algorithm for tier in self.tiers if "/" in tier.tier.algorithm and tier.spans]
        notes = [f"tensors: {counts}"]
        notes += [f"{name}: all ranks count as one node's" for name in between]
        return notes + ([self.exchange.note] if self.exchange else [])


def _valid(spec: str) -> str:
    parse_spec(spec)
    return spec


@final
@dataclass(frozen=True)
class TfSpec(Stated[TfSpecState]):
    """TensorFlow's all_reduce_spec: the size of a tensor decides which all-reduce algorithm is used.

    `spec`: `algorithm[#shards]`, or several with limits in elements between them (2k is 2,048); `transport`:
    of the tiers between ranks, as for `ring`."""

    name = "tf_spec"
    state_class = TfSpecState
    modifies_input = True

    spec: Annotated[str, AfterValidator(_valid)] = "pscpu:2k:pscpu#2:64k:xring"
    transport: Transport = "auto"

    def plan(self, layout: BucketLayout, world_size: int) -> tuple[list[TierTensors], Schedule | None]:
        tiers = tensors_of_tiers(parse_spec(self.spec), layout)
        return tiers, schedule_between_ranks(tiers, layout.num_elements, world_size)

    def needs_one_host(self) -> bool:
        return super().needs_one_host() or any(t.inside == IN_HOST_MEMORY for t in parse_spec(self.spec))

    def aggregate(self, state: TfSpecState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        if state.group.world_size == 1:
            return gradient
        with phase("communicate"):
            if state.exchange is not None:
                gradient = state.exchange.run(gradient)
            for start, stop in state.native:
                state.group.all_reduce(gradient[start:stop])
        for tier in state.host:
            tier.reduce(gradient, phase)
        with phase("reduce"):
            gradient.div_(state.group.world_size)
        return gradient

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        if world_size == 1:
            return 0
        tiers, schedule = self.plan(layout, world_size)
        bounds = schedule.bounds(layout.num_elements) if schedule else []
        total = itemsize * sum(sent_sizes(schedule, bounds, rank)) if schedule else 0
        for tier in tiers:
            sizes = [itemsize * (stop - start) for start, stop in tier.spans]
            if tier.tier.inside in NATIVE:
                total += all_reduce_bytes(sizes, world_size)
            elif tier.tier.inside == IN_HOST_MEMORY:
                total += 2 * sum(sizes)
        return total

    def exchange_stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        tiers, schedule = self.plan(layout, world_size)
        stages: list[Stage] = [Exchange(schedule, layout.num_elements)] if schedule else []
        for tier in tiers:
            sizes = [stop - start for start, stop in tier.spans]
            if tier.tier.inside in NATIVE:
                stages += native_all_reduce(sizes, world_size, tier.tier.algorithm)
            elif tier.tier.inside == IN_HOST_MEMORY and sizes:
                stages.append(Exchange(schedule_in_host_memory(tier, world_size), sum(sizes)))
        return stages
