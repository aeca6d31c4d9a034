"""Control arms: the same step without any exchange.

What the exchange costs is the difference to such an arm. Its replicas drift apart, each following its own
part of the data, so it is never a convergence result.

Steps: none. Bytes sent per rank: 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, DdpPath, PhaseMarker, unmarked
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.collectives.plan import Stage, Update
from scaling.process_group import Group


@dataclass(frozen=True)
class NoExchange(Aggregator[AggregatorState]):
    """Control arm without exchange: every rank keeps its own gradient. Overlapped steps have no DDP."""

    name = "none"
    exchanges = False
    modifies_input = True  # returns the very buffer
    overlaps = True
    graph_capturable = True

    def ddp_path(self) -> DdpPath:
        return "bare"

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> AggregatorState:
        return AggregatorState(group, layout)

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        return 0

    def aggregate(self, state: AggregatorState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        return gradient

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        return [Update("replica", layout.num_elements)]


@dataclass(frozen=True)
class NoOp(NoExchange):
    """Control arm of the overlapped step: DDP runs, but exchanges nothing.

    Attributes:
        path: that of the arm which it controls: "own", DDP's own path (`all_reduce`), here in a group of each
            rank alone; "hook", a communication hook in Python (every other aggregator), here one that returns
            the bucket.
    """

    name = "no_op"
    overlapped_only = True
    graph_capturable = False

    path: Literal["own", "hook"] = "own"

    def ddp_path(self) -> DdpPath:
        return self.path
