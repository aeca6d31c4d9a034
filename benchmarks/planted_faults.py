"""Aggregators with planted faults: does the budget find them?

    PYTHONPATH=benchmarks scaling run benchmarks/planted-faults.yaml

They are all_reduce with one fault each. What should be seen: a slow rank as waiting of the others and as
skew; a synchronize in the step as lost overlap; a pageable input as time for the copy (no aggregator: an
axis).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from scaling.aggregators.base import DdpPath, PhaseMarker, unmarked
from scaling.aggregators.native import AllReduce
from scaling.aggregators.state import AggregatorState


@dataclass(frozen=True)
class Hooked(AllReduce):
    """all_reduce as a communication hook in Python: what the faults are to be compared with."""

    name = "hooked"

    def ddp_path(self) -> DdpPath:
        """Not DDP's own path, which would leave the faults out."""
        return "hook"


@dataclass(frozen=True)
class SlowRank(Hooked):
    """One rank comes late to every exchange.

    Attributes:
        rank: which one.
        seconds: by how much.
    """

    name = "slow_rank"
    graph_capturable = False

    rank: int = 1
    seconds: float = 2e-3

    def aggregate(self, state: AggregatorState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """Waits for the own work, so that the sleep is not hidden by it, and sleeps."""
        if state.group.rank == self.rank % state.group.world_size:
            if gradient.is_cuda:
                torch.cuda.current_stream().synchronize()
            time.sleep(self.seconds)
        return super().aggregate(state, gradient, phase)


@dataclass(frozen=True)
class Synchronizes(Hooked):
    """Each exchange is waited for on the host before the backward pass may go on."""

    name = "synchronizes"
    graph_capturable = False

    def aggregate(self, state: AggregatorState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """As all_reduce; then the device is waited for."""
        result = super().aggregate(state, gradient, phase)
        if gradient.is_cuda:
            torch.cuda.synchronize()
        return result
