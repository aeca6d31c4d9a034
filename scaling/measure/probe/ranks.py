"""The probe on one rank of a group: every rank goes through the same cases (`probe.cases`) in the same order.

Each size has one operation that sets up what the others use, then a few that tell how many a sample takes; in
a sample all ranks meet, and the slowest counts. Rank 0 hands out a row for each thing measured at once, so
that a launch that dies leaves what it has: `{"facts": ...}`, `{"sample": ...}`, `{"note": ...}`.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scaling.errors import LaunchError
from scaling.measure.clock import MonotonicClock, clock_for
from scaling.measure.matrix_rate import product
from scaling.measure.probe import cases as probe
from scaling.measure.probe.cases import BYTES_MOVED, ProbeCase, ProbeSample, product_size
from scaling.process_group import Group, Message, PeerMemory, TorchGroup
from scaling.process_group.delegated import library_version
from topologies.detect import memory_bytes

Run = Callable[[], object]


class Operations:
    def __init__(self, group: Group, device: torch.device) -> None:
        self._group, self._device = group, device
        self._buffers: dict[str, Tensor] = {}
        self._peer_memory: PeerMemory | None = None
        on_gpu = device.type == "cuda"
        self._side = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def prepare(self, case: ProbeCase, num_bytes: int) -> Run | None:
        """One operation of that size, not captured; None if this rank only waits. Called by every rank.
        Raises LaunchError: peer memory, or MPI, cannot be had; RuntimeError: memory is short."""
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
        if name in BYTES_MOVED:
            where, _, verb = name.partition("_")
            source, target = self._buffer(where, num_bytes), self._buffer(f"{where}_other", num_bytes)
            return partial(target.copy_ if verb == "copy" else target.add_, source)
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
        """Called by the ranks that take part, once all are prepared. RuntimeError: it cannot be captured."""
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


MEMORY_SHARE = 8
"""A buffer takes at most this part of the memory that is free: about as many of the largest are made."""
SHORTEST_S = 1e-9  # no clock here is finer
FALLBACK_BYTES = 4 << 30  # where the system does not tell

Write = Callable[[dict[str, Any]], None]


def facts(group: TorchGroup, device: torch.device, num_threads: int) -> dict[str, Any]:
    """Versions, and what each rank says of itself. Collective."""
    ranks = [group.share(_own_facts(device, group.world_size), rank) for rank in range(group.world_size)]
    nccl: Any = torch.cuda.nccl
    return {
        "torch": torch.__version__,
        "nccl": ".".join(map(str, nccl.version())) if device.type == "cuda" else None,
        "device": device.type,
        "host": platform.node(),
        "num_threads": num_threads,
        "ranks": ranks,
    }


def _own_facts(device: torch.device, world_size: int) -> dict[str, Any]:
    if device.type != "cuda":
        return {}
    properties: Any = torch.cuda.get_device_properties(device)
    here = min(world_size, torch.cuda.device_count())  # ranks of other nodes have no peers here
    others = [peer for peer in range(here) if peer != device.index]
    return {
        "name": properties.name,
        "uuid": str(getattr(properties, "uuid", "")),
        "peers": [peer for peer in others if torch.cuda.can_device_access_peer(device, peer)],
    }


class Prober:
    """Goes through the cases on this rank. `num_threads`: its CPU threads where a case does not say."""

    def __init__(
        self,
        group: TorchGroup,
        device: torch.device,
        num_threads: int,
        write: Write,
        *,
        host_only: bool,
        after_each: Callable[[], None] = lambda: None,
    ) -> None:
        self._group, self._device = group, device
        self._write = write if group.rank == 0 else lambda row: None
        self._num_threads, self._after_each = num_threads, after_each
        self._launch = "host_only" if host_only else "default"
        self._operations = Operations(group, device)
        self._clock, self._host_clock = clock_for(device), MonotonicClock()

    def run(self, seconds: float, *, only_messages: bool = False, with_products: bool = False) -> None:
        """Everything, in about that time; products of matrices if asked for. Collective."""
        end_s = time.monotonic() + seconds
        torch.set_num_threads(self._num_threads)
        mpi, problem = self._mpi()
        extra = {"mpi": mpi} if mpi else {}
        self._write({"facts": {**facts(self._group, self._device, self._num_threads), **extra}})
        if problem:
            self._write({"note": f"no all-reduce by MPI: {problem}"})
        on_gpus, n = self._device.type == "cuda", self._group.world_size
        peer_copies = n > 1 and self._group.can_access_peers(self._device)
        what = {"on_gpus": on_gpus, "peer_copies": peer_copies, "only_messages": only_messages}
        todo = probe.cases(n, **what, with_mpi=mpi is not None, with_products=with_products)
        limit_bytes = int(-self._group.largest(-float(self._free_bytes()))) // MEMORY_SHARE
        self._wake(min(probe.WAKE_S, seconds / 10), limit_bytes)
        for at, case in enumerate(todo):
            share = case.weight / sum(other.weight for other in todo[at:])
            budget_s = max(0.0, end_s - time.monotonic()) * share
            sizes = [size for size in case.sizes_bytes if size <= limit_bytes]
            if len(sizes) < len(case.sizes_bytes):
                self._write({"note": f"{case.describe()}: no more than {limit_bytes / 1e6:.0f} MB a buffer"})
            self._measure(case, sizes, budget_s)
        if on_gpus and n > 1 and not peer_copies and self._launch == "default":
            self._write({"note": "no copies between GPUs: not every rank can access every other's memory"})

    def _mpi(self) -> tuple[str | None, str]:
        """Name and version of the MPI that carries these ranks too, or None; and what is wrong with it."""
        if self._group.world_size < 2 or not self._group.carries("mpi"):
            return None, ""
        _, problem = self._agreed(lambda: self._group.over("mpi"))
        return (None, problem) if problem else (library_version(), "")

    def _free_bytes(self) -> int:
        of_host = memory_bytes(what="MemAvailable") or FALLBACK_BYTES
        share = of_host // self._group.world_size
        return min(share, torch.cuda.mem_get_info(self._device)[0]) if self._device.type == "cuda" else share

    def _wake(self, seconds: float, limit_bytes: int) -> None:
        values = torch.zeros(min(probe.MEMORY_SIZES_WITHOUT_GPU[0], limit_bytes) // 4, device=self._device)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            values.add_(1.0)
            self._clock.settle()

    def _measure(self, case: ProbeCase, sizes: list[int], budget_s: float) -> None:
        end_s, once_s = time.monotonic() + budget_s, 0.0
        for position, size in enumerate(sizes):
            left_s = end_s - time.monotonic()
            if not self._group.share(probe.goes_on(position, sizes, left_s, once_s)):
                return
            begun_s = time.monotonic()
            run, problem = self._prepared(case, size)
            if problem:
                self._write({"note": f"{case.describe()}, {size} bytes: {problem}"})
                return
            torch.set_num_threads(case.num_threads or self._num_threads)
            self._sample(case, run, repeats=1)
            end_s += time.monotonic() - begun_s
            alone_s = self._sample(case, run, repeats=1)  # a pause in one of the two does not count
            once_s = min(alone_s, self._sample(case, run, probe.repeats_for(alone_s)))
            repeats = probe.repeats_for(once_s)  # of what all ranks know, hence the same on all
            left_s = end_s - time.monotonic()
            count = probe.num_samples_for(left_s, len(sizes) - position, repeats * once_s)
            for _ in range(self._group.share(count)):
                self._record(case, size, repeats, self._sample(case, run, repeats))
            torch.set_num_threads(self._num_threads)

    def _prepared(self, case: ProbeCase, size: int) -> tuple[Run | None, str]:
        """The operation, or why not: from the first rank that has a problem, known to all."""
        run, problem = self._agreed(lambda: self._operations.prepare(case, size))
        if problem or not case.captured:
            return run, problem
        # Only now: a rank without its buffers would leave the others waiting for its first message.
        return self._agreed(lambda: None if run is None else self._operations.captured(run))

    def _agreed(self, make: Callable[[], Any]) -> tuple[Any, str]:
        run, problem = None, ""
        try:
            run = make()
        except (LaunchError, RuntimeError) as error:
            problem = f"rank {self._group.rank}: {(str(error).splitlines() or [''])[0]}"
        worst = self._group.largest(float(self._group.world_size - self._group.rank if problem else 0))
        first = self._group.world_size - int(worst)
        return run, self._group.share(problem, first) if worst else ""

    def _sample(self, case: ProbeCase, run: Run | None, repeats: int) -> float:
        on_host = case.operation.startswith(("host", "mpi"))
        clock = self._host_clock if on_host else self._clock
        clock.settle()
        seconds = 0.0
        self._group.barrier()
        if run is not None:
            start = clock.mark()
            for _ in range(repeats):
                run()
            stop = clock.mark()
            clock.settle()
            seconds = clock.seconds(start, stop) / repeats
        slowest_s = max(self._group.largest(seconds), SHORTEST_S)
        self._after_each()
        return slowest_s

    def _record(self, case: ProbeCase, size: int, repeats: int, seconds: float) -> None:
        of_case = (case.operation, case.ranks, case.memory, case.captured, case.num_threads)
        self._write({"sample": asdict(ProbeSample(self._launch, *of_case, size, repeats, seconds))})
