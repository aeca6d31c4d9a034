"""What overlapped steps took beyond their prediction, where they were measured.

1. Hidden messages slow the backward pass: the library's kernels take multiprocessors and memory. The slowdown
   is a ratio of their time, with access between GPUs and without: the median over measured overlapped steps
   with a library's all-reduce.
2. What a strategy took beyond that stays with it at other world sizes, in seconds: hooks of several kernels
   hold the backward pass up while the host starts them. It is shrunk by the share of noise in it. Hooks that
   are no slower without access between GPUs are bound by the host: with access and without tell one time.

Reference: github.com/NVIDIA/nccl, issues 338 and 661 (computation that slows while NCCL's kernels run).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any

from scaling.bucket import BucketLayout
from scaling.prediction.buckets import closed_by
from scaling.prediction.estimate import NOTHING, PredictedValue


def ddp_buckets(layout: BucketLayout, sizes_mb: Sequence[float], itemsize: int = 4) -> list[BucketLayout]:
    """DDP's buckets of gradients of one dtype, in the order in which they become ready. `sizes_mb`: of the
    first ones, in MiB; the last is that of all that follow. `itemsize`: bytes of an element."""
    tensors = list(zip(layout.names, layout.shapes, strict=True))[::-1]
    ends = closed_by(sizes_mb, [itemsize * math.prod(shape) for _, shape in tensors])
    return [BucketLayout.of(tensors[first:end]) for first, end in pairwise((0, *ends))]


def exposed(
    exchanges: Sequence[PredictedValue], bucket_elements: Sequence[int], backward_s: float
) -> PredictedValue:
    """What the backward pass does not hide; as uncertain as the exchanges since one last waited."""
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


SLOWDOWN, SLOWDOWN_SD = 0.3, 0.3  # seconds that a hidden second of messages adds. Assumed

LEAST_SLOWDOWN_SD = 0.1
"""What a slowdown fitted to several networks is uncertain by at least, an assumption; to one `SLOWDOWN_SD`,
since networks differ by more than steps of one (over NVLink 0.6 to 0.9 of FCN-R, none of fcn-s4)."""

LEAST_HIDDEN_SHARE = 0.02  # of the step: messages of which less is hidden tell nothing of the slowdown
STEP_SD = 0.02  # of a predicted step without exchange: what smaller left-overs are taken as noise
KEPT_SD = 0.5  # of a left-over for each doubling of the world size: hooks that hold the host up need not grow


HOOK_S = 1e-3
"""What the host may take for a bucket in a hook of our own kernels, where that was not measured: what the
backward pass does not hide of it is in the interval. Measured: 0.7 and 1.9 ms (fcn-s4's one_bit, 2 H200)."""


@dataclass(frozen=True)
class OverlappedCell:
    """A measured overlapped step with its prediction; times in seconds."""

    key: tuple[str, ...]  # of the strategy
    peer_access: bool  # between GPUs
    by_library: bool  # a library's own all-reduce
    world_size: int  # ranks
    measured_s: float  # measured_s, predicted_s: the step
    predicted_s: float
    hidden_s: float  # of its messages
    compute_sd_s: float = 0.0  # of the predicted step, what its computation is uncertain by


@dataclass(frozen=True)
class OverlapFit:
    """Slowdowns by access between GPUs, as (ratio, deviation), and left-overs by strategy."""

    slowdowns: Mapping[bool, tuple[float, float]] = field(default_factory=dict)
    left_overs: Mapping[tuple[str, ...], tuple[float, float, int]] = field(default_factory=dict)

    def slowed(self, cell: Mapping[str, Any], hidden_s: float) -> PredictedValue:
        ratio, sd = self.slowdowns.get(cell.get("peer_access") is not False, (SLOWDOWN, SLOWDOWN_SD))
        return PredictedValue(hidden_s * ratio, {"backward pass slowed by exchanges": hidden_s * sd})

    def is_known(self, key: tuple[str, ...]) -> bool:
        """Whether the strategy's overlapped step was measured on several ranks."""
        return key in self.left_overs

    def left_over(self, key: tuple[str, ...], world_size: int, held_up_s: float = 0.0) -> PredictedValue:
        """What the strategy's overlapped step took on top; where it was not measured, 0 +- `held_up_s`."""
        if key not in self.left_overs:
            return PredictedValue(0.0, {f"overlap of {' '.join(key)}": held_up_s}) if held_up_s else NOTHING
        seconds, sd, at = self.left_overs[key]
        further = KEPT_SD * abs(seconds) * abs(math.log2(world_size / at))
        return PredictedValue(seconds, {f"overlap of {' '.join(key)}": math.hypot(sd, further)})


def fit_slowdowns(steps: Iterable[OverlappedCell]) -> OverlapFit:
    ratios: dict[bool, list[float]] = defaultdict(list)
    networks: dict[bool, set[str]] = {True: set(), False: set()}
    for step in steps:
        if step.by_library and step.hidden_s > LEAST_HIDDEN_SHARE * step.measured_s:
            ratio = SLOWDOWN + (step.measured_s - step.predicted_s) / step.hidden_s
            ratios[step.peer_access].append(min(max(ratio, 0.0), 1.0))
            networks[step.peer_access].add(step.key[0])
    least = {seen: LEAST_SLOWDOWN_SD if len(names) > 1 else SLOWDOWN_SD for seen, names in networks.items()}
    return OverlapFit(
        {
            access: (median(values), max(least[access], stdev(values)))
            for access, values in ratios.items()
            if len(values) > 2
        }
    )


def fit_left_overs(steps: Iterable[OverlappedCell], fit: OverlapFit) -> OverlapFit:
    """From steps that were predicted with the slowdowns of `fit`."""
    by_key: dict[tuple[str, ...], list[OverlappedCell]] = defaultdict(list)
    for step in _held_by_host(steps):
        by_key[step.key].append(step)
    left_overs = {}
    for key, measured in by_key.items():
        largest = max(step.world_size for step in measured)
        left_overs[key] = (*_kept([step for step in measured if step.world_size == largest]), largest)
    return OverlapFit(fit.slowdowns, left_overs)


def _held_by_host(steps: Iterable[OverlappedCell]) -> Iterator[OverlappedCell]:
    """The steps; hooks of own kernels that are no slower without access between GPUs tell one time: the host
    that starts their kernels bounds them then, not messages."""
    alike: dict[tuple[Any, ...], list[OverlappedCell]] = defaultdict(list)
    for step in steps:
        key = (*step.key[:-1], step.world_size)
        alike[key].append(step)
    for group in alike.values():
        near = [step.measured_s for step in group if step.peer_access]
        far = [step.measured_s for step in group if not step.peer_access]
        if not near or not far or group[0].by_library or fmean(far) > fmean(near):
            yield from group
            continue
        measured = [step.measured_s for step in group]
        for step in group:
            apart = math.hypot(step.compute_sd_s, stdev(measured))
            yield replace(step, measured_s=fmean(measured), compute_sd_s=apart)


def _kept(steps: Sequence[OverlappedCell]) -> tuple[float, float]:
    """The mean left-over without its share of noise, and its deviation."""
    values = [step.measured_s - step.predicted_s for step in steps]
    spread = stdev(values) if len(values) > 1 else 0.0
    computed = fmean(step.compute_sd_s for step in steps)
    noise = max(spread, computed, STEP_SD * fmean(step.predicted_s for step in steps))
    variance = max(0.0, fmean(values) ** 2 - noise**2)
    share = variance / (variance + noise**2)
    return share * fmean(values), math.sqrt(share) * noise
