"""Exchanges under the backward pass: when each bucket is ready, and what of its exchange is left over.

1. Gradients become ready from the last tensor to the first; the time of the backward pass is spread over the
   tensors as their elements. (Exact for dense layers, where products go with weights; not for convolutions,
   whose early layers take longer than their weights tell.)
2. DDP closes a bucket as soon as it holds its size.
3. Exchanges follow one another; each starts when its bucket is ready and the one before has ended.
4. What ends after the backward pass is exposed.

That an exchange slows the backward pass down is in `scaling.prediction.overlap_fit`.

Reference: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
arXiv 2006.15704.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaling.bucket import BucketLayout
from scaling.prediction.estimate import NOTHING, PredictedValue


def ddp_buckets(layout: BucketLayout, sizes_mb: Sequence[float], itemsize: int = 4) -> list[BucketLayout]:
    """DDP's buckets of gradients of one dtype, in the order in which they become ready.

    Args:
        layout: of all tensors.
        sizes_mb: of the first buckets one by one, in MiB; the last is that of all that follow.
        itemsize: bytes of an element.
    """
    limits = [size * 2**20 for size in sizes_mb]
    buckets: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    filled = 0.0
    for name, shape in reversed(list(zip(layout.names, layout.shapes, strict=True))):
        buckets[-1].append((name, shape))
        filled += itemsize * math.prod(shape)
        if filled >= limits[min(len(buckets), len(limits)) - 1]:
            buckets.append([])
            filled = 0.0
    return [BucketLayout.of(bucket) for bucket in buckets if bucket]


def exposed(
    exchanges: Sequence[PredictedValue], bucket_elements: Sequence[int], backward_s: float
) -> PredictedValue:
    """What the backward pass does not hide.

    The uncertainty is that of the exchanges from the last moment on at which one had to wait for its bucket.
    """
    num_elements, ready = sum(bucket_elements), 0
    end_s, since_wait = 0.0, NOTHING
    for exchange, elements in zip(exchanges, bucket_elements, strict=True):
        ready += elements
        ready_s = backward_s * ready / num_elements if num_elements else backward_s
        if ready_s >= end_s:
            end_s, since_wait = ready_s, NOTHING
        end_s += exchange.value
        since_wait = since_wait + exchange
    return PredictedValue(max(0.0, end_s - backward_s), since_wait.changes)
