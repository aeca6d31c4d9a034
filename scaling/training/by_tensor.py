"""A step that pushes and pulls each tensor as soon as its gradient is there, as a key-value store does.

Each parameter is a bucket; exchanges and updates run one after the other, on a stream of their own, or in a
thread where the processor sums. Where the whole mean is to be clipped, the updates come at the end.

Reference: apache/mxnet, python/mxnet/model.py (`_update_params_on_kvstore`) and src/engine.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import HOST_SITES, Aggregator
from scaling.collectives.execute import side_stream
from scaling.measure.clock import waits_for_queued
from scaling.measure.phases import UNMARKED, Marks
from scaling.training.exchanges import aggregate
from scaling.training.replica import FlatReplica, take_passes
from scaling.training.step import EagerStep


class ByTensorStep(EagerStep):
    def __init__(self, replica: FlatReplica, *chosen: Any) -> None:
        super().__init__(replica, *chosen)
        device = replica.trainable[0].device
        self._stream = side_stream(device)
        by_host = self._aggregator.update_site in HOST_SITES
        threaded = by_host or self._stream is None
        # A thread begins on GPU 0, where every rank would open a context of half a GB.
        on_own = partial(torch.cuda.set_device, device) if self._stream is not None else None
        self._thread = ThreadPoolExecutor(1, "exchange", on_own) if threaded else None
        self._begun: list[Future[None]] = []
        self._waiting: set[int] = set()  # tensors whose exchange has not begun
        self._means: list[Tensor | None] = [None] * len(self._parts)
        self._marks: Marks = UNMARKED
        self._is_last = False
        self._failure: BaseException | None = None
        ready = weakref.WeakMethod(self._ready)  # a parameter outlives the step
        for number, parameter in enumerate(replica.trainable):
            register: Any = parameter.register_post_accumulate_grad_hook
            register(lambda _, number=number: (call := ready()) and call(number))

    def _aggregators(self, world_size: int) -> list[Aggregator[Any]]:
        return self._aggregator.by_tensor(self.replica.layout, world_size)

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        if self._failure is not None:
            raise self._failure  # the other ranks still wait for what failed
        self._marks = marks
        self._waiting = set(range(len(self._parts)))
        try:
            last_only = partial(setattr, self, "_is_last")
            loss = take_passes(self.replica, inputs, targets, marks, self.treatment.scaled, around=last_only)
            for number in sorted(self._waiting):  # the loss does not depend on these
                self._begin(number)
            for exchange in self._begun:
                exchange.result()
        except BaseException as failure:
            self._failure = self._failure or failure  # nothing that is queued begins
            raise
        finally:
            self._begun = []
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        if self.treatment.waits_for_all:
            with torch.no_grad():
                self._update_all(self._means, marks.phase)
        return loss

    def _ready(self, number: int) -> None:
        if self._is_last and number in self._waiting:
            self._begin(number)

    def _begin(self, number: int) -> None:
        self._waiting.discard(number)
        if self._thread is not None:
            wait = waits_for_queued(self._stream) if self._stream is not None else None
            self._begun.append(self._thread.submit(self._unless_failed, number, wait))
            return
        assert self._stream is not None, "without a stream there is a thread"
        self._stream.wait_stream(torch.cuda.current_stream())
        self._bring_one(number)

    def _unless_failed(self, number: int, wait: Callable[[], None] | None) -> None:
        """In the thread. After a failure nothing is run: the other ranks still wait for what failed."""
        if self._failure is not None:
            return
        try:
            if wait is not None:
                wait()
            self._bring_one(number)
        except BaseException as failure:
            self._failure = failure
            raise

    @torch.no_grad()
    def _bring_one(self, number: int) -> None:
        part, phase = self._parts[number], self._marks.on_lane("comm")
        with torch.cuda.stream(self._stream):
            mean = aggregate(
                part.aggregator, part.state, part.bucket.gradient, phase, self.record, self._wire
            )
            if self.treatment.waits_for_all:
                self._means[number] = mean
            else:
                part.update.apply(mean, phase)
