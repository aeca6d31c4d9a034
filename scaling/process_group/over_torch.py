"""A group over torch.distributed: NCCL or Gloo for tensors, Gloo for the host's own business.

Memory that all GPUs of a node map is torch's symmetric memory. The multicast path of NVSwitch is never taken,
and its switches in the environment are left as they are found.
"""

from __future__ import annotations

import functools
import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch import Tensor

from scaling.errors import LaunchError
from scaling.files import messages
from scaling.process_group.base import Group, HostCounters, Message, PeerMemory, T


class SymmetricMemory(PeerMemory):
    """Mapped on each rank's GPU, on one node. Collective to make. LaunchError: the driver cannot share it."""

    def __init__(
        self, num_elements: int, dtype: torch.dtype, device: torch.device, group: dist.ProcessGroup
    ) -> None:
        try:
            whole = symm_mem.empty(max(num_elements, 1), dtype=dtype, device=device)
            self._handle = symm_mem.rendezvous(whole, group)
        except RuntimeError as error:
            raise LaunchError(
                f"cannot share {num_elements * dtype.itemsize / 1e6:.0f} MB between the GPUs: {error}; "
                "use transport: sends"
            ) from error
        self._num_elements, self._dtype = num_elements, dtype
        self.local = whole[:num_elements]

    def of(self, rank: int) -> Tensor:
        return self._handle.get_buffer(rank, (self._num_elements,), self._dtype)

    def barrier(self, channel: int = 0) -> None:
        self._handle.barrier(channel=channel)


def share_json(value: T, source: int, group: dist.ProcessGroup | None = None) -> T:
    """As `scaling.files.messages` sends it, over a Gloo group (None: all ranks). Collective."""
    content = bytearray(messages.written(value).encode() if dist.get_rank() == source else b"")
    size = torch.tensor([len(content)])
    dist.broadcast(size, source, group=group)
    sent = torch.frombuffer(content.ljust(int(size)), dtype=torch.uint8)
    dist.broadcast(sent, source, group=group)
    return messages.read(sent.numpy().tobytes())


SPIN_S = 5e-3
POLL_S = 50e-6
ASK_AFTER_S = 0.5
CLOCK_ROUND_TRIPS = 10
WAIT_LIMIT_S = 1800.0  # as long as a collective may take (`scaling.runtime.workers`)

