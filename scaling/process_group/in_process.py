"""A group of ranks that are threads of one process: for tests and for authors of aggregators."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from scaling.process_group.base import Group, Message, PeerMemory

T = TypeVar("T")


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
    """A group of ranks that are threads of this process; sums are taken in rank order."""

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

    def _reduce_scatter(self, shard: Tensor, tensor: Tensor) -> None:
        first, *rest = (sent.view(self.world_size, -1)[self.rank] for sent in self._gathered(tensor.clone()))
        total = first.clone()
        for other in rest:
            total.add_(other)
        shard.copy_(total)

    def _all_gather(self, tensor: Tensor, shard: Tensor) -> None:
        torch.cat(self._gathered(shard.clone()), out=tensor)

    def largest_of(self, values: Sequence[float]) -> list[float]:
        """The largest value that any rank gave, one by one."""
        return [max(given) for given in zip(*self._gathered(list(values)), strict=True)]

    def share(self, value: T, source: int = 0) -> T:
        """The source's `value` on every rank."""
        return self._gathered(value)[source]

    def barrier(self) -> None:
        """Fails after the timeout of the world, or when another rank has failed."""
        with self._others_turn():
            self._world.barrier.wait(self._world.timeout_s)

    def all_reduce_host(self, tensor: Tensor) -> None:
        self.all_reduce(tensor)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """The other ranks run meanwhile.

        Raises:
            BrokenBarrierError: another rank has failed.
            TimeoutError: the condition does not hold within the timeout of the world.
        """
        limit = time.monotonic() + self._world.timeout_s
        while not condition():
            if self._world.barrier.broken:
                raise threading.BrokenBarrierError
            if time.monotonic() > limit:
                raise TimeoutError(f"rank {self.rank} waits in vain for another's host memory")
            with self._others_turn():
                time.sleep(1e-5)

    def can_access_peers(self, device: torch.device) -> bool:
        """Always: the ranks are threads of one process."""
        return True

    def peer_memory(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> PeerMemory:
        received = torch.zeros(num_elements, dtype=dtype, device=device)
        return _ThreadsMemory(received, self._gathered(received), self.barrier)

    def shared_host_buffer(self, num_bytes: int, *, register: bool) -> Tensor:
        """Plain memory of the process: `register` changes nothing."""
        made = torch.zeros(num_bytes, dtype=torch.uint8) if self.rank == 0 else None
        buffer = self._gathered(made)[0]
        assert buffer is not None
        return buffer


class _ThreadsMemory(PeerMemory):
    """Every rank's buffer, which one process sees anyway."""

    def __init__(self, local: Tensor, buffers: list[Tensor], barrier: Callable[[], None]) -> None:
        self.local = local
        self._buffers = buffers
        self._barrier = barrier

    def of(self, rank: int) -> Tensor:
        return self._buffers[rank]

    def barrier(self, channel: int = 0) -> None:
        self._barrier()


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
            except BaseException as error:  # noqa: BLE001 (raised by the caller's thread)
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
