"""Exchanges of buckets as CUDA graphs, one a bucket, which a communication hook replays.

In a hook the host is the limit: Python and some twenty launches a bucket hold back the backward pass, for a
1-bit exchange of GPT-2 small by half of the step. A replay is one launch. A graph is made on the bucket's own
memory, which DDP keeps once its buckets stay; where that has moved, the exchange runs as it is written.

Reference: the CUDA graphs section of torch's documentation (notes/cuda.html).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker, unmarked
from scaling.aggregators.state import AggregatorState, load_buckets, save_buckets
from scaling.measure.graph_marks import GraphMarks
from scaling.process_group import Group

WARMUP_CALLS = 3
"""Before a capture: libraries set themselves up."""

Exchange = Callable[[AggregatorState, Tensor, PhaseMarker], Tensor]


def can_capture(aggregator: Aggregator[Any], group: Group, device: torch.device) -> bool:
    """Whether the exchange of a bucket can be a graph."""
    works = group.world_size > 1 and not group.through_host
    return works and device.type == "cuda" and aggregator.exchanges and aggregator.graph_capturable


@dataclass(frozen=True)
class BucketGraph:
    """One bucket's exchange.

    Attributes:
        gradient: [num_elements] the memory that it reads.
        mean: [num_elements] where a replay leaves the mean.
        metered: bytes and messages of an exchange.
        marks: those that a replay passes; None where it passes none.
    """

    graph: torch.cuda.CUDAGraph
    gradient: Tensor
    mean: Tensor
    metered: tuple[int, int]
    marks: GraphMarks | None

    def replay(self) -> Tensor:
        """The mean, in the order of the current stream; valid until the next call."""
        self.graph.replay()
        return self.mean


def capture(
    exchange: Exchange,
    states: Mapping[int, AggregatorState],
    gradients: Mapping[int, Tensor],
    stream: torch.cuda.Stream,
    *,
    marked: bool = False,
) -> dict[int, BucketGraph]:
    """A graph for each bucket; states and random state are afterwards as before. Collective.

    Args:
        exchange: gives the mean of a bucket's gradients.
        states: of the aggregator, by bucket.
        gradients: [num_elements] each bucket's memory; its values may change.
        stream: on which graphs will be replayed.
        marked: with marks between phases, where this torch has them (2.8).
    """
    in_order = [states[index] for index in sorted(states)]
    saved, random_state = save_buckets(in_order), torch.cuda.get_rng_state()
    stream.wait_stream(torch.cuda.current_stream())
    pool = torch.cuda.graph_pool_handle()
    graphs = {}
    with torch.cuda.stream(stream):
        for index in sorted(states):
            graphs[index] = _captured(exchange, states[index], gradients[index], pool, marked=marked)
    torch.cuda.current_stream().wait_stream(stream)
    load_buckets(in_order, saved)
    torch.cuda.set_rng_state(random_state)
    torch.cuda.synchronize()
    return graphs


def _captured(
    exchange: Exchange, state: AggregatorState, gradient: Tensor, pool: Any, *, marked: bool
) -> BucketGraph:
    meter = state.group.meter
    for _ in range(WARMUP_CALLS):
        meter.reset()
        exchange(state, gradient, unmarked)
    metered = (meter.bytes_sent, meter.messages_sent)
    torch.cuda.synchronize()
    marks = GraphMarks() if marked else None
    graph = torch.cuda.CUDAGraph()
    # Not `torch.cuda.graph`, which collects garbage for each bucket.
    graph.capture_begin(pool, "thread_local")
    try:
        mean = exchange(state, gradient, marks.on_lane("comm") if marks else unmarked)
    finally:
        graph.capture_end()
    meter.reset()
    return BucketGraph(graph, gradient, mean, metered, marks)
