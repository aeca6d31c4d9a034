"""What Linux says of a rank's process on its host: the cores it may use, and how long it waited for one.

In `summary` `cpu_s` is of all threads; `queued_s` of the main thread, ready to run without a core; `cores`
are numbers. Reference: Linux kernel, "Scheduler Statistics" (/proc/<pid>/schedstat).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN_STATISTICS = Path("/proc/self/schedstat")


@dataclass(frozen=True)
class HostReading:
    """`queued_s`: its main thread's since the process began; None where the kernel does not count it."""

    at_s: float
    cpu_s: float
    queued_s: float | None
    cores: tuple[int, ...] | None


def reading(statistics: Path = OWN_STATISTICS) -> HostReading:
    cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else None
    return HostReading(time.perf_counter(), time.process_time(), _queued_s(statistics), cores)


def _queued_s(statistics: Path) -> float | None:
    try:
        on_cpu_ns, queued_ns, _ = map(int, statistics.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return queued_ns / 1e9 if on_cpu_ns else None  # all is 0 where the kernel does not count


def summary(before: HostReading, after: HostReading) -> dict[str, Any]:
    is_counted = before.queued_s is not None and after.queued_s is not None
    return {
        "window_s": after.at_s - before.at_s,
        "cpu_s": after.cpu_s - before.cpu_s,
        "queued_s": (after.queued_s or 0.0) - (before.queued_s or 0.0) if is_counted else None,
        "cores": None if after.cores is None else list(after.cores),
    }
