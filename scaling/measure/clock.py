"""Clocks for phases: CUDA events on a GPU, a monotonic clock on the CPU.

The time between two marks of a GPU is asked for after the measured window, never inside it. A GPU's clock is
tied to the host's monotonic clock, which the processes of one host share, at moments when the device is idle
("anchors"); between two anchors it is interpolated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import torch

ANCHOR_TRIES = 5


class Anchor(NamedTuple):
    """`host_s`: of the mark, of `time.perf_counter`; it is off by no more than `uncertainty_s`."""

    mark: Any
    host_s: float
    uncertainty_s: float


class MonotonicClock:
    """`chain_s`: two phases that follow each other within this time share a mark, which costs so much."""

    chain_s = 0.0
    is_asynchronous = False

    def mark(self) -> Any:
        """A point in the order of this rank's work."""
        return time.perf_counter()

    def settle(self) -> None:
        """Waits until every mark taken is in the past. Not for use inside a measured window."""

    def seconds(self, start: Any, stop: Any) -> float:
        """Time from `start` to `stop`, after `settle`; negative where `stop` came first."""
        return float(stop - start)

    def anchor(self) -> Anchor:
        """A mark now, and its time on the host. Settles; not for use inside a measured window."""
        now = time.perf_counter()
        return Anchor(now, now, 0.0)

    def reuse(self, marks: Iterable[Any]) -> None:
        """Those marks are not needed any more."""


class CudaEventClock:
    """Events on the current CUDA stream; a mark is passed when all work queued before it is done. Making one
    takes the host longer than recording it, so they are used again."""

    chain_s = 20e-6
    is_asynchronous = True

    def __init__(self) -> None:
        self._free: list[torch.cuda.Event] = []

    def mark(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else self._new()
        event.record()
        return event

    def _new(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def reuse(self, marks: Iterable[torch.cuda.Event]) -> None:
        self._free.extend(marks)

    def settle(self) -> None:
        torch.cuda.synchronize()

    def seconds(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        return float(start.elapsed_time(stop)) / 1e3

    def anchor(self) -> Anchor:
        """The event that was passed soonest after it was recorded, of several on the idle device."""
        return min((self._try_anchor() for _ in range(ANCHOR_TRIES)), key=lambda anchor: anchor.uncertainty_s)

    def _try_anchor(self) -> Anchor:
        torch.cuda.synchronize()
        before = time.perf_counter()
        event = self.mark()
        event.synchronize()
        after = time.perf_counter()
        return Anchor(event, (before + after) / 2, (after - before) / 2)


class GraphClock(CudaEventClock):
    """Events that become part of the CUDA graph under capture; each replay passes them anew."""

    def _new(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]


def graphs_can_be_marked() -> bool:
    """Whether this torch can record events inside a CUDA graph (`external`, since torch 2.8)."""
    try:
        torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]
    except TypeError:
        return False
    return True


Clock: TypeAlias = MonotonicClock | CudaEventClock


def clock_for(device: torch.device) -> Clock:
    return CudaEventClock() if device.type == "cuda" else MonotonicClock()


def waits_for_queued(stream: torch.cuda.Stream) -> Callable[[], None]:
    """Has `stream` wait, from the call on, for what the current stream has been given so far."""
    queued = torch.cuda.current_stream().record_event()
    return lambda: stream.wait_event(queued)
