"""Sharded data parallelism: each rank keeps the optimizer's state of a shard, and steps that shard alone.

The bucket is cut into n shards of ceil(N / n) elements; rank r owns shard r. The library's reduce-scatter
gives each rank the sum of the gradients of its shard; it takes the optimizer's step there, and the library's
all-gather brings the new parameters to all ranks.

`zero1` shards the optimizer's state. `zero2` shards the gradients too: each bucket is exchanged under the
backward pass, and its gradients are released at once; so it has no eager step.

Steps and messages: the library's affair. Bytes sent per rank: 2(n-1) ceil(N / n) elements, as much as an
all-reduce; half of them are parameters. Error: float summation in the library's order; all ranks get the same
bits.

Reference: S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
arXiv 1910.02054 (P_os and P_os+g). Where we differ: parameters and gradients have the model's dtype;
DeepSpeed's are 16-bit, with float32 copies at the owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, DdpPath, PhaseMarker, unmarked
from scaling.aggregators.prediction import stepped_by_owners
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout, Span
from scaling.collectives.plan import Stage, Update
from scaling.collectives.ring import ring
from scaling.process_group import Group


@dataclass
class ShardedState(AggregatorState):
    """Buffers for whole shards, where the step puts gradients and parameters into them. `gradients`,
    `parameters`: [world_size * shard elements] the first N of them are the bucket's; None where the step has
    memory of its own."""

    dtype: torch.dtype
    device: torch.device
    gradients: Tensor | None = None
    parameters: Tensor | None = None

    @property
    def gradient_buffer(self) -> Tensor:
        """The bucket's part of `gradients`, made here: nothing is copied before the exchange then."""
        self.gradients = self._made(self.gradients)
        return self.gradients[: self.layout.num_elements]

    @property
    def parameter_buffer(self) -> Tensor:
        self.parameters = self._made(self.parameters)
        return self.parameters[: self.layout.num_elements]

    def _made(self, buffer: Tensor | None) -> Tensor:
        size = _padded(self.layout.num_elements, self.group.world_size)
        return torch.zeros(size, dtype=self.dtype, device=self.device) if buffer is None else buffer

    def whole_shards(self, flat: Tensor, buffer: Tensor | None) -> Tensor:
        """`flat` with its last shard filled up: its own memory where that has room, else a copy."""
        size = _padded(self.layout.num_elements, self.group.world_size)
        if buffer is not None and buffer.data_ptr() == flat.data_ptr():
            return buffer
        if flat.numel() == size and flat.is_contiguous():
            return flat
        padded = flat.new_zeros(size)
        padded[: flat.numel()] = flat
        return padded


@dataclass(frozen=True)
class Zero1(Aggregator[ShardedState]):
    """The optimizer's state is sharded: reduce-scatter, each owner's step, all-gather."""

    name = "zero1"
    update_site = "owner"
    modifies_input = True
    overlaps = True
    graph_capturable = True

    def ddp_path(self) -> DdpPath:
        """Layer by layer, without DDP, whose hooks have to leave the mean on every rank."""
        return "layered"

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> ShardedState:
        return ShardedState(group, layout, dtype, device)

    def owned(self, state: ShardedState) -> list[Span]:
        num_elements, n = state.layout.num_elements, state.group.world_size
        shard = _padded(num_elements, n) // n
        start, stop = (
            min(number * shard, num_elements) for number in (state.group.rank, state.group.rank + 1)
        )
        return [(start, stop)] if stop > start else []

    def aggregate(
        self, state: ShardedState, gradient: Tensor, phase: PhaseMarker = unmarked
    ) -> Tensor | None:
        """The mean in this rank's shard, in place where the gradient has room for whole shards."""
        if state.group.world_size > 1 and gradient.numel():
            with phase("communicate"):
                padded = state.whole_shards(gradient, state.gradients)
                shard = state.group.reduce_scatter(padded)
            with phase("reduce"):
                shard.div_(state.group.world_size)
            gradient = padded[: gradient.numel()]
        return gradient if self.owned(state) else None

    def distribute(self, state: ShardedState, parameters: Tensor, phase: PhaseMarker = unmarked) -> None:
        if state.group.world_size > 1 and parameters.numel():
            with phase("communicate"), torch.no_grad():
                padded = state.whole_shards(parameters, state.parameters)
                state.group.all_gather(padded)
                if padded.data_ptr() != parameters.data_ptr():
                    parameters.copy_(padded[: parameters.numel()])

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        shard = _padded(layout.num_elements, world_size) // world_size
        return 2 * (world_size - 1) * shard * itemsize

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n = layout.num_elements
        if world_size == 1:
            return [Update("replica", n)]
        return stepped_by_owners(ring(world_size), _padded(n, world_size), world_size)


@final
@dataclass(frozen=True)
class Zero2(Zero1):
    """As zero1, and gradients are sharded: freed during the backward pass once their bucket is exchanged."""

    name = "zero2"
    releases_gradients = True


def _padded(num_elements: int, world_size: int) -> int:
    return -(-num_elements // world_size) * world_size
