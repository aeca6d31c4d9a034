"""Caffe: one flat buffer up and down a binary tree of GPUs; later NCCL's all-reduce, layer by layer.

`caffe` (before January 2017), all learnable parameters as one buffer: GPUs pair up (on one board first, then
those with access to each other's memory, then the rest) until one is left, the root. Each pair's child sends
its gradient to its parent, which adds it: ceil(log2 n) levels. The root, which alone has the momentum,
divides by n and takes the step; the parameters go down the same tree. Steps: 2 ceil(log2 n). Bytes sent: by
the root S to each of its children; by every other GPU S up and S to each of its own children; 2(n-1) S by
all.

`caffe_nccl` (since): after a layer's backward pass, ncclAllReduce of that layer's gradients, last layer
first; divided by n; every GPU takes the step. Steps: NCCL's, once a layer. Bytes sent per rank: at least
2(n-1)/n S; metered is that of each layer, rounded down to whole bytes.

Both deliver the mean. Error: one order of summation, ours or NCCL's, so the ranks agree bit for bit.

References: Caffe, src/caffe/parallel.cpp and include/caffe/parallel.hpp at commit 01528918c (`DevicePair`,
`P2PSync`) and since commit 3ba20549b (`NCCL`, `layer_wise_reduce`); S. Shi, Q. Wang, P. Xu, X. Chu,
"Benchmarking State-of-the-Art Deep Learning Software Tools", arXiv 1608.07249v7 (2017), whose text describes
the tree.

Differences. `caffe`: a parent with several children adds them in the order of the levels, where Caffe adds
them as they arrive; parameters travel right after the update, where Caffe sends them at the start of the next
iteration; who has peer access to whom is not asked: it decides nothing where all or none have it, and
`gpus_per_board` covers the pairs of the paper's machine; where some pairs have it, set that, or pairs differ.
`caffe_nccl`: Caffe reduces a layer while backward goes on; in an eager step all layers follow backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import final

import torch
from pydantic import PositiveInt
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker, unmarked
from scaling.aggregators.prediction import all_reduce_bytes, native_all_reduce
from scaling.aggregators.schedule import Scheduled
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout, Span
from scaling.collectives.plan import Stage, Update
from scaling.collectives.schedule import Schedule
from scaling.collectives.tree import caffe_tree
from scaling.process_group import Group


@final
@dataclass(frozen=True)
class Caffe(Scheduled):
    """Caffe's tree: gradients go up to rank 0, which takes the optimizer step; parameters go down.

    `gpus_per_board`: ranks r with the same r // gpus_per_board share a board, and pair up first: 2 on the
    paper's machine of two K80. 1 where boards have one GPU, or are not known."""

    name = "caffe"
    update_site = "root"

    gpus_per_board: PositiveInt = 1

    def schedule(self, world_size: int, layout: BucketLayout) -> Schedule:
        return caffe_tree(world_size, self.gpus_per_board)


@dataclass
class LayerState(AggregatorState):
    layers: list[Span]


def layer_spans(layout: BucketLayout) -> list[Span]:
    """The elements of each layer, in the order of the bucket: neighbours whose names differ in the last part.
    `3.weight` and `3.bias` are one layer, `3`."""
    tensors = zip(layout.names, layout.spans, strict=True)
    layers = [list(of_one) for _, of_one in groupby(tensors, key=lambda tensor: tensor[0].rpartition(".")[0])]
    return [(layer[0][1][0], layer[-1][1][1]) for layer in layers]


@final
@dataclass(frozen=True)
class CaffeNccl(Aggregator[LayerState]):
    """Caffe with NCCL: one all-reduce a layer, the last layer first; every rank takes the optimizer step."""

    name = "caffe_nccl"
    modifies_input = True
    graph_capturable = True

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> LayerState:
        return LayerState(group, layout, layer_spans(layout)[::-1])

    def aggregate(self, state: LayerState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        if state.group.world_size > 1:
            with phase("communicate"):
                for start, stop in state.layers:
                    state.group.all_reduce(gradient[start:stop])
            with phase("reduce"):
                gradient.div_(state.group.world_size)
        return gradient

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        sizes = [itemsize * (stop - start) for start, stop in layer_spans(layout)]
        return all_reduce_bytes(sizes, world_size)

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        sizes = [stop - start for start, stop in layer_spans(layout)[::-1] if start < stop]
        exchanges = native_all_reduce(sizes, world_size, self.name)
        return [*exchanges, Update("replica", layout.num_elements)]
