"""A group of ranks that are threads of one process: for tests and for authors of aggregators."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scaling.process_group.base import Group, Message, PeerMemory, T

_ORDERS = random.Random()

FIRST_TURN_S = 1800.0
"""Others may compute for long before a rank's first turn, on a slow machine; longer is a hang."""


class _World:
    """One rank computes at a time: threads that fight for the interpreter's lock take ten times as long."""

    def __init__(self, world_size: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.failed = False
        self.num_arrived = 0  # at barriers, of all ranks together
        self.mailboxes: dict[tuple[int, int], deque[Tensor]] = {
            (source, target): deque() for source in range(world_size) for target in range(world_size)
        }
        self.slots: tuple[list[Any], list[Any]] = ([None] * world_size, [None] * world_size)
        self._waiting: dict[int, Callable[[], bool]] = dict.fromkeys(range(world_size), _always)
        self._turns = [threading.Lock() for _ in range(world_size)]  # free: the rank goes on
        for turn in self._turns:
            turn.acquire()
        order = _ORDERS.sample(range(world_size), world_size)  # any, as processes have it
        self._next = {rank: (*order[place + 1 :], *order[: place + 1]) for place, rank in enumerate(order)}

    def hand_over(self, rank: int) -> int | None:
        """The next rank goes on that waits and can; `rank` itself, if it waits, is the last to be asked."""
        for other in self._next[rank]:
            can_go_on = self._waiting.get(other)
            if can_go_on and (self.failed or can_go_on()) and self._waiting.pop(other, None):
                self._turns[other].release()
                return other
        return None

    def begin(self, rank: int) -> None:
        """Returns when it is that rank's first turn. TimeoutError: it is not within FIRST_TURN_S."""
        if not self._turns[rank].acquire(timeout=FIRST_TURN_S):
            if self._waiting.pop(rank, None):
                raise TimeoutError(f"rank {rank} waits in vain for its first turn: another one computes")
            self._turns[rank].acquire()  # it was given just now

    def wait(self, rank: int, can_go_on: Callable[[], bool]) -> bool:
        """Lets others compute; False after the timeout. BrokenBarrierError: another rank has failed."""
        if not can_go_on():
            self._waiting[rank] = can_go_on
            self.hand_over(rank)
            if not self._turns[rank].acquire(timeout=self.timeout_s):
                if not can_go_on():
                    self._waiting.pop(rank, None)
                    return False
                self._turns[rank].acquire()  # others compute for long
        if self.failed:
            raise threading.BrokenBarrierError
        return True

    def pause(self, rank: int) -> None:
        """Lets others compute, if any can; what the rank waits for is not known here."""
        self._waiting[rank] = _always
        if self.hand_over(rank) == rank:
            time.sleep(1e-5)
        self._turns[rank].acquire()
        if self.failed:
            raise threading.BrokenBarrierError


def _always() -> bool:
    return True


class InProcessGroup(Group):
    """A group of ranks that are threads of this process; sums are taken in rank order."""

    def __init__(self, rank: int, world_size: int, world: _World) -> None:
        super().__init__(rank, world_size)
        self._world = world
        self._num_barriers = self._num_gathered = 0

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        for peer, tensor in sends:
            self._world.mailboxes[self.rank, peer].append(tensor.clone())
        for peer, tensor in receives:
            mailbox = self._world.mailboxes[peer, self.rank]
            if not self._world.wait(self.rank, partial(bool, mailbox)):
                raise TimeoutError(f"rank {self.rank} waits in vain for a message of rank {peer}")
            received = mailbox.popleft()
            if received.shape != tensor.shape or received.dtype != tensor.dtype:
                raise RuntimeError(
                    f"rank {self.rank} expects {tuple(tensor.shape)} {tensor.dtype} of rank {peer}, "
                    f"and gets {tuple(received.shape)} {received.dtype}"
                )
            tensor.copy_(received)

    def _gathered(self, value: T) -> list[T]:
        # A rank can be one call ahead of others that still read, not two: two lists in turns will do.
        slots = self._world.slots[self._num_gathered % 2]
        self._num_gathered += 1
        slots[self.rank] = value
        self.barrier()
        return list(slots)

    def _all_reduce(self, tensor: Tensor) -> None:
        tensor.copy_(_sum(self._gathered(tensor.clone())))

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        tensor.copy_(self._gathered(tensor.clone())[source])

    def _reduce_scatter(self, shard: Tensor, tensor: Tensor) -> None:
        sent = self._gathered(tensor.clone())
        shard.copy_(_sum([values.view(self.world_size, -1)[self.rank] for values in sent]))

    def _all_gather(self, tensor: Tensor, shard: Tensor) -> None:
        torch.cat(self._gathered(shard.clone()), out=tensor)

    def largest_of(self, values: Sequence[float]) -> list[float]:
        return [max(given) for given in zip(*self._gathered(list(values)), strict=True)]

    def share(self, value: T, source: int = 0) -> T:
        return self._gathered(value)[source]

    def barrier(self) -> None:
        world = self._world
        world.num_arrived += 1
        self._num_barriers += 1
        all_arrived = self._num_barriers * self.world_size
        if not world.wait(self.rank, lambda: world.num_arrived >= all_arrived):
            raise threading.BrokenBarrierError

    def all_reduce_host(self, tensor: Tensor) -> None:
        self.all_reduce(tensor)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + self._world.timeout_s
        while not condition():
            if time.monotonic() > limit:
                raise TimeoutError(f"rank {self.rank} waits in vain for another's host memory")
            self._world.pause(self.rank)

    def can_access_peers(self, device: torch.device) -> bool:
        return True

    def peer_memory(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> PeerMemory:
        received = torch.zeros(num_elements, dtype=dtype, device=device)
        return _ThreadsMemory(received, self._gathered(received), self.barrier)

    def shared_host_buffer(self, num_bytes: int, *, register: bool) -> Tensor:
        made = torch.zeros(num_bytes, dtype=torch.uint8) if self.rank == 0 else None
        buffer = self._gathered(made)[0]
        assert buffer is not None
        return buffer


def _sum(tensors: list[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0])


class _ThreadsMemory(PeerMemory):
    def __init__(self, local: Tensor, buffers: list[Tensor], barrier: Callable[[], None]) -> None:
        self.local = local
        self._buffers = buffers
        self._barrier = barrier

    def of(self, rank: int) -> Tensor:
        return self._buffers[rank]

    def barrier(self, channel: int = 0) -> None:
        self._barrier()


def run_in_process(world_size: int, work: Callable[[InProcessGroup], T], timeout_s: float = 60.0) -> list[T]:
    """Results are in rank order. The first failing rank's exception is raised; others are released."""
    world = _World(world_size, timeout_s)
    results: list[Any] = [None] * world_size
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            world.begin(rank)
            results[rank] = work(InProcessGroup(rank, world_size, world))
        except BaseException as error:  # noqa: BLE001 (raised by the caller's thread)
            failures.append(error)
            world.failed = True
        finally:
            world.hand_over(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    world.hand_over(0)
    for thread in threads:
        while thread.is_alive() and not failures:
            thread.join(timeout=1.0)
    for thread in threads:
        thread.join(timeout=timeout_s)  # one that is stuck is left behind
    if failures:
        # A broken barrier is what the others saw of it, never the cause.
        causes = [error for error in failures if not isinstance(error, threading.BrokenBarrierError)]
        raise (causes or failures)[0]
    return results
