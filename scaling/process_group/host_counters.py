"""Counters in memory that the ranks of one host share: one a rank, which only that rank raises.

A few microseconds where a barrier over sockets takes some hundred.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from scaling.process_group.base import Group


class HostCounters:
    """Tells the other ranks how far this one is. Collective to make.

    Args:
        group: ranks of one host.
        allocate: makes the shared memory of a size in bytes; the group's own unless given.
    """

    def __init__(self, group: Group, allocate: Callable[[int], Tensor] | None = None) -> None:
        n = group.world_size
        allocate = allocate or (lambda size: group.shared_host_buffer(size, register=False))
        self._group = group
        self._values = memoryview(allocate(n * 8).view(torch.int64).numpy())  # type: ignore[arg-type]
        self._everyone = range(n)
        self._fence = threading.Lock()
        self._met = 0

    def tell(self, value: int) -> None:
        """Raises this rank's counter; what it wrote to shared memory before is seen before the counter is."""
        self._order_memory()
        self._values[self._group.rank] = value

    def reached(self, value: int, ranks: Iterable[int] | None = None) -> bool:
        """Whether those ranks (None: all) have reported `value` or more."""
        reached = all(self._values[rank] >= value for rank in (self._everyone if ranks is None else ranks))
        if reached:
            self._order_memory()
        return reached

    def _order_memory(self) -> None:
        """Keeps accesses before from being seen after those behind: on every processor leaving a lock waits
        for what came before it, and taking it again holds up what comes after."""
        for _ in range(2):
            with self._fence:
                pass

    def wait(self, value: int, ranks: Iterable[int] | None = None) -> None:
        """Returns once they have; raises what `Group.wait_until` does."""
        ranks = self._everyone if ranks is None else list(ranks)
        self._group.wait_until(lambda: self.reached(value, ranks))

    def meet(self) -> None:
        """A barrier: returns once every rank has called it as often."""
        self._met += 1
        self.tell(self._met)
        self.wait(self._met)
