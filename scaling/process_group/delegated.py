"""A group with the ranks of another group, and another library for part of the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from scaling.process_group.base import Group, Message, PeerMemory


class DelegatedGroup(Group):
    """The same ranks as `outer`, and its meter; what a subclass does not carry itself goes by `outer`."""

    def __init__(self, outer: Group) -> None:
        super().__init__(outer.rank, outer.world_size)
        self.meter = outer.meter
        self.through_host = outer.through_host
        self._outer = outer

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        self._outer._exchange(sends, receives)

    def _all_reduce(self, tensor: Tensor) -> None:
        self._outer._all_reduce(tensor)

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        self._outer._broadcast(tensor, source)

    def _reduce_scatter(self, shard: Tensor, tensor: Tensor) -> None:
        self._outer._reduce_scatter(shard, tensor)

    def _all_gather(self, tensor: Tensor, shard: Tensor) -> None:
        self._outer._all_gather(tensor, shard)

    def barrier(self) -> None:
        self._outer.barrier()

    def shared_host_buffer(self, num_bytes: int, *, register: bool) -> Tensor:
        return self._outer.shared_host_buffer(num_bytes, register=register)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        self._outer.wait_until(condition)

    def can_access_peers(self, device: torch.device) -> bool:
        return self._outer.can_access_peers(device)

    def peer_memory(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> PeerMemory:
        return self._outer.peer_memory(num_elements, dtype, device)

    def all_reduce_host(self, tensor: Tensor) -> None:
        self._outer.all_reduce_host(tensor)
