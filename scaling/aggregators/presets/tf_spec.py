"""TensorFlow's benchmarks again: each tensor is reduced by the algorithm for its size.

`tf_spec` (all_reduce_spec of tf_cnn_benchmarks):
1. A tensor is of the first tier of `spec` whose limit, in elements, it does not exceed; the grammar of `spec`
   is in `scaling.collectives.tf_spec`.
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

Reference: tensorflow/benchmarks, scripts/tf_cnn_benchmarks/allreduce.py (`sum_gradients_all_reduce`,
`group_device_names`) and variable_mgr.py (`VariableMgrDistributedAllReduce`);
tensorflow/python/distribute/v1/all_reduce.py. Differences: TensorFlow starts a tensor as soon as backward has
it; here the tiers between ranks come first, then `nccl`, then `pscpu`. On one node TensorFlow has one CPU
device, and refuses `pscpu#2`; here the pieces are summed by k of the ranks' processes. Pieces differ in size
by one element at most, TensorFlow pads them; an element of `psgpu` is summed from the owner's on, TensorFlow
adds in the order of the GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import torch
from pydantic import AfterValidator
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker, Span, unmarked
from scaling.aggregators.prediction import all_reduce_bytes, native_all_reduce, sent_elements
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.collectives import plan
from scaling.collectives.exchange import RankExchange, Transport
from scaling.collectives.execute_host import HostExecution
from scaling.collectives.tf_spec import (
    IN_HOST_MEMORY,
    NATIVE,
    TierTensors,
    parse_spec,
    schedule_between_ranks,
    schedule_in_host_memory,
    tensors_of_tiers,
)
from scaling.process_group import Group


@dataclass
class HostTier:
    spans: tuple[Span, ...]
    execution: HostExecution
    packed: Tensor
    sums: Tensor

    def reduce(self, gradient: Tensor, phase: PhaseMarker) -> None:
        tensors = [gradient[start:stop] for start, stop in self.spans]
        with phase("encode"):
            torch.cat(tensors, out=self.packed)
        self.execution.run(self.packed, self.sums, phase)
        with phase("decode"):
            at = 0
            for tensor in tensors:
                tensor.copy_(self.sums[at : at + tensor.numel()])
                at += tensor.numel()


@dataclass
class TfSpecState(AggregatorState):
    exchange: RankExchange | None
    native: list[Span]
    host: list[HostTier]
    tiers: list[TierTensors]

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
class TfSpec(Aggregator[TfSpecState]):
    """TensorFlow's all_reduce_spec: the size of a tensor decides which all-reduce algorithm is used.

    Attributes:
        spec: `algorithm[#shards]`, or several with limits in elements between them (2k is 2,048).
        transport: of the tiers between ranks, as for `ring`.
    """

    name = "tf_spec"
    modifies_input = True

    spec: Annotated[str, AfterValidator(_valid)] = "pscpu:2k:pscpu#2:64k:xring"
    transport: Transport = "auto"

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> TfSpecState:
        n = layout.num_elements
        tiers = tensors_of_tiers(parse_spec(self.spec), layout)
        schedule = schedule_between_ranks(tiers, n, group.world_size)
        return TfSpecState(
            group,
            layout,
            RankExchange(schedule, group, n, dtype, device, transport=self.transport) if schedule else None,
            [span for tier in tiers if tier.tier.inside in NATIVE for span in tier.spans],
            [
                _host_tier(tier, group, dtype, device)
                for tier in tiers
                if tier.tier.inside == IN_HOST_MEMORY and tier.spans
            ],
            tiers,
        )

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
        tiers = tensors_of_tiers(parse_spec(self.spec), layout)
        schedule = schedule_between_ranks(tiers, layout.num_elements, world_size)
        total = itemsize * sent_elements(schedule, layout.num_elements, rank) if schedule else 0
        for tier in tiers:
            sizes = [itemsize * (stop - start) for start, stop in tier.spans]
            if tier.tier.inside in NATIVE:
                total += all_reduce_bytes(sizes, world_size)
            elif tier.tier.inside == IN_HOST_MEMORY:
                total += 2 * sum(sizes)
        return total

    def stages(self, layout: BucketLayout, world_size: int) -> list[plan.Stage]:
        n = layout.num_elements
        if world_size == 1:
            return [plan.Update("replica", n)]
        stages: list[plan.Stage] = []
        tiers = tensors_of_tiers(parse_spec(self.spec), layout)
        schedule = schedule_between_ranks(tiers, n, world_size)
        stages += [plan.Exchange(schedule, n)] if schedule else []
        for tier in tiers:
            sizes = [stop - start for start, stop in tier.spans]
            if tier.tier.inside in NATIVE:
                stages += native_all_reduce(sizes, world_size, tier.tier.algorithm)
            elif tier.tier.inside == IN_HOST_MEMORY and sizes:
                stages.append(plan.Exchange(schedule_in_host_memory(tier, world_size), sum(sizes)))
        return [*stages, plan.Update("replica", n)]


def _host_tier(tensors: TierTensors, group: Group, dtype: torch.dtype, device: torch.device) -> HostTier:
    size = sum(stop - start for start, stop in tensors.spans)
    schedule = schedule_in_host_memory(tensors, group.world_size)
    shards = tensors.tier.inside_shards
    return HostTier(
        tensors.spans,
        HostExecution(schedule, group, size, dtype, device, num_summing=shards),
        torch.empty(size, dtype=dtype, device=device),
        torch.empty(size, dtype=dtype, device=device),
    )
