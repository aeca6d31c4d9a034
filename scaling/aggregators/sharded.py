"""Sharded data parallelism, by this project and by torch: each rank keeps and steps a shard alone.

The bucket is cut into n shards of ceil(N / n) elements; rank r owns shard r. The library's reduce-scatter
gives each rank the sum of the gradients of its shard; it takes the optimizer's step there, and the library's
all-gather brings the new parameters to all ranks.

`zero1` shards the optimizer's state. `zero2` shards the gradients too: each bucket is exchanged under the
backward pass, and its gradients are released at once; so it has no eager step.

Steps and messages of both: the library's affair. Bytes sent per rank: 2(n-1) ceil(N / n) elements, as much as
an all-reduce; half of them are parameters. Error: float summation in the library's order; all ranks get the
same bits.

`zero_redundancy_optimizer`: DDP, and torch's ZeroRedundancyOptimizer. Each tensor's optimizer state is on
one rank, which steps it and broadcasts the parameters; the tensors go by size, the largest first, to the rank
that has least. Bytes sent per rank that owns o: an all-reduce's 2(n-1)/n S, and (n-1) o.

`fsdp2`: torch's fully_shard. Each rank keeps a shard of every parameter, its gradient and optimizer state.
1. An all-gather brings a block's parameters together before its forward pass, and again before its backward
   pass if they were released in between.
2. A reduce-scatter leaves each rank the mean of its shard's gradient, which it steps.
Bytes sent per rank: 3(n-1)/n S, or 2(n-1)/n S where parameters stay. With `reshard_after_forward: g`
(hierarchical FSDP) each group of g neighbouring ranks keeps a block's parameters between the passes, and the
second all-gather is within the group: (g-1)/g S in place of (n-1)/n S.

`hsdp`: the same within groups of neighbouring ranks, as the GPUs of a host, each of which has all parameters
(hybrid sharding). Behind the reduce-scatter comes an all-reduce between the groups. With s ranks a group and
r groups a rank sends 3(s-1)/s S within its group, and 2(r-1)/r S/s to the others.

The mean of torch's three is that of the library's all-reduce. Only the overlapped step runs them, by torch's
classes.

References: S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
arXiv 1910.02054 (P_os and P_os+g); torch/distributed/optim/zero_redundancy_optimizer.py; Y. Zhao et al.,
"PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", arXiv 2304.11277;
torch/distributed/fsdp/_fully_shard. Where `zero1` and `zero2` differ: parameters and gradients have the
model's dtype; DeepSpeed's are 16-bit, with float32 copies at the owner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, DdpPath, PhaseMarker, unmarked
from scaling.aggregators.native import AllReduce
from scaling.aggregators.prediction import (
    all_reduces_in_groups,
    halves_in_groups,
    native_all_reduce,
    native_halves,
    stepped_by_owners,
)
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout, Span
from scaling.collectives.owners import sharded_owners
from scaling.collectives.plan import Stage, Update
from scaling.collectives.ring import ring
from scaling.errors import StudyError
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
        start, stop = (min(at * shard, num_elements) for at in (state.group.rank, state.group.rank + 1))
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


@dataclass(frozen=True)
class _BySteps(AllReduce):
    """Base of those that are a step of torch's, which meters what it sends."""

    overlapped_only = True
    graph_capturable = False

    @final
    def wire_bytes(  # type: ignore[override]
        self, layout: BucketLayout, world_size: int, rank: int, itemsize: int
    ) -> None:
        """Not of an exchange alone."""


@final
@dataclass(frozen=True)
class ZeroRedundancy(_BySteps):
    """DDP with torch's ZeroRedundancyOptimizer."""

    name = "zero_redundancy_optimizer"
    shards_optimizer = True

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n, sizes = layout.num_elements, [math.prod(shape) for shape in layout.shapes]
        if world_size == 1 or not sizes:
            return [Update("replica", n)]
        _, update, distribution = stepped_by_owners(sharded_owners(world_size, sizes), n, world_size)
        return [*native_all_reduce([n], world_size, self.name), update, distribution]


@final
@dataclass(frozen=True)
class Fsdp2(_BySteps):
    """torch's fully_shard, a block of layers at a time.

    `reshard_after_forward`: who keeps a block's parameters between the passes. True: all ranks together;
    False: each; a number: each group of so many neighbouring ranks, as the GPUs of a host."""

    name = "fsdp2"
    reshard_after_forward: bool | int = True

    def __post_init__(self) -> None:
        if self.reshard_after_forward < 2 and not isinstance(self.reshard_after_forward, bool):
            raise StudyError(
                f"aggregator fsdp2: reshard_after_forward is {self.reshard_after_forward}; as a number of "
                "ranks it is at least 2; false keeps all parameters on each rank"
            )

    def require_size(self, world_size: int) -> None:
        """Groups are of equal size; fewer ranks than a group has are one."""
        ranks = self.reshard_after_forward
        if not isinstance(ranks, bool) and world_size > ranks and world_size % ranks:
            raise StudyError(
                f"aggregator fsdp2: reshard_after_forward is {ranks}, and {world_size} ranks are no groups "
                f"of {ranks}; use a divisor of {world_size}, or true"
            )

    def ddp_path(self) -> DdpPath:
        return "fully_sharded"

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        """As if all layers were in blocks: gathered before each pass, and the halves of a ring."""
        n, kept_by = layout.num_elements, self.reshard_after_forward
        if world_size == 1:
            return [Update("replica", n)]
        self.require_size(world_size)
        reduction, update, gathering = native_halves(n, world_size)
        if isinstance(kept_by, bool) or kept_by >= world_size:
            return [reduction, update, gathering, *([gathering] if kept_by else [])]
        groups = [range(first, first + kept_by) for first in range(0, world_size, kept_by)]
        return [reduction, update, gathering, halves_in_groups(n, groups)[1]]


@final
@dataclass(frozen=True)
class Hsdp(_BySteps):
    """torch's fully_shard on a mesh: sharded within groups of ranks, replicated between them.

    `shard_ranks`: neighbouring ranks that share a replica, as the GPUs of a host; of these and the world size
    the greatest common divisor is taken."""

    name = "hsdp"
    reshard_after_forward: bool = True
    shard_ranks: int = 8

    def __post_init__(self) -> None:
        if self.shard_ranks < 1:
            raise StudyError(f"aggregator hsdp: shard_ranks is {self.shard_ranks}; it is at least 1")

    def ddp_path(self) -> DdpPath:
        return "fully_sharded"

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        """Those of `fsdp2` in each group, with all-reduces between the groups before the step."""
        n, num_shards = layout.num_elements, math.gcd(self.shard_ranks, world_size)
        if num_shards == 1 < world_size:
            return [*native_all_reduce([n], world_size, "all-reduce"), Update("replica", n)]
        if world_size == 1:
            return [Update("replica", n)]
        shard, replicas = -(-n // num_shards), [range(k, world_size, num_shards) for k in range(num_shards)]
        groups = [range(first, first + num_shards) for first in range(0, world_size, num_shards)]
        reduction, gathering = halves_in_groups(n, groups)
        between = [all_reduces_in_groups(shard, replicas)] if len(groups) > 1 else []
        update = Update("owner", n, owner_elements=(shard,) * world_size)
        gathers = [gathering] * (1 + self.reshard_after_forward)
        return [reduction, *between, update, *gathers]
