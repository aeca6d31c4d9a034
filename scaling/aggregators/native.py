"""The communication library's own all-reduce: NCCL between GPUs, Gloo between CPU processes.

What most users run today. The library picks algorithm and protocol by size and topology.

Steps and messages: the library's affair. Bytes sent per rank: at least 2(n-1)/n S, which is what is metered.
Error: float summation in the library's order; NCCL and Gloo give every rank the same bits.

Reference: nccl-tests, doc/PERFORMANCE.md (the 2(n-1)/n factor).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, DdpPath, PhaseMarker, unmarked
from scaling.aggregators.prediction import native_all_reduce
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.collectives.plan import Stage, Update
from scaling.process_group import Group


@dataclass(frozen=True)
class AllReduce(Aggregator[AggregatorState]):
    """The communication library's all-reduce (NCCL or Gloo), in place on the flat gradient."""

    name = "all_reduce"
    modifies_input = True
    overlaps = True
    graph_capturable = True

    def ddp_path(self) -> DdpPath:
        """What users of DDP run; a subclass with an `aggregate` of its own runs as a hook."""
        return "own" if type(self).aggregate is AllReduce.aggregate else "hook"

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> AggregatorState:
        return AggregatorState(group, layout)

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        return layout.num_elements * itemsize * 2 * (world_size - 1) // world_size

    def aggregate(self, state: AggregatorState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        if state.group.world_size > 1:
            with phase("communicate"):
                state.group.all_reduce(gradient)
            with phase("reduce"):
                gradient.div_(state.group.world_size)
        return gradient

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n = layout.num_elements
        return [*native_all_reduce([n], world_size, self.name), Update("replica", n)]
