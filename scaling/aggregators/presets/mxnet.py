"""MXNet's key-value stores on one machine: tensors at owners on the GPUs, on trees of GPUs, or on the CPU.

`mxnet_device` (kvstore "device", which the paper's benchmark code uses): tensors have owners, by size,
largest first, each the GPU that owns least so far. All GPUs copy the tensor to its owner, which sums, takes
the step, and copies the parameters to all. Steps: 2. Bytes sent by a rank that owns o bytes: S - o, then
(n-1) o. One tensor can decide it all: on FCN-R the second weight matrix is 59% of all bytes.

`mxnet_tree` (the same with MXNET_KVSTORE_USETREE=1): there is a binary tree of depth ceil(log2 n) for each
GPU as root, over the heaviest links (`scaling.collectives.mxnet_tree`). A tensor of more than 10 million
elements with at least 2n rows is cut by rows into n slices, of rows // n each and the last of what is left;
slice i goes up tree i. Any other goes up tree 0. The root takes the step; the parameters go down the tree.
Steps: 2 ceil(log2 n). Bytes sent: 2(n-1) S by all ranks together.

`mxnet_local` (kvstore "local"): every GPU copies its gradient to pinned host memory (`d2h`). The CPU sums
tensor by tensor: at most four addends join and then the buffer; with 4 threads a tensor of a million elements
or more, with one any smaller (`reduce`). The step is taken on the CPU, by one thread, and the parameters are
copied to all GPUs. But if a tensor has more than 16 Mi elements (2^24), the sums are copied to all GPUs, and
each takes the step. Bytes copied per rank: S to the host, one message a tensor, and S back.

All three deliver the sum, and the optimizer divides by the batch; ours deliver the mean. Error: one order of
summation, so the ranks agree bit for bit.

References: apache/mxnet, src/kvstore/comm.h (`CommDevice`, `CommCPU`), src/kvstore/comm_tree.h
(`CommDeviceTree`), src/kvstore/gpu_topology.h, python/mxnet/model.py (`_create_kvstore`: where the step is
taken), src/operator/mxnet_op.h (a build with CUDA has the optimizer's loop on the CPU in one thread).

MXNet pushes and pulls each tensor as soon as backward has it. So do `mxnet_device` and `mxnet_local` with
`step: overlapped`, where each tensor has the owner or the site that it has among all. With `step: eager` the
same comes behind the backward pass.

Differences. Of the tensors that are ready MXNet's engine prefers the first layers', and it begins the next
forward pass with the parameters that are there; here tensors go one after the other as they become ready, and
a step ends with all parameters in place. `mxnet_device`, `mxnet_tree`: with `step: eager` the tensors between
the same two ranks travel as one message; the owner's own gradient comes first in the sum, MXNet's sum is in
the order of the GPUs. `mxnet_tree`: eager alone; all links count the same; update_on_kvstore is set by
default, but MXNet's `Reduce` then hands the updater GPU 0's own gradient for a tensor that was cut, so that
such tensors train correctly there only where each GPU takes the step; ours takes it at each slice's root.
`mxnet_local`: with `step: eager` the CPU begins when all gradients are there; the four threads divide blocks
of 1 MiB, MXNet's take blocks of 4,096 elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, final

import torch
from pydantic import PositiveInt
from torch import Tensor

from scaling.aggregators.base import Aggregator, DdpPath, PhaseMarker, UpdateSite, unmarked
from scaling.aggregators.host import HostRows, OnHost, threads
from scaling.aggregators.prediction import copies_to_ranks, rows_to_host, stepped_on_host
from scaling.aggregators.schedule import Scheduled
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.collectives.composition import BufferPart, of_parts
from scaling.collectives.mxnet_tree import mxnet_tree
from scaling.collectives.owners import assign_owners, sharded_owners, shuffle
from scaling.collectives.plan import CodecWork, Stage, Update
from scaling.collectives.schedule import Schedule
from scaling.process_group import Group

TREE_ARRAY_BOUND = 10_000_000  # MXNET_KVSTORE_TREE_ARRAY_BOUND: larger ones take all trees
BIGARRAY_BOUND = 1_000_000  # MXNET_KVSTORE_BIGARRAY_BOUND: these and larger ones are summed in parallel
MAX_ELEMENTS_ON_HOST = 16 << 20  # model.py: with a larger parameter the step is taken on the GPUs
ADDENDS_PER_PASS = 4
BLOCK_BYTES = 1 << 20  # a block of the partial sum stays in the processor's cache


@final
@dataclass(frozen=True)
class MxnetDevice(Scheduled):
    """MXNet's kvstore "device": each tensor has an owner, a GPU that sums it and takes the optimizer step."""

    name = "mxnet_device"
    update_site = "owner"

    def schedule(self, world_size: int, layout: BucketLayout) -> Schedule:
        return sharded_owners(world_size, [math.prod(shape) for shape in layout.shapes])

    def ddp_path(self) -> DdpPath:
        return "by_tensor"

    def by_tensor(self, layout: BucketLayout, world_size: int) -> list[Aggregator[Any]]:
        owners = assign_owners([math.prod(shape) for shape in layout.shapes], world_size)
        return [_OwnedTensor(self.transport, self.captured, owner) for owner in owners]


@final
@dataclass(frozen=True)
class _OwnedTensor(Scheduled):
    name = "mxnet_device"
    update_site = "owner"
    owner: int = 0

    def schedule(self, world_size: int, layout: BucketLayout) -> Schedule:
        return shuffle(world_size, [self.owner])


