"""The communication library's own all-reduce, NCCL between GPUs and Gloo between CPU processes, and control
arms.

What most users run today. The library picks algorithm and protocol by size and topology. Bytes sent per rank:
at least 2(n-1)/n S, which is what is metered (nccl-tests, doc/PERFORMANCE.md). Error: float summation in the
library's order; NCCL and Gloo give every rank the same bits.

A control arm takes the same step without any exchange: what the exchange costs is the difference to such an
arm. Its replicas drift apart, each following its own part of the data, so it is never a convergence result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, DdpPath, PhaseMarker, unmarked
from scaling.aggregators.prediction import native_all_reduce
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.collectives.plan import Stage, Update
from scaling.process_group import Group


@dataclass(frozen=True)
class _Stateless(Aggregator[AggregatorState]):
    modifies_input = True  # returns the very buffer
    overlaps = True
    graph_capturable = True

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> AggregatorState:
        return AggregatorState(group, layout)


@dataclass(frozen=True)
class NoExchange(_Stateless):
    """Control arm without exchange: every rank keeps its own gradient. Overlapped steps have no DDP."""

    name = "none"
    exchanges = False

    def ddp_path(self) -> DdpPath:
        return "bare"

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        return 0

    def aggregate(self, state: AggregatorState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        return gradient

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        return [Update("replica", layout.num_elements)]


@dataclass(frozen=True)
class NoOp(NoExchange):
    """Control arm of the overlapped step: DDP runs, but exchanges nothing.

    `path`: that of the arm which it controls: "own", DDP's own path (`all_reduce`), here in a group of each
    rank alone; "hook", a communication hook in Python (every other aggregator), here one that returns the
    bucket."""

    name = "no_op"
    overlapped_only = True
    graph_capturable = False

    path: Literal["own", "hook"] = "own"

    def ddp_path(self) -> DdpPath:
        return self.path


@dataclass(frozen=True)
class AllReduce(_Stateless):
    """The communication library's all-reduce (NCCL or Gloo), in place on the flat gradient."""

    name = "all_reduce"

    def ddp_path(self) -> DdpPath:
        """What users of DDP run; a subclass with an `aggregate` of its own runs as a hook."""
        return "own" if type(self).aggregate is AllReduce.aggregate else "hook"

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
