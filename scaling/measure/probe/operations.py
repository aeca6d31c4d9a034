"""The operations of the probe on this rank, as functions that do one: copies, sums, messages.

Buffers are made once and reused; every page of one is written before it is read, since untouched pages of
host memory are all the same one. They hold zeros, so that sums stay where they are; matrices that
are multiplied hold random numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scaling.measure.matrix_rate import product
from scaling.measure.probe.cases import ProbeCase, product_size
from scaling.process_group import Group, Message, PeerMemory

Run = Callable[[], object]


class Operations:
    """Makes them for the ranks of a group, each with a device of its own."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self._group, self._device = group, device
        self._buffers: dict[str, Tensor] = {}
        self._peer_memory: PeerMemory | None = None
        on_gpu = device.type == "cuda"
        self._side = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def prepare(self, case: ProbeCase, num_bytes: int) -> Run | None:
        """One operation of that size, not captured; None if this rank only waits. Called by every rank.

        Raises:
            LaunchError: peer memory, or MPI, cannot be had.
            RuntimeError: memory is short.
        """
        if case.operation in ("peer_copy", "peer_shift"):
            return self._peer(case, num_bytes)
        if self._group.rank not in case.ranks:
            return None
        name = case.operation
        if (size := product_size(name, num_bytes)) is not None:
            return product(name.removeprefix("product_"), size, self._device)
        if name in ("h2d", "d2h"):
            return self._copy(name, case.memory, num_bytes)
        if name == "h2d_d2h":
            return self._copies_both_ways(num_bytes)
        if name in ("host_copy", "device_copy", "host_sum", "device_sum"):
            source, target = self._pair_in_one_memory(name, num_bytes)
            if name.endswith("copy"):
                return lambda: target.copy_(source)
            return lambda: target.add_(source)
        if name == "all_reduce":
            buffer = self._buffer("device", num_bytes)
            return lambda: self._group.all_reduce(buffer)
        if name == "mpi_all_reduce":
            over_mpi = self._group.over("mpi")
            on_host = self._buffer(f"{case.memory}_mpi", num_bytes)
            return lambda: over_mpi.all_reduce(on_host)
        return self._messages(case, num_bytes)

    def _copy(self, name: str, memory: str, num_bytes: int) -> Run:
        host = self._buffer(f"{memory}_{name}", num_bytes)
        device = self._buffer(f"device_{name}", num_bytes)
        source, target = (host, device) if name == "h2d" else (device, host)
        # Pageable memory the driver copies piece by piece, while the caller waits.
        return lambda: target.copy_(source, non_blocking=memory == "pinned")

    def _copies_both_ways(self, num_bytes: int) -> Run:
        down, up = (self._copy(name, "pinned", num_bytes) for name in ("h2d", "d2h"))
        side = self._side
        assert side is not None

        def both() -> None:
            side.wait_stream(torch.cuda.current_stream())
            up()
            with torch.cuda.stream(side):
                down()
            torch.cuda.current_stream().wait_stream(side)

        return both

    def _pair_in_one_memory(self, name: str, num_bytes: int) -> tuple[Tensor, Tensor]:
        where = name.partition("_")[0]
        return self._buffer(where, num_bytes), self._buffer(f"{where}_other", num_bytes)

    def _messages(self, case: ProbeCase, num_bytes: int) -> Run:
        group, rank = self._group, self._group.rank
        out, into = self._buffer("device", num_bytes), self._buffer("device_other", num_bytes)
        place = case.ranks.index(rank)
        after, before = (case.ranks[(place + step) % len(case.ranks)] for step in (1, -1))
        sends = [] if case.operation == "send" and place == 1 else [Message(after, out)]
        receives = [] if case.operation == "send" and place == 0 else [Message(before, into)]
        return lambda: group.exchange(sends, receives)

    def _peer(self, case: ProbeCase, num_bytes: int) -> Run | None:
        if self._peer_memory is None:
            num_elements = max(case.sizes_bytes) // 4
            self._peer_memory = self._group.peer_memory(num_elements, torch.float32, self._device)
        if self._group.rank not in case.ranks:
            return None
        place = case.ranks.index(self._group.rank)
        if case.operation == "peer_copy" and place == 1:
            return None
        peer = case.ranks[(place + 1) % len(case.ranks)]
        source = self._peer_memory.local[: num_bytes // 4]
        target = self._peer_memory.of(peer)[: num_bytes // 4]
        return lambda: target.copy_(source)

    @staticmethod
    def captured(run: Run) -> Run:
        """The operation as a CUDA graph. Called by the ranks that take part, once all of them are prepared.

        Raises:
            RuntimeError: it cannot be captured.
        """
        run()  # libraries set themselves up on first use, which cannot be captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Only this thread is kept from other CUDA calls: NCCL's own asks its events at any time.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
        torch.cuda.synchronize()
        return graph.replay

    def _buffer(self, name: str, num_bytes: int) -> Tensor:
        """The first bytes of the buffer of that name; those called device are where the ranks compute."""
        if name not in self._buffers or self._buffers[name].nbytes < num_bytes:
            self._buffers.pop(name, None)
            device = self._device if name.startswith("device") else torch.device("cpu")
            pinned = name.startswith("pinned")
            empty = torch.empty(num_bytes // 4, dtype=torch.float32, device=device, pin_memory=pinned)
            self._buffers[name] = empty.zero_()
        return self._buffers[name][: num_bytes // 4]