@final
@dataclass(frozen=True)
class MxnetTree(Scheduled):
    """MXNet's trees: a large tensor is split over the trees of all ranks; others use the tree of rank 0."""

    name = "mxnet_tree"
    update_site = "owner"

    def schedule(self, world_size: int, layout: BucketLayout) -> Schedule:
        one_tree, all_trees = _trees(world_size)
        parts: list[BufferPart] = []
        for is_cut, shapes in groupby(layout.shapes, key=lambda shape: _is_cut(shape, world_size)):
            if is_cut:
                parts += [BufferPart(math.prod(s), _by_rows(all_trees, s)) for s in shapes]
            else:
                parts.append(BufferPart(sum(math.prod(shape) for shape in shapes), one_tree))
        return of_parts(self.name, world_size, parts)


@lru_cache(maxsize=8)
def _trees(world_size: int) -> tuple[Schedule, Schedule]:
    """That of rank 0, and those of all ranks: searched once, not for each bucket and rank."""
    return mxnet_tree(world_size, multi_root=False), mxnet_tree(world_size)


def _is_cut(shape: tuple[int, ...], world_size: int) -> bool:
    return world_size > 1 and math.prod(shape) > TREE_ARRAY_BOUND and shape[0] >= 2 * world_size


def _by_rows(schedule: Schedule, shape: tuple[int, ...]) -> Schedule:
    """The schedule over as many slices of rows as it has chunks; the last has those that are left."""
    slice_rows = shape[0] // schedule.num_chunks
    rows = [slice_rows] * (schedule.num_chunks - 1)
    rows.append(shape[0] - sum(rows))
    row_elements = math.prod(shape[1:])
    return replace(schedule, chunk_elements=tuple(count * row_elements for count in rows))


class LocalState(AggregatorState):
    def __init__(
        self, of: MxnetLocal, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(group, layout)
        self.host = HostRows(layout, group, dtype, device)
        on_device = of.site(layout) == "replica"
        self.mean = torch.empty(layout.num_elements, dtype=dtype, device=device) if on_device else None


@dataclass(frozen=True)
class MxnetLocal(OnHost[LocalState]):
    """MXNet's kvstore "local": the CPU sums and updates; the GPUs update if a tensor is very large.

    `num_threads`: that sum a tensor of a million elements or more (MXNET_KVSTORE_REDUCTION_NTHREADS)."""

    name = "mxnet_local"
    state_class = LocalState
    overlaps = True
    update_site = "host_serial"

    num_threads: PositiveInt = 4

    def ddp_path(self) -> DdpPath:
        return "by_tensor"

    def by_tensor(self, layout: BucketLayout, world_size: int) -> list[Aggregator[Any]]:
        """The largest tensor decides for all where the step is taken."""
        return [_LocalTensor(self.num_threads, self.site(layout)) for _ in layout.shapes]

    def site(self, layout: BucketLayout) -> UpdateSite:
        """On the CPU, or on every rank where a tensor has more than 16 Mi elements."""
        largest = max((math.prod(shape) for shape in layout.shapes), default=0)
        return "replica" if largest > MAX_ELEMENTS_ON_HOST else "host_serial"

    def aggregate(self, state: LocalState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor | None:
        host = state.host
        host.bring_up(gradient, phase)
        if state.group.rank == 0:
            with phase("reduce"):
                for start, stop in host.spans:
                    with threads(self.num_threads if stop - start >= BIGARRAY_BOUND else 1):
                        sum_in_passes([row[start:stop] for row in host.rows], host.result[start:stop])
                        host.result[start:stop].div_(state.group.world_size)
        host.meet(phase)
        if state.mean is None:
            return host.result if state.group.rank == 0 else None
        with phase("h2d_result"):
            state.mean.copy_(host.result, non_blocking=True)
        state.group.meter.count(state.mean.nbytes)
        return state.mean

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n = layout.num_elements
        sizes = [math.prod(shape) for shape in layout.shapes]
        large = sum(size for size in sizes if size >= BIGARRAY_BOUND)
        # Bytes moved: 2 to copy the first row, 2 to add another to a block in the cache, 1 to add what has
        # joined to the rest, 2 to divide.
        passes = -(-(world_size - 1) // ADDENDS_PER_PASS)
        one_of = (2 + 2 * (world_size - 1) + passes + 2) / world_size

        def summed(size: int, num_threads: int) -> Stage:
            return CodecWork(
                "sum", 4.0 * size * world_size, None, "host", one_of, num_threads=num_threads, by_all=False
            )

        reduced = [rows_to_host(n, world_size), summed(large, self.num_threads), summed(n - large, 1)]
        if self.site(layout) == "host_serial":
            return [*reduced, *stepped_on_host(n, world_size, num_threads=1)]
        return [*reduced, copies_to_ranks(n, world_size), Update("replica", n)]


@final
@dataclass(frozen=True)
class _LocalTensor(MxnetLocal):
    place: UpdateSite = "host_serial"

    def site(self, layout: BucketLayout) -> UpdateSite:
        return self.place


def sum_in_passes(rows: Sequence[Tensor], out: Tensor) -> None:
    """The sum of equally long flat tensors into `out`: up to four after the first join, then are added to
    what is there."""
    block = max(1, BLOCK_BYTES // out.itemsize)
    for start in range(0, out.numel(), block):
        total = out[start : start + block]
        first, *others = [row[start : start + block] for row in rows]
        total.copy_(first)
        for at in range(0, len(others), ADDENDS_PER_PASS):
            addends = others[at : at + ADDENDS_PER_PASS]
            joined = addends[0] if len(addends) == 1 else addends[0] + addends[1]
            for addend in addends[2:]:
                joined.add_(addend)
            total.add_(joined)
