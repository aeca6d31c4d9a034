"""Whether other buckets are faster than DDP's own, and what the exchange still costs.

1. All are measured in a few launches, then the fastest candidate and the default in some more.
2. Each candidate's difference from the default is taken launch by launch (`scaling.analysis.study_scatter`),
   all together with Holm's correction, one-sidedly: one is faster only if it is shown to be, and the chance
   that any is taken for faster that is not is 5% at most. Whether others are slower need not be shown.
3. The fastest of those that are shown to be faster is the choice; without any the default stays.
4. What the choice takes beyond the control arm without exchange is what could still be gained.

When buckets are ready and how long their exchanges take, from the profiled iterations of a cell.

On the lane `hook` of a profiled iteration stands when the backward pass hands a bucket on, on the lane `comm`
its exchange. Every rank takes part in an exchange, so a bucket is ready when it is on the last rank, and an
exchange takes what it does on the rank that comes last. What the computation waited for the host in earlier
hooks is taken off: a step that is not profiled does not wait so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from scaling.analysis.decisions import Difference, adjusted, launches_needed
from scaling.analysis.findings import Finding
from scaling.analysis.noise import scatter_of
from scaling.analysis.samples import CellResult, Floats
from scaling.errors import ScalingError
from scaling.measure.budget import HOOK, RankStep, Span
from scaling.measure.statistics import CONFIDENCE


def tuned_buckets(
    cells: Sequence[CellResult], default: str, candidates: Sequence[str], control: str | None
) -> Finding:
    """Which buckets to use, as a finding of that name, whose first cell is the choice; `default` is the id of
    the cell with DDP's own, `control` that of the cell without exchange, if it was measured."""
    scatter = scatter_of(cells)
    known = [cell_id for cell_id in candidates if scatter.num_launches(cell_id)]
    differences = {cell_id: scatter.difference(default, cell_id) for cell_id in known}
    p_values = adjusted([_p_of_not_faster(difference) for difference in differences.values()])
    faster = {
        cell_id: difference
        for (cell_id, difference), p_value in zip(differences.items(), p_values, strict=True)
        if p_value < 1 - CONFIDENCE
    }
    choice = min(faster, key=lambda cell_id: faster[cell_id].log_ratio, default=default)
    num_launches = scatter.num_launches(default)
    times = {cell.cell_id: cell for cell in cells}
    exchange_ratio = None
    if control is not None and scatter.num_launches(control):
        exchange_ratio = _ratio(scatter.difference(control, choice))
    values: dict[str, Any] = {
        "step_s": _iteration_s(times[choice]),
        "default_s": _iteration_s(times[default]),
        "gain": _ratio(differences[choice]) if choice != default else None,
        "control_s": None if exchange_ratio is None or control is None else _iteration_s(times[control]),
        "left": exchange_ratio,
        "num_launches": num_launches,
        "needed": None if faster else _launches_needed([*differences.values()], num_launches),
        "tried": [_ratio(difference) for difference in differences.values()],
    }
    return Finding("tuned_buckets", (choice, *(one for one in (default, *known) if one != choice)), values)


def fastest(cells: Sequence[CellResult], num_launches: int) -> CellResult | None:
    """The cell with the least geometric mean of times over the first launches, which all of them have."""
    times_s = {
        cell.cell_id: [launch.iteration_s for launch in cell.launches if launch.repeat < num_launches]
        for cell in cells
    }
    timed = [cell for cell in cells if times_s[cell.cell_id]]
    return min(timed, key=lambda cell: statistics.geometric_mean(times_s[cell.cell_id]), default=None)


def _p_of_not_faster(difference: Difference) -> float:
    """The p value of the one-sided test that the second is as slow as the first, or slower."""
    if difference.p_value is None:
        return 1.0
    return difference.p_value / 2 if difference.log_ratio < 0 else 1 - difference.p_value / 2


def _launches_needed(differences: Sequence[Difference], num_launches: int) -> int | None:
    """How many would show the fastest to be faster, if it is; None where none seems to be."""
    best = min(differences, key=lambda difference: difference.log_ratio, default=None)
    if best is None or best.log_ratio >= 0 or best.error is None:
        return None
    level = 2 * (1 - CONFIDENCE) / len(differences)  # two-sided, as it is asked for
    return launches_needed(best.log_ratio, best.error * math.sqrt(num_launches), level)


def _ratio(difference: Difference) -> dict[str, float | None]:
    low, high = difference.interval or (None, None)
    return {"ratio": difference.ratio, "low": low, "high": high}


def _iteration_s(cell: CellResult) -> float:
    return statistics.geometric_mean(launch.iteration_s for launch in cell.launches)


COMM = "comm"


@dataclass(frozen=True)
class BucketTimes:
    """Of each bucket, in the order of the exchanges."""

    num_bytes: tuple[int, ...]  # of its gradients
    # when it is complete, from the start of the step: the median over profiled iterations
    ready_s: tuple[float, ...]
    exchange_s: tuple[float, ...]  # its exchange likewise, with what encodes and decodes it


def bucket_times(cell: CellResult, num_bytes: tuple[int, ...] | None = None) -> BucketTimes:
    """The times of a profiled cell's buckets, of `num_bytes` or as recorded; ScalingError: not known."""
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
