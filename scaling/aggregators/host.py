"""Aggregation in host memory, as the systems before collective libraries did it.

Every rank copies its gradient into a buffer that all ranks of the host share (registered with the CUDA driver
where there is a GPU), and the CPU sums (`scaling.collectives.host_staging`, run by
`scaling.collectives.execute_host`). Cut into chunks, the copies up, the sums and the copies back overlap;
phases then say what a rank waits for.

- `host_serial` (TensorFlow's parameter device on the CPU): gradients to the host (`d2h`); rank 0, one thread:
  mean in rank order (`reduce`), optimizer step on the host's parameters; parameters back (`h2d_result`, by
  the update site).
- `host_parallel` (Torch on the CPU, MXNet's local store): gradients to the host (`d2h`); every rank, its own
  threads: mean over its 1/n of the elements (`reduce`); the whole mean back (`h2d_result`).

Bytes copied per rank: S to the host and S back. Error: one order of summation, so the ranks agree bit for
bit.

References: M. Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems",
arXiv 1603.04467 (2016); S. Shi, Q. Wang, P. Xu, X. Chu, "Benchmarking State-of-the-Art Deep Learning Software
Tools", arXiv 1608.07249v7 (2017). None of the systems pipelines: `num_chunks: 1` does as they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, Stated, unmarked
from scaling.aggregators.prediction import stepped_on_host, sums_alone
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.collectives.execute_host import NUM_SLOTS, HostExecution
from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.plan import CodecWork, Exchange, Stage, Update
from scaling.collectives.schedule import Schedule
from scaling.process_group import Group, HostCounters

MAX_CHUNK_BYTES, MIN_CHUNK_BYTES = 28 << 20, 4 << 20
MIN_CHUNKS = 4
MAX_RING_BYTES = 280 << 20
"""On four H200 GPUs over PCIe 5, with 64 cores and 300 MiB of cache, 28 MiB were fastest: with smaller chunks
ranks wait more often for one another, larger ones make a ring that leaves the cache. A ring has a row a rank
and one for the sums in each slot."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, torch computes on the CPU with that many threads: what is serial in a system is serial here."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


S = TypeVar("S", bound=AggregatorState)


@dataclass(frozen=True)
class OnHost(Stated[S], Generic[S]):
    """Base of those that copy gradients to host memory, and what comes of them back."""

    one_host = True

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        return 2 * layout.num_elements * itemsize


class HostState(AggregatorState):
    def __init__(
        self, of: _Pipelined, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(group, layout)
        n, world_size, stays = layout.num_elements, group.world_size, of.update_site == "host_serial"
        self.execution = HostExecution(
            of.schedule(n * dtype.itemsize, world_size),
            group,
            n,
            dtype,
            device,
            num_summing=1 if stays else world_size,
            divisor=world_size if stays or device.type != "cuda" else 1,  # a GPU divides faster than the host
            keep_sums=stays,
        )
        # On the device; None where the mean stays on the host.
        self.result = None if stays else torch.empty(n, dtype=dtype, device=device)


@dataclass(frozen=True)
class _Pipelined(OnHost[HostState]):
    state_class = HostState
    collective: ClassVar[Callable[..., Schedule]]

    num_chunks: PositiveInt | None = None

    def schedule(self, num_bytes: int, world_size: int) -> Schedule:
        most = min(MAX_CHUNK_BYTES, MAX_RING_BYTES // (NUM_SLOTS * (world_size + 1)))
        chunk_bytes = min(most, max(MIN_CHUNK_BYTES, num_bytes // MIN_CHUNKS))
        num_chunks = self.num_chunks or max(1, num_bytes // chunk_bytes)
        return type(self).collective(world_size, num_chunks=num_chunks)


@dataclass(frozen=True)
class HostSerial(_Pipelined):
    """Gradients go to the host, where one thread sums them and takes the optimizer step; parameters go back.

    `num_chunks`: parts whose copies and sums overlap; None: as many as suit its size."""

    name = "host_serial"
    update_site = "host_serial"
    collective = staticmethod(host_serial)

    def aggregate(self, state: HostState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor | None:
        with threads(1):
            state.execution.run(gradient, None, phase)
        return state.execution.sums if state.group.rank == 0 else None

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n = layout.num_elements
        schedule = self.schedule(4 * n, world_size)
        mean = [CodecWork("mean", 4.0 * n, where="host", by_all=False)] if world_size > 1 else []
        return [Exchange(sums_alone(schedule), n), *mean, *stepped_on_host(n, world_size, num_threads=1)]


@dataclass(frozen=True)
class HostParallel(_Pipelined):
    """Gradients go to the host; each rank sums its share of the elements there; the mean goes back to all.

    `num_chunks`: parts whose copies and sums overlap; None: as many as suit its size."""

    name = "host_parallel"
    collective = staticmethod(host_parallel)

    def aggregate(self, state: HostState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        assert state.result is not None
        state.execution.run(gradient, state.result, phase)
        if gradient.is_cuda:
            with phase("reduce"):
                state.result.div_(state.group.world_size)
        return state.result

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n = layout.num_elements
        return [Exchange(self.schedule(4 * n, world_size), n), Update("replica", n)]


class HostRows:
    """The ranks' gradients side by side in host memory, tensor by tensor, for one rank to make the mean of.
    Collective.

    What a system does whose parameters live on the CPU: nothing is cut and nothing is pipelined. Every rank
    copies its gradient into its row, one copy a tensor (`d2h`), all ranks at the same time. When all rows are
    there, rank 0 makes the result of them; when it has, the ranks may read it, and write their rows again.

    `spans`: the elements of each tensor that has any. `rows`: [world_size, num_elements] in host memory; row
    r is rank r's gradient. LaunchError: the ranks are on several hosts, or shared memory is too small.
    """

    def __init__(self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device) -> None:
        n, num_elements = group.world_size, layout.num_elements
        self._is_cuda = device.type == "cuda"
        shared = group.shared_host_buffer((n + 1) * num_elements * dtype.itemsize, register=self._is_cuda)
        rows = shared.view(dtype).view(n + 1, num_elements)
        self.spans = [(start, stop) for start, stop in layout.spans if start < stop]
        self.rows, self.result = rows[:n], rows[n]
        self._group = group
        self._counters = HostCounters(group)

    def bring_up(self, gradient: Tensor, phase: PhaseMarker) -> None:
        row = self.rows[self._group.rank]
        with phase("d2h"):
            for start, stop in self.spans:
                row[start:stop].copy_(gradient[start:stop], non_blocking=True)
            if self._is_cuda:
                # Also for copies from `result` of the step before: rank 0 may write it again after this.
                torch.cuda.current_stream().synchronize()
        self._group.meter.count(gradient.nbytes, len(self.spans))
        self.meet(phase)

    def meet(self, phase: PhaseMarker) -> None:
        """Returns when every rank has called it: what was written to the host before is seen then."""
        with phase("wait"):
            self._counters.meet()
