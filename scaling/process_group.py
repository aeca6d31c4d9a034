"""The group of ranks that an aggregator is given.

An aggregator never touches torch.distributed: it gets a `Group`, which moves tensors between ranks and meters
what this rank sends. `TorchGroup` does it over torch.distributed, `InProcessGroup` between threads of one
process (tests, `scaling.conformance`).
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from scaling.errors import LaunchError

T = TypeVar("T")


class Message(NamedTuple):
    """One tensor on its way to, or expected from, the rank `peer`."""

    peer: int
    tensor: Tensor


@dataclass
class Meter:
    """Bytes and messages that this rank has handed to others since the last reset."""

    bytes_sent: int = 0
    messages_sent: int = 0

    def count(self, num_bytes: int, num_messages: int = 1) -> None:
        """Adds `num_messages` messages of `num_bytes` bytes together."""
        self.bytes_sent += num_bytes
        self.messages_sent += num_messages

    def reset(self) -> None:
        """Starts again at zero."""
        self.bytes_sent = self.messages_sent = 0


class Group(ABC):
    """Ranks 0 to world_size - 1 that take part in an aggregation; this process is `rank`."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.meter = Meter()

    @abstractmethod
    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None: ...

    @abstractmethod
    def _all_reduce(self, tensor: Tensor) -> None: ...

    @abstractmethod
    def _broadcast(self, tensor: Tensor, source: int) -> None: ...

    @abstractmethod
    def barrier(self) -> None:
        """Returns on the host after every rank has called it. Not metered: it carries no payload."""

    @abstractmethod
    def shared_host_buffer(self, num_bytes: int, *, register: bool) -> Tensor:
        """A zeroed uint8 host tensor whose memory all ranks of the group see. Every rank must call it.

        Args:
            num_bytes: its size.
            register: pin the memory for the CUDA driver, so that copies to and from a device run at full
                speed.

        Raises:
            LaunchError: the ranks are on more than one host, or the shared memory is too small.
        """

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Sends and receives one batch of messages; at most one a direction between two ranks.

        Returns when the received tensors may be used: on CUDA in the order of the current stream.
        """
        sends = [message for message in sends if message.tensor.numel()]
        receives = [message for message in receives if message.tensor.numel()]
        for message in sends:
            self.meter.count(message.tensor.nbytes)
        if sends or receives:
            self._exchange(sends, receives)

    def all_reduce(self, tensor: Tensor) -> None:
        """Sums `tensor` over the ranks, in place.

        The library chooses the algorithm and does not tell; what is metered is a ring's traffic, 2(n-1)
        messages of 1/n of the bytes, as nccl-tests' bus bandwidth assumes.
        """
        if self.world_size > 1 and tensor.numel():
            rounds = 2 * (self.world_size - 1)
            self.meter.count(tensor.nbytes * rounds // self.world_size, rounds)
            self._all_reduce(tensor)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Copies the source's `tensor` into every rank's; metered as one message to each other rank."""
        if self.world_size > 1 and tensor.numel():
            if self.rank == source:
                self.meter.count(tensor.nbytes * (self.world_size - 1), self.world_size - 1)
            self._broadcast(tensor, source)


class TorchGroup(Group):
    """A group over torch.distributed.

    Args:
        data: the process group that carries tensors (NCCL or Gloo).
        control: a Gloo group of the same ranks, for barriers on the host and small objects.
        ranks_on_this_host: how many of the ranks run on this host.
    """

    def __init__(self, data: dist.ProcessGroup, control: dist.ProcessGroup, ranks_on_this_host: int) -> None:
        super().__init__(dist.get_rank(data), dist.get_world_size(data))
        self._data = data
        self._control = control
        self._ranks_on_this_host = ranks_on_this_host
        self._registered: list[Tensor] = []

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        operations = [dist.P2POp(dist.isend, tensor, peer, self._data) for peer, tensor in sends]
        operations += [dist.P2POp(dist.irecv, tensor, peer, self._data) for peer, tensor in receives]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def _all_reduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=self._data)

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        dist.broadcast(tensor, source, group=self._data)

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier(group=self._control)

    def largest(self, value: float) -> float:
        """The largest `value` that any rank gave, over the host's network: waits for no device."""
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._control)
        return tensor.item()

    def share(self, value: T, source: int = 0) -> T:
        """The source's `value` (any picklable object) on every rank."""
        box: list[Any] = [value]
        dist.broadcast_object_list(box, source, group=self._control)
        return box[0]  # type: ignore[no-any-return]

    def shared_host_buffer(self, num_bytes: int, *, register: bool) -> Tensor:
        if self._ranks_on_this_host != self.world_size:
            raise LaunchError(
                f"this aggregator sums in one host's memory, but only {self._ranks_on_this_host} of "
                f"{self.world_size} ranks are on this host; run it on one machine, or leave it out"
            )
        path, problem = "", ""
        if self.rank == 0:
            try:
                path = _create_shared_file(num_bytes)
            except OSError as error:
                problem = f"cannot reserve {num_bytes / 1e6:.0f} MB of shared memory: {error}"
        path, problem = self.share((path, problem))
        if problem:
            raise LaunchError(
                f"{problem}; enlarge /dev/shm (docker: --shm-size) or leave out host aggregators"
            )
        buffer = torch.from_file(path, shared=True, size=max(num_bytes, 1), dtype=torch.uint8)[:num_bytes]
        self.barrier()  # every rank has mapped it: the name can go, the memory lives as long as a mapping
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
        """Ends the registration of this rank's shared host buffers; they must no longer be copied from or to.

        The driver does not notice that memory is unmapped, and then refuses the next mapping at that address.
        """
        if self._registered:
            torch.cuda.synchronize()
        while self._registered:
            _cuda_runtime().cudaHostUnregister(self._registered.pop().data_ptr())


