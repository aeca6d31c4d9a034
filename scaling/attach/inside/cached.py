"""Loaders that give one batch again and again while the arm with cached input is on."""

import math
from typing import Any

import torch
from torch.utils.data import dataloader

from .agent import Agent
from .batches import mapped
from .libraries import around
from .marking import tensors_of

COPIES = 4  # given in turn, so that batches which are in use at the same time share no memory


class Repeats:
    """Copies of a batch, given in turn. One that the script has changed in place is made anew before it is
    given again; torch counts such changes, but not those through numpy or `.data`."""

    def __init__(self, batch: Any) -> None:
        self._kept = mapped(batch, copied)
        self._copies: list[tuple[Any, list[tuple[torch.Tensor, int]]]] = []
        self._given = 0

    def give(self) -> Any:
        at = self._given % COPIES
        self._given += 1
        if at == len(self._copies):
            self._copies.append(self._copy())
        elif any(tensor._version != version for tensor, version in self._copies[at][1]):
            self._copies[at] = self._copy()
        return mapped(self._copies[at][0], _shared)

    def _copy(self) -> tuple[Any, list[tuple[torch.Tensor, int]]]:
        batch = mapped(self._kept, copied)
        return batch, [(one, one._version) for one in tensors_of(batch) if not one.is_inference()]


def copied(value: Any) -> Any:
    """A copy of a tensor or an array, in pinned memory where it was."""
    if not isinstance(value, torch.Tensor):
        return value.copy()
    has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if has_gpu and value.layout == torch.strided and value.is_pinned():
        return torch.empty_like(value, pin_memory=True).copy_(value)
    return value.clone()


def _shared(value: Any) -> Any:
    """Another tensor with the same memory and the same count of changes; a copy where there is no count."""
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return copied(value)
    return value.detach()


class Repeated(dataloader._BaseDataLoaderIter):
    """An epoch of a loader that repeats its batch; a real one begins if another arm is on before its end."""

    def __init__(self, loader: Any) -> None:
        self._attach_loader, self._attach_drawn, self._attach_cached = loader, 0, 0
        self.real: Any = None
        self._num_workers, self._index_sampler = loader.num_workers, loader._index_sampler


def cache_input(agent: Agent) -> None:
    """While the arm is on every batch is a loader's first one; epochs keep their length. A stream has no
    length: its epoch does not end. What an evaluation draws is loaded as ever."""
    iterate = dataloader.DataLoader.__iter__

    # Each iterator knows its loader, and how much of the epoch it has drawn.
    @around(dataloader._BaseDataLoaderIter, "__init__")
    def _(begin: Any, self: Any, loader: Any) -> None:
        begin(self, loader)
        self._attach_loader, self._attach_drawn, self._attach_cached = loader, 0, 0

    @around(dataloader._BaseDataLoaderIter, "_reset")
    def _(reset: Any, self: Any, *arguments: Any, **options: Any) -> None:
        reset(self, *arguments, **options)  # of workers that are kept
        self._attach_drawn = self._attach_cached = 0

    def is_cached(loader: Any) -> bool:
        return agent.arm.is_cached and agent.is_training and hasattr(loader, "_attach_first")

    @around(dataloader.DataLoader, "__iter__")
    def _(iterate: Any, self: Any) -> Any:
        return Repeated(self) if is_cached(self) else iterate(self)

    @around(dataloader._BaseDataLoaderIter, "__next__")
    def _(draw: Any, self: Any) -> Any:
        loader: Any = getattr(self, "_attach_loader", None)
        if is_cached(loader):
            if self._attach_drawn >= _length(loader):
                raise StopIteration
            self._attach_drawn += 1
            self._attach_cached += 1
            if getattr(self, "_attach_ready", None) is None:
                self._attach_ready = _ready(self)
            agent.facts["has_cached_input"] = True
            return loader._attach_first.give()
        if getattr(self, "_attach_cached", 0) and self._attach_drawn >= _length(loader):
            raise StopIteration  # or what was repeated would make the epoch longer
        if isinstance(self, Repeated):
            self._attach_drawn += 1
            self.real = self.real or iterate(loader)
            return draw(self.real)
        while getattr(self, "_attach_ready", None) is not None and _ready(self) > self._attach_ready:
            draw(self)  # workers went on: what they have made meanwhile is no part of the next arm
        self._attach_ready = None
        batch = draw(self)
        if loader is not None:
            self._attach_drawn += 1
            if agent.is_training and not hasattr(loader, "_attach_first"):
                loader._attach_first = Repeats(batch)
        return batch


def _ready(iterator: Any) -> int:
    """The batches that loader workers have made and that were not drawn; 0 without workers."""
    try:
        waiting = iterator._data_queue.qsize()
    except (AttributeError, NotImplementedError):  # there are none; macOS
        return 0
    return int(waiting) + sum(len(task) > 1 for task in iterator._task_info.values())


def _length(loader: Any) -> float:
    try:
        return len(loader)
    except Exception:  # noqa: BLE001 # a stream, or a sampler without a length
        return math.inf
