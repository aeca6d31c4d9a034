"""Aggregators that run one of our schedules over sends and receives, in place on the flat gradient.

Steps, messages and bytes are the schedule's (`scaling.collectives.ring`, `scaling.collectives.tree`). The
sums of a step are part of its phase `communicate`: they cannot start before the message is there, and the
next message cannot leave before they end.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, AggregatorState, PhaseMarker, unmarked
from scaling.bucket import BucketLayout
from scaling.collectives.execute import Execution
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule
from scaling.collectives.tree import tree
from scaling.process_group import Group


@dataclass
class ScheduledState(AggregatorState):
    """The schedule compiled for this rank, with its staging buffer."""

    execution: Execution


@dataclass(frozen=True)
class Scheduled(Aggregator[ScheduledState]):
    """Base of aggregators that are one schedule between ranks."""

    modifies_input = True

    @abstractmethod
    def schedule(self, world_size: int) -> Schedule:
        """The collective for that many ranks."""

    @final
    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> ScheduledState:
        """Compiles the schedule for this rank."""
        schedule = self.schedule(group.world_size)
        execution = Execution(schedule, group.rank, layout.num_elements, dtype, device)
        return ScheduledState(group, layout, execution)

    @final
    def aggregate(self, state: ScheduledState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """Runs the schedule, then divides by the world size."""
        if state.group.world_size > 1:
            with phase("communicate"):
                state.execution.run(gradient, state.group)
            with phase("reduce"):
                gradient.div_(state.group.world_size)
        return gradient


@final
@dataclass(frozen=True)
class Ring(Scheduled):
    """Ring all-reduce by sends and receives: 2(n-1) messages of S/n bytes a rank."""

    name = "ring"

    def schedule(self, world_size: int) -> Schedule:
        """The ring through the ranks in their order."""
        return ring(world_size)


@final
@dataclass(frozen=True)
class Tree(Scheduled):
    """Binomial-tree reduce to rank 0 and broadcast of the whole buffer: 2 ceil(log2 n) levels."""

    name = "tree"

    def schedule(self, world_size: int) -> Schedule:
        """The binomial tree rooted at rank 0."""
        return tree(world_size)