def _cuda_runtime() -> Any:
    untyped: Any = torch.cuda  # torch ships cudart() without types
    return untyped.cudart()


def _create_shared_file(num_bytes: int) -> str:
    """A new file of that size in shared memory; reserved, since writing to a full tmpfs kills the process."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
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


class _World:
    """What the ranks of one in-process world share."""

    def __init__(self, world_size: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.barrier = threading.Barrier(world_size)
        # One rank computes at a time and hands over only where it waits for others: threads that fight for
        # the interpreter's lock take ten times as long.
        self.turn = threading.Lock()
        self.mailboxes: dict[tuple[int, int], queue.SimpleQueue[Tensor | None]] = {
            (source, target): queue.SimpleQueue()
            for source in range(world_size)
            for target in range(world_size)
        }
        self.slots: list[Any] = [None] * world_size

    def abort(self) -> None:
        """Releases every rank that waits, with a BrokenBarrierError."""
        self.barrier.abort()
        for mailbox in self.mailboxes.values():
            mailbox.put(None)


class InProcessGroup(Group):
    """A group whose ranks are threads of this process; sums are taken in rank order."""

    def __init__(self, rank: int, world_size: int, world: _World) -> None:
        super().__init__(rank, world_size)
        self._world = world

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        for peer, tensor in sends:
            self._world.mailboxes[self.rank, peer].put(tensor.clone())
        for peer, tensor in receives:
            try:
                with self._others_turn():
                    received = self._world.mailboxes[peer, self.rank].get(timeout=self._world.timeout_s)
            except queue.Empty:
                raise TimeoutError(f"rank {self.rank} waits in vain for a message of rank {peer}") from None
            if received is None:
                raise threading.BrokenBarrierError
            if received.shape != tensor.shape or received.dtype != tensor.dtype:
                raise RuntimeError(
                    f"rank {self.rank} expects {tuple(tensor.shape)} {tensor.dtype} of rank {peer}, "
                    f"and gets {tuple(received.shape)} {received.dtype}"
                )
            tensor.copy_(received)

    @contextmanager
    def _others_turn(self) -> Iterator[None]:
        self._world.turn.release()
        try:
            yield
        finally:
            self._world.turn.acquire()

    def _gathered(self, value: T) -> list[T]:
        """Every rank's value, in rank order."""
        self._world.slots[self.rank] = value
        self.barrier()
        values = list(self._world.slots)
        self.barrier()
        return values

    def _all_reduce(self, tensor: Tensor) -> None:
        first, *rest = self._gathered(tensor.clone())
        total = first.clone()
        for other in rest:
            total.add_(other)
        tensor.copy_(total)

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        tensor.copy_(self._gathered(tensor.clone())[source])

    def barrier(self) -> None:
        with self._others_turn():
            self._world.barrier.wait(self._world.timeout_s)

    def shared_host_buffer(self, num_bytes: int, *, register: bool) -> Tensor:
        mine = torch.zeros(num_bytes, dtype=torch.uint8) if self.rank == 0 else None
        buffer = self._gathered(mine)[0]
        assert buffer is not None
        return buffer


def run_in_process(world_size: int, work: Callable[[InProcessGroup], T], timeout_s: float = 60.0) -> list[T]:
    """Runs `work` once a rank, each in a thread with its own group; returns the results in rank order.

    Raises:
        BaseException: the first failing rank's own exception; the others are released.
    """
    world = _World(world_size, timeout_s)
    results: list[Any] = [None] * world_size
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        with world.turn:
            try:
                results[rank] = work(InProcessGroup(rank, world_size, world))
            except BaseException as error:
                failures.append(error)
                world.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        # A broken barrier is what the others saw of it, never the cause.
        causes = [error for error in failures if not isinstance(error, threading.BrokenBarrierError)]
        raise (causes or failures)[0]
    return results