# Newer torch calls them so, and warns of the older names.
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class TorchGroup(Group):
    """`data`: carries tensors (NCCL or Gloo); `control`: a Gloo group of the same ranks, for barriers on the
    host and messages; `peer_access`: False forbids access to other GPUs' memory but NCCL's own; `has_failed`:
    whether any rank has, asked while waiting in vain; `libraries`: name -> makes its group. Collective."""

    def __init__(
        self,
        data: dist.ProcessGroup,
        control: dist.ProcessGroup,
        ranks_on_this_host: int,
        *,
        peer_access: bool = True,
        has_failed: Callable[[], bool] = lambda: False,
        libraries: Mapping[str, Callable[[Group], Group]] | None = None,
    ) -> None:
        super().__init__(dist.get_rank(data), dist.get_world_size(data))
        self.data = data
        self._single_rank_group: dist.ProcessGroup | None = None
        self._control = control
        self._ranks_on_this_host = ranks_on_this_host
        self._peer_access = peer_access
        self._has_failed = has_failed
        self._libraries = libraries or {}
        self._delegated: dict[str, Group] = {}
        self._registered: list[Tensor] = []
        self._can_access: bool | None = None
        self._barriers: HostCounters | None = None

    def single_rank_group(self) -> dist.ProcessGroup:
        """A process group of this rank only, of the same library. Collective at first use."""
        if self._single_rank_group is None:
            backend = dist.get_backend(self.data)
            groups = [dist.new_group([rank], backend=backend) for rank in range(self.world_size)]
            self._single_rank_group = groups[self.rank]
        return self._single_rank_group

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        operations = [dist.P2POp(dist.isend, tensor, peer, self.data) for peer, tensor in sends]
        operations += [dist.P2POp(dist.irecv, tensor, peer, self.data) for peer, tensor in receives]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def _all_reduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=self.data)

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        dist.broadcast(tensor, source, group=self.data)

    def _reduce_scatter(self, shard: Tensor, tensor: Tensor) -> None:
        _REDUCE_SCATTER(shard, tensor, group=self.data)

    def _all_gather(self, tensor: Tensor, shard: Tensor) -> None:
        _ALL_GATHER(tensor, shard, group=self.data)

    def carries(self, library: str) -> bool:
        return library in self._libraries

    def over(self, library: str) -> Group:
        """The first call starts the library, and is collective; later ones give the same group."""
        if library not in self._libraries:
            return super().over(library)
        if library not in self._delegated:
            self._delegated[library] = self._libraries[library](self)
        return self._delegated[library]

    def barrier(self) -> None:
        """By counters in shared memory where all ranks are on one host."""
        if self._ranks_on_this_host != self.world_size:
            dist.barrier(group=self._control)
        elif self.world_size > 1:
            self._barriers = self._barriers or HostCounters(self)
            self._barriers.meet()

    def all_reduce_host(self, tensor: Tensor) -> None:
        if self.world_size > 1 and tensor.numel():
            self._meter_all_reduce(tensor)
            dist.all_reduce(tensor, group=self._control)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Spins for a moment, then sleeps between looks; asks now and then for a failure of others."""
        started = last_asked = time.monotonic()
        while not condition():
            now = time.monotonic()
            if now - started < SPIN_S:  # most waits are shorter than a sleep
                os.sched_yield()
                continue
            time.sleep(POLL_S)
            if now - last_asked > ASK_AFTER_S:
                last_asked = now
                if self._has_failed():
                    raise TimeoutError("another rank has failed while this one waited for it")
                if now - started > WAIT_LIMIT_S:
                    raise TimeoutError(
                        f"rank {self.rank} waited {WAIT_LIMIT_S:.0f} s for another's host memory"
                    )

    def can_access_peers(self, device: torch.device) -> bool:
        """False where the ranks are on several hosts. The first call is collective."""
        if self._can_access is None:
            sees_peers = self._peer_access and device.type == "cuda" and self._sees_all_peers()
            self._can_access = self.largest(float(not sees_peers)) == 0
        return self._can_access

    def _sees_all_peers(self) -> bool:
        """Local rank i has GPU i (`scaling.worker`)."""
        if self._ranks_on_this_host != self.world_size or torch.cuda.device_count() < self.world_size:
            return False
        device = torch.cuda.current_device()
        others = [peer for peer in range(self.world_size) if peer != device]
        return all(torch.cuda.can_device_access_peer(device, peer) for peer in others)

    def peer_memory(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> PeerMemory:
        if not self.can_access_peers(device):
            raise LaunchError(
                "peer memory: the ranks cannot read each other's memory here (not CUDA, several hosts, GPUs "
                "without peer access, or peer_access: false); use transport: sends or auto"
            )
        return SymmetricMemory(num_elements, dtype, device, self.data)

    def largest_of(self, values: Sequence[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._control)
        return tensor.tolist()

    def host_clock_offset(self) -> tuple[float, float]:
        """To rank 0's monotonic clock, and its error at most, in s; of fast round trips. Collective."""
        if self._ranks_on_this_host == self.world_size:
            return 0.0, 0.0
        best = (0.0, 0.0)
        for rank in range(1, self.world_size):
            if self.rank == rank:
                best = self._ask_for_clock()
            for _ in range(CLOCK_ROUND_TRIPS if self.rank == 0 else 0):
                asked = torch.zeros(1, dtype=torch.float64)
                dist.recv(asked, rank, group=self._control)
                dist.send(torch.tensor([time.perf_counter()], dtype=torch.float64), rank, group=self._control)
        return best

    def _ask_for_clock(self) -> tuple[float, float]:
        tries = []
        for _ in range(CLOCK_ROUND_TRIPS):
            answer = torch.zeros(1, dtype=torch.float64)
            before = time.perf_counter()
            dist.send(answer, 0, group=self._control)
            dist.recv(answer, 0, group=self._control)
            after = time.perf_counter()
            tries.append((answer.item() - (before + after) / 2, (after - before) / 2))
        return min(tries, key=lambda one: one[1])

    def share(self, value: T, source: int = 0) -> T:
        return share_json(value, source, self._control)

    def shared_host_buffer(self, num_bytes: int, *, register: bool) -> Tensor:
        """A file in memory that rank 0 makes and all ranks map; its name is gone at once."""
        if self._ranks_on_this_host != self.world_size:
            raise LaunchError(
                f"this exchange goes through one host's memory, but only {self._ranks_on_this_host} of "
                f"{self.world_size} ranks are on this host; run it on one machine, or leave it out"
            )
        path, problem = "", ""
        if self.rank == 0:
            try:
                path = _create_shared_file(num_bytes)
            except OSError as error:
                problem = f"cannot reserve {num_bytes:,} bytes of shared memory: {error}"
        path, problem = self.share((path, problem))
        if problem:
            raise LaunchError(
                f"{problem}; enlarge /dev/shm (docker: --shm-size) or leave out host aggregators"
            )
        buffer = torch.from_file(path, shared=True, size=max(num_bytes, 1), dtype=torch.uint8)[:num_bytes]
        # Once every rank has mapped it the name can go: the memory lives as long as a mapping.
        dist.barrier(group=self._control)
        if self.rank == 0:
            os.unlink(path)
        if register and num_bytes:
            status = _cuda_runtime().cudaHostRegister(buffer.data_ptr(), num_bytes, 0)
            if int(status) != 0:
                raise LaunchError(
                    f"CUDA error {int(status)}: the driver cannot pin {num_bytes / 1e6:.0f} MB of memory; "
                    "raise the limit of locked memory (ulimit -l) or leave out host aggregators"
                )
            self._registered.append(buffer)
        return buffer

    def release_host_buffers(self) -> None:
        """Out of use by now: the driver misses an unmapping, and refuses the next mapping there."""
        if self._registered:
            torch.cuda.synchronize()
        while self._registered:
            _cuda_runtime().cudaHostUnregister(self._registered.pop().data_ptr())


