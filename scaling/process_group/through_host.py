"""A group of ranks that share GPUs: what is on a GPU goes from rank to rank through host memory, over Gloo.

NCCL refuses two ranks on one GPU (src/init.cc, "Duplicate GPU detected"), and Gloo sends host memory alone.
The host waits in each call for both copies: no stream and no CUDA graph holds such a message. Pinned memory
is kept, and grows with the largest call. Ranks of one host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scaling.process_group.base import Message
from scaling.process_group.over_torch import TorchGroup

ALIGNMENT_BYTES = 64


class HostRoom:
    """Host memory for the tensors of one call after the other, page-locked if `pinned`."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.uint8)

    def places(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """A contiguous host tensor of the shape and type of each; those of the last call are overwritten."""
        starts = [0]
        for tensor in tensors:
            starts.append(starts[-1] + -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        if starts[-1] > self._memory.numel():
            self._memory = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=self._pinned)
        return [
            self._memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for start, tensor in zip(starts, tensors, strict=False)
        ]


class ThroughHostGroup(TorchGroup):
    """Stages tensors on devices of `device`'s type. `data`, `control`, `options`: of `TorchGroup`."""

    through_host = True

    def __init__(
        self, data: dist.ProcessGroup, control: dist.ProcessGroup, device: torch.device, **options: Any
    ) -> None:
        super().__init__(data, control, dist.get_world_size(data), peer_access=False, **options)
        self._type = device.type
        pinned = device.type == "cuda"
        self._outgoing, self._incoming = HostRoom(pinned=pinned), HostRoom(pinned=pinned)

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        on_host = self._on_host(sends, self._outgoing)
        arriving = self._on_host(receives, self._incoming)
        # A blocking copy waits for the current stream, where the values are made.
        _copy(sends, on_host)
        super()._exchange(on_host, arriving)
        _copy(arriving, receives)

    @contextmanager
    def _staged(self, tensor: Tensor, *, is_read: bool = True, is_written: bool = True) -> Iterator[Tensor]:
        """What Gloo is handed for a tensor: itself, or a place in host memory, copied as far as need be."""
        if tensor.device.type != self._type:
            yield tensor
            return
        (place,) = self._outgoing.places([tensor])
        if is_read:
            place.copy_(tensor)
        yield place
        if is_written:
            tensor.copy_(place)

    def _all_reduce(self, tensor: Tensor) -> None:
        with self._staged(tensor) as place:
            super()._all_reduce(place)

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        sends = self.rank == source
        with self._staged(tensor, is_read=sends, is_written=not sends) as place:
            super()._broadcast(place, source)

    def _reduce_scatter(self, shard: Tensor, tensor: Tensor) -> None:
        with self._staged(tensor, is_written=False) as place:
            summed = shard if place is tensor else place.view(self.world_size, -1)[self.rank]
            super()._reduce_scatter(summed, place)
        if summed is not shard:
            shard.copy_(summed)

    def _all_gather(self, tensor: Tensor, shard: Tensor) -> None:
        with self._staged(tensor, is_read=False) as place:
            own = shard if place is tensor else place.view(self.world_size, -1)[self.rank].copy_(shard)
            super()._all_gather(place, own)

    def _on_host(self, messages: Sequence[Message], room: HostRoom) -> list[Message]:
        """The same messages with a place in `room` for each tensor that Gloo cannot be handed."""
        copied = [message.tensor for message in messages if message.tensor.device.type == self._type]
        places = iter(room.places(copied))
        return [
            Message(peer, next(places) if tensor.device.type == self._type else tensor)
            for peer, tensor in messages
        ]


def _copy(sources: Sequence[Message], targets: Sequence[Message]) -> None:
    for (_, source), (_, target) in zip(sources, targets, strict=True):
        if source is not target:
            target.copy_(source)
