"""Exchanges of buckets as CUDA graphs, which a communication hook replays: one launch instead of some twenty.

Neighbouring buckets with small messages share a graph, replayed when the last of them is there. The last
bucket, whose exchange nothing hides, has its own. Graphs work on the buckets' own memory, which DDP keeps
once its buckets stay. Reference: docs.pytorch.org/docs/stable/notes/cuda.html (CUDA graphs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker, unmarked
from scaling.aggregators.state import AggregatorState, load_buckets, save_buckets
from scaling.measure.phases import GraphMarks, PhaseRecorder, uncollected
from scaling.process_group import Group
from scaling.training.exchanges import Record, recorded

WARMUP_CALLS = 3
SHARED_BYTES = 100 * 2**20  # of gradients, at most, that share a graph

Exchange = Callable[[AggregatorState, Tensor, PhaseMarker], Tensor]
Future = torch.futures.Future[Tensor]


def can_capture(aggregator: Aggregator[Any], group: Group, device: torch.device) -> bool:
    works = group.world_size > 1 and not group.through_host
    return works and device.type == "cuda" and aggregator.exchanges and aggregator.graph_capturable


@dataclass(frozen=True)
class _Bucket:
    state: AggregatorState
    gradient: Tensor
    mean: Tensor
    future: Future


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    buckets: list[_Bucket]
    metered: tuple[int, int]
    marks: GraphMarks | None

    def replay(self, aggregator: Aggregator[Any], record: Record | None, below: int | None = None) -> None:
        """All exchanges; with a record each is added to it, the first bucket's first."""
        count = len(self.buckets) if below is None else below
        if record is None or count == 0:
            self.graph.replay()
            return
        bucket = self.buckets[count - 1]

        def rest() -> Tensor:
            self.replay(aggregator, record, count - 1)
            return bucket.mean

        recorded(aggregator, bucket.state, bucket.gradient, record, rest)


class BucketGraphs:
    """Collective to make; states and random state are afterwards as before. `gradients`: each bucket's
    memory; `in_place`: means end there; `recorder`: has replays pass marks between phases (torch 2.8)."""

    def __init__(
        self,
        aggregator: Aggregator[Any],
        exchange: Exchange,
        states: Sequence[AggregatorState],
        gradients: Sequence[Tensor],
        *,
        in_place: bool,
        recorder: PhaseRecorder | None = None,
    ) -> None:
        self._aggregator, self._exchange, self._recorder = aggregator, exchange, recorder
        self._in_place = in_place
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._meter = states[0].group.meter
        saved, random_state = save_buckets(states), torch.cuda.get_rng_state()
        self._stream.wait_stream(torch.cuda.current_stream())
        pool = torch.cuda.graph_pool_handle()
        sizes = [gradient.nbytes for gradient in gradients]
        limit = SHARED_BYTES if aggregator.lossy else 0
        self._graph_behind: dict[int, _Graph] = {}
        self._buckets: list[_Bucket] = []
        spans = shared(sizes, limit)
        with torch.cuda.stream(self._stream), uncollected():
            # All exchanges before any capture, which one rank alone may fail in: the others would wait.
            metered = [self._warm(states[slice(*span)], gradients[slice(*span)]) for span in spans]
            torch.cuda.synchronize()
            for (first, stop), moved in zip(spans, metered, strict=True):
                graph = self._capture(states[first:stop], gradients[first:stop], moved, pool)
                self._graph_behind[stop - 1] = graph
                self._buckets += graph.buckets
        torch.cuda.current_stream().wait_stream(self._stream)
        load_buckets(states, saved)
        torch.cuda.set_rng_state(random_state)
        torch.cuda.synchronize()

    def _exchanged(
        self, states: Sequence[AggregatorState], memory: Sequence[Tensor], phase: PhaseMarker
    ) -> list[Tensor]:
        pairs = zip(states, memory, strict=True)
        means = [self._exchange(state, gradient, phase) for state, gradient in pairs]
        if not self._in_place:
            return means
        return [own.copy_(mean) for own, mean in zip(memory, means, strict=True)]

    def _warm(self, states: Sequence[AggregatorState], gradients: Sequence[Tensor]) -> tuple[int, int]:
        """Exchanges some buckets' copies; the bytes and messages that this rank sends in each exchange."""
        copies = [gradient.clone() for gradient in gradients]  # a step may be under way
        for _ in range(WARMUP_CALLS):
            self._meter.reset()
            self._exchanged(states, copies, unmarked)
        metered = (self._meter.bytes_sent, self._meter.messages_sent)
        self._meter.reset()
        return metered

    def _capture(
        self,
        states: Sequence[AggregatorState],
        gradients: Sequence[Tensor],
        metered: tuple[int, int],
        pool: Any,
    ) -> _Graph:
        marks = GraphMarks() if self._recorder is not None else None
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool, "thread_local")  # not `torch.cuda.graph`, which collects garbage each time
        try:
            means = self._exchanged(states, gradients, marks.on_lane("comm") if marks else unmarked)
        finally:
            graph.capture_end()
        self._meter.reset()
        buckets = [_Bucket(*of) for of in zip(states, gradients, means, map(_known, means), strict=True)]
        return _Graph(graph, buckets, metered, marks)

    def launch(self, index: int, gradient: Tensor, record: Record | None, *, is_profiled: bool) -> Future:
        """The future has the mean. The current stream waits for all exchanges behind the last bucket."""
        bucket = self._buckets[index]
        assert bucket.gradient.data_ptr() == gradient.data_ptr(), "DDP keeps the memory of its buckets"
        graph = self._graph_behind.get(index)
        if graph is not None:
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                graph.replay(self._aggregator, record)
            self._meter.count(*graph.metered)
            if is_profiled and graph.marks is not None and self._recorder is not None:
                graph.marks.place(self._recorder)
            if index == len(self._buckets) - 1:
                current.wait_stream(self._stream)
        return bucket.future


def shared(sizes: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Which buckets share a graph: [first, stop), of `limit` bytes at most; the last one shares none."""
    spans: list[tuple[int, int]] = []
    first = 0
    for index in range(len(sizes)):
        is_last_but_one = index >= len(sizes) - 2
        if is_last_but_one or sum(sizes[first : index + 2]) > limit:
            spans.append((first, index + 1))
            first = index + 1
    return spans


def _known(mean: Tensor) -> Future:
    future: Future = torch.futures.Future()
    future.set_result(mean)
    return future
