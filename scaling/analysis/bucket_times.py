"""When buckets are ready and how long their exchanges take, from the profiled iterations of a cell.

On the lane `hook` of a profiled iteration stands when the backward pass hands a bucket on, on the lane `comm`
its exchange. Every rank takes part in an exchange, so a bucket is ready when it is on the last rank, and an
exchange takes what it does on the rank that comes last. What the computation waited for the host in earlier
hooks is taken off: a step that is not profiled does not wait so.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.samples import CellResult
from scaling.errors import ScalingError
from scaling.measure.budget import HOOK, RankStep, Span

Floats = NDArray[np.float64]
COMM = "comm"


@dataclass(frozen=True)
class BucketTimes:
    """Of each bucket, in the order of the exchanges.

    Attributes:
        num_bytes: of its gradients.
        ready_s: when it is complete, from the start of the step: the median over profiled iterations.
        exchange_s: its exchange likewise, with what encodes and decodes it.
    """

    num_bytes: tuple[int, ...]
    ready_s: tuple[float, ...]
    exchange_s: tuple[float, ...]


def bucket_times(cell: CellResult, num_bytes: tuple[int, ...] | None = None) -> BucketTimes:
    """The times of a cell's buckets.

    Args:
        cell: with a run that was profiled.
        num_bytes: of its buckets; None: as its run recorded them.

    Raises:
        ScalingError: nothing was profiled, or it is not known which bucket a span is of.
    """
    recorded = [record.summary.get("bucket_bytes") for record in cell.done]
    sizes = num_bytes or tuple(next(filter(None, recorded), ()))
    steps = [step.ranks for launch in cell.launches for step in launch.profiled_steps]
    if not sizes or not steps:
        raise ScalingError(f"cell {cell.cell_id} has no profiled iterations of DDP's buckets")
    ready, exchanged_s = [], []
    for ranks in steps:
        hooks = [_of_lane(rank, HOOK) for rank in ranks]
        exchanges = [_of_lane(rank, COMM) for rank in ranks]
        if any(len(spans) != len(sizes) for spans in hooks) or any(len(s) % len(sizes) for s in exchanges):
            raise ScalingError(
                f"cell {cell.cell_id}: its profiled iterations are not of {len(sizes)} buckets"
            )
        ready.append(np.max([_without_waits(spans) for spans in hooks], axis=0))
        exchanged_s.append(np.min([_lengths(spans, len(sizes)) for spans in exchanges], axis=0))
    ready_s: Floats = np.maximum.accumulate(np.median(ready, axis=0))
    return BucketTimes(sizes, tuple(map(float, ready_s)), tuple(map(float, np.median(exchanged_s, axis=0))))


def _of_lane(rank: RankStep, lane: str) -> list[Span]:
    return sorted((span for span in rank.spans if span.lane == lane), key=lambda span: span.start_s)


def _without_waits(hooks: list[Span]) -> Floats:
    """Their starts, as if earlier ones had taken no time."""
    starts = np.array([span.start_s for span in hooks])
    waits = np.array([span.stop_s - span.start_s for span in hooks])
    earlier: Floats = np.concatenate([[0.0], np.cumsum(waits)[:-1]])
    return starts - earlier


def _lengths(spans: list[Span], num_buckets: int) -> Floats:
    """Of each bucket's exchange, which has equally many spans: from its first start to its last end."""
    each = len(spans) // num_buckets
    if each == 0:
        return np.zeros(num_buckets)
    places = pairwise(range(0, len(spans) + 1, each))
    return np.array([spans[last - 1].stop_s - spans[first].start_s for first, last in places])
