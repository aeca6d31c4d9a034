"""Clocks for phases: CUDA events on a GPU, a monotonic clock on the CPU.

Both hand out marks that cost next to nothing to take; on a GPU the time between two marks is only known once
the device has passed them, so it is asked for after the measured window, never inside it. This is the only
module that touches CUDA events.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Takes marks now and tells the time between two of them later."""

    def mark(self) -> Any:
        """A point in the order of this rank's work."""

    def settle(self) -> None:
        """Waits until every mark taken is in the past. Not for use inside a measured window."""

    def seconds(self, start: Any, stop: Any) -> float:
        """Time from `start` to `stop`, after `settle`."""


class MonotonicClock:
    """The host's monotonic clock."""

    def mark(self) -> float:
        """Seconds since some fixed point."""
        return time.perf_counter()

    def settle(self) -> None:
        """Nothing is pending on a CPU."""

    def seconds(self, start: float, stop: float) -> float:
        """Their difference."""
        return stop - start


class CudaEventClock:
    """Events on the current CUDA stream; a mark is passed when all work queued before it is done."""

    def mark(self) -> torch.cuda.Event:
        """An event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def settle(self) -> None:
        """Synchronizes with the device."""
        torch.cuda.synchronize()

    def seconds(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        """Device time between the two events."""
        return float(start.elapsed_time(stop)) / 1e3


def clock_for(device: torch.device) -> Clock:
    """The clock of that kind of device."""
    return CudaEventClock() if device.type == "cuda" else MonotonicClock()
