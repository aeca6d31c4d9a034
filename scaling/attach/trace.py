"""Reads the Kineto traces of a few steps on GPUs: NCCL kernels, idle GPUs, and ranks that come late."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WORK = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of what runs on a GPU
SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
LATE_RATIO = 0.7  # the late rank comes last to so many of the collectives


@dataclass(frozen=True)
class Traced:
    num_steps: int
    step_s: float  # first kernel to the end of the last. The profiler slows the host: longer than usual
    nccl_s: float
    moving_s: float  # of those, without waiting: each as short as on the rank that comes last to it
    exposed_s: float  # of NCCL kernels, while no other kernel ran; with the waiting
    busy_s: float  # in which the GPU ran anything. How idle it is, a run without the profiler has to say
    syncs_a_step: float  # calls with which the host waited for the GPU
    sync_ratio: float
    late_rank: int | None  # comes last to most collectives: its kernels wait least. None if none does


def read_traces(paths: Sequence[Path], num_steps: int) -> Traced | None:
    """What the ranks' traces say, in the order of ranks; None without a kernel on a GPU."""
    ranks = [_events(path) for path in paths]
    by_rank = [figures for events in ranks if (figures := _read(events, num_steps))]
    if not ranks or len(by_rank) < len(ranks):
        return None
    step_s, nccl_s, exposed_s, busy_s, syncs, waited = map(float, np.median(by_rank, axis=0))
    in_order = [sorted(filter(_is_nccl, events), key=lambda event: float(event["ts"])) for events in ranks]
    kernels = [[float(event["dur"]) / 1e6 for event in events] for events in in_order]
    same_kernels = len(set(map(len, kernels))) == 1
    moving_s = sum(map(min, zip(*kernels, strict=True))) / num_steps if same_kernels else nccl_s
    return Traced(num_steps, step_s, nccl_s, moving_s, exposed_s, busy_s, syncs, waited, _late_rank(kernels))


def _events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        content = json.load(file)
    return [event for event in content["traceEvents"] if event.get("ph") == "X" and "dur" in event]


def _is_nccl(event: dict[str, Any]) -> bool:
    return event.get("cat") == "kernel" and "nccl" in str(event["name"]).lower()


def _read(events: Sequence[dict[str, Any]], num_steps: int) -> tuple[float, ...] | None:
    work = [event for event in events if event.get("cat") in WORK]
    if not work:
        return None
    starts, stops = zip(*map(_interval, work), strict=True)
    busy_s, other_s = _covered_s(work), _covered_s(event for event in work if not _is_nccl(event))
    syncs = [event for event in events if event["name"] in SYNCS]
    span_s = max(stops) - min(starts)
    sums = span_s, _covered_s(filter(_is_nccl, work)), busy_s - other_s, busy_s, len(syncs)
    return *(one / num_steps for one in sums), min(_covered_s(syncs) / span_s, 1.0)


def _interval(event: dict[str, Any]) -> tuple[float, float]:
    start_s = float(event["ts"]) / 1e6
    return start_s, start_s + float(event["dur"]) / 1e6


def _covered_s(events: Iterable[dict[str, Any]]) -> float:
    covered_s, until_s = 0.0, -math.inf
    for start_s, stop_s in sorted(map(_interval, events)):
        covered_s += max(stop_s - max(start_s, until_s), 0.0)
        until_s = max(until_s, stop_s)
    return covered_s


def _late_rank(ranks: Sequence[Sequence[float]]) -> int | None:
    """A kernel ends when all ranks have come: that of the last is the shortest. No clocks are compared."""
    count = min(map(len, ranks), default=0)
    if len(ranks) < 2 or not count or len(set(map(len, ranks))) > 1:
        return None
    seconds = np.array(ranks)
    times, longest = np.bincount(seconds.argmin(axis=0)), seconds.max(axis=0)
    rank = int(times.argmax())
    is_waited_for = (longest - seconds[rank]).sum() > 0.2 * longest.sum()
    return rank if times[rank] >= LATE_RATIO * count and is_waited_for else None
