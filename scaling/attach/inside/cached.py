"""Loaders that give one batch again and again while the arm with cached input is on."""

import math
from typing import Any

from torch.utils.data import dataloader

from .agent import Agent
from .repeats import Repeats


class Repeated(dataloader._BaseDataLoaderIter):
    """An epoch of a loader that repeats its batch; a real one begins if another arm is on before its end."""

    def __init__(self, loader: Any) -> None:
        self._attach_loader, self._attach_drawn, self._attach_cached = loader, 0, 0
        self.real: Any = None
        self._num_workers = loader.num_workers
        self._index_sampler = loader._index_sampler


def cache_input(agent: Agent) -> None:
    """While the arm is on every batch is a loader's first one; epochs keep their length.

    A stream has no length: its epoch does not end. What an evaluation draws is loaded as ever.
    """
    _follow_epochs()
    iterator, iterate = dataloader._BaseDataLoaderIter, dataloader.DataLoader.__iter__
    draw = iterator.__next__

    def is_cached(loader: Any) -> bool:
        return agent.arm.is_cached and agent.is_training and hasattr(loader, "_attach_first")

    def iterating(self: Any) -> Any:
        return Repeated(self) if is_cached(self) else iterate(self)

    def following(self: Any) -> Any:
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

    dataloader.DataLoader.__iter__ = iterating  # type: ignore[method-assign]
    iterator.__next__ = following  # type: ignore[method-assign]


def _ready(iterator: Any) -> int:
    """The batches that loader workers have made and that were not drawn; 0 without workers."""
    if not hasattr(iterator, "_data_queue"):
        return 0
    try:
        waiting = iterator._data_queue.qsize()
    except NotImplementedError:  # macOS
        return 0
    return int(waiting) + sum(len(task) > 1 for task in iterator._task_info.values())


def _follow_epochs() -> None:
    """Each iterator knows its loader, and how much of the epoch it has drawn."""
    iterator = dataloader._BaseDataLoaderIter
    begin, reset = iterator.__init__, iterator._reset

    def init(self: Any, loader: Any) -> None:
        begin(self, loader)
        self._attach_loader, self._attach_drawn, self._attach_cached = loader, 0, 0

    def again(self: Any, *arguments: Any, **options: Any) -> None:
        reset(self, *arguments, **options)  # of workers that are kept
        self._attach_drawn = self._attach_cached = 0

    iterator.__init__, iterator._reset = init, again  # type: ignore[method-assign]


def _length(loader: Any) -> float:
    """The batches of an epoch; infinite where that is not known."""
    try:
        return len(loader)
    except Exception:  # noqa: BLE001 # a stream, or a sampler without a length
        return math.inf