def group_of(process_group: dist.ProcessGroup, device: torch.device) -> TorchGroup:
    """Of a script's own. Collective. LaunchError: it lacks ranks, or cannot carry tensors of that device."""
    if dist.get_world_size(process_group) != dist.get_world_size():
        raise LaunchError("the process group lacks some of the ranks; use one of all ranks")
    if device.type == "cuda" and dist.get_backend(process_group) != "nccl":
        raise LaunchError(f"tensors on GPUs need NCCL; the group is of {dist.get_backend(process_group)}")
    control, own = dist.new_group(backend="gloo"), socket.gethostname()
    hosts = [share_json(own, rank, control) for rank in range(dist.get_world_size())]
    return TorchGroup(process_group, control, hosts.count(own))


class Closable(Protocol):
    def close(self) -> None: ...


_closed_before: WeakKeyDictionary[Closable, dist.ProcessGroup] = WeakKeyDictionary()


def close_before(process_group: dist.ProcessGroup, closable: Closable) -> None:
    """Closes what keeps CUDA graphs before the group ends: NCCL waits for their end forever."""
    _closed_before[closable] = process_group
    older = hasattr(dist.distributed_c10d, "_shutdown_backend")  # torch before 2.9
    owner, name = (dist.distributed_c10d, "_shutdown_backend") if older else (dist.ProcessGroup, "shutdown")
    shutdown = getattr(owner, name)
    if hasattr(shutdown, "closes"):
        return

    @functools.wraps(shutdown)
    def closing(ending: dist.ProcessGroup) -> None:
        for kept, of in list(_closed_before.items()):
            if of == ending:
                kept.close()
        shutdown(ending)

    closing.closes = True  # type: ignore[attr-defined]
    setattr(owner, name, closing)


def future_mean(process_group: dist.ProcessGroup, tensor: Tensor) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(tensor.div_(process_group.size()), group=process_group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _cuda_runtime() -> Any:
    untyped: Any = torch.cuda  # torch ships cudart() without types
    return untyped.cudart()


def _create_shared_file(num_bytes: int) -> str:
    """A new file of that size in shared memory; reserved, since writing to a full tmpfs kills the process."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108 (mkstemp makes the file)
    descriptor, path = tempfile.mkstemp(prefix="scaling-", dir=folder)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, max(num_bytes, 1))
        else:
            os.truncate(descriptor, max(num_bytes, 1))
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    return path
