"""Aggregation in host memory, as the systems before collective libraries did it.

Every rank copies its gradient into its slot of a buffer that all ranks of the host share (registered with the
CUDA driver where there is a GPU), and the sum is taken by the CPU. Between the steps stands a barrier
(`wait`).

`host_serial` (TensorFlow's parameter device on the CPU):
1. every rank: gradient to its slot (`d2h`);
2. rank 0, one thread: mean of the slots in rank order (`reduce`), optimizer step on the host's parameters;
3. every rank: parameters back (`h2d_result`, by the update site).

`host_parallel` (Torch on the CPU, MXNet's local store):
1. every rank: gradient to its slot (`d2h`);
2. every rank, its own threads: mean of the slots over its 1/n of the elements (`reduce`);
3. every rank: the whole mean back (`h2d_result`).

Bytes moved per rank: S to the host and S back; metered is the S that goes to the host. Error: one order of
summation, so the ranks agree bit for bit.

References: M. Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems",
arXiv 1603.04467 (2016); S. Shi, Q. Wang, P. Xu, X. Chu, "Benchmarking State-of-the-Art Deep Learning Software
Tools", arXiv 1608.07249v7 (2017). The copies here use one shared buffer and run without pipelining.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, AggregatorState, PhaseMarker, unmarked
from scaling.bucket import BucketLayout
from scaling.collectives.schedule import chunk_bounds
from scaling.process_group import Group


@dataclass
class HostState(AggregatorState):
    """The shared slots, one gradient a rank, and where the mean goes."""

    slots: Tensor  # [world_size, num_elements], shared by the ranks
    mean: Tensor  # [num_elements]: rank 0's own (serial) or shared (parallel)
    result: Tensor  # [num_elements] on the device (parallel only; empty otherwise)


def _to_slot(state: HostState, gradient: Tensor, phase: PhaseMarker) -> None:
    """Copies the gradient to this rank's slot and waits until all ranks have."""
    group = state.group
    with phase("d2h"):
        state.slots[group.rank].copy_(gradient, non_blocking=True)
        if gradient.is_cuda:
            torch.cuda.current_stream().synchronize()  # the CPU is about to read it
        group.meter.count(gradient.nbytes)
    with phase("wait"):
        group.barrier()


def _mean_of_slots(slots: Tensor, out: Tensor) -> None:
    """Mean over the first axis into `out`, adding in rank order."""
    torch.add(slots[0], slots[1], out=out)
    for slot in slots[2:]:
        out.add_(slot)
    out.div_(slots.shape[0])


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes on the CPU with one thread: what is serial in the systems is serial here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _shared(
    group: Group, rows: int, layout: BucketLayout, dtype: torch.dtype, device: torch.device
) -> Tensor:
    num_bytes = rows * layout.num_elements * dtype.itemsize
    buffer = group.shared_host_buffer(num_bytes, register=device.type == "cuda")
    return buffer.view(dtype).view(rows, layout.num_elements)


@dataclass(frozen=True)
class HostSerial(Aggregator[HostState]):
    """Every gradient to the host; one thread sums and takes the optimizer step; parameters go back."""

    name = "host_serial"
    update_site = "host"

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> HostState:
        """Maps one slot a rank."""
        slots = _shared(group, group.world_size, layout, dtype, device)
        mean = torch.empty(layout.num_elements if group.rank == 0 else 0, dtype=dtype)
        return HostState(group, layout, slots, mean, torch.empty(0, dtype=dtype))

    def aggregate(self, state: HostState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor | None:
        """Returns the mean in host memory on rank 0, None elsewhere."""
        _to_slot(state, gradient, phase)
        if state.group.rank != 0:
            return None
        if state.group.world_size == 1:
            return state.slots[0]
        with phase("reduce"), one_thread():
            _mean_of_slots(state.slots, state.mean)
        return state.mean


@dataclass(frozen=True)
class HostParallel(Aggregator[HostState]):
    """Every gradient to the host; each rank sums its share of the elements; the mean goes back to all."""

    name = "host_parallel"

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> HostState:
        """Maps one slot a rank and one for the mean."""
        shared = _shared(group, group.world_size + 1, layout, dtype, device)
        result = torch.empty(layout.num_elements, dtype=dtype, device=device)
        return HostState(group, layout, shared[:-1], shared[-1], result)

    def aggregate(self, state: HostState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """Returns the mean on the gradient's device on every rank."""
        group = state.group
        _to_slot(state, gradient, phase)
        if group.world_size == 1:
            mean = state.slots[0]
        else:
            mean = state.mean
            bounds = chunk_bounds(state.layout.num_elements, group.world_size)
            start, stop = bounds[group.rank], bounds[group.rank + 1]
            with phase("reduce"):
                _mean_of_slots(state.slots[:, start:stop], mean[start:stop])
            with phase("wait"):
                group.barrier()
        with phase("h2d_result"):
            # Not waited for: a rank writes its slot again only behind its own stream, and the next barrier
            # stands between that and anybody's next sum.
            state.result.copy_(mean, non_blocking=True)
        return state.result
