"""Records what a step does when, as spans on lanes.

The lane `main` is the stream of the computation, where phases follow each other. Concurrently run `comm` (an
exchange under the backward pass) and `copy` (the next batch on its way). On `hook` stands how long the
computation waited for the host to set an exchange going.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from scaling.aggregators.base import PhaseMarker, unmarked
from scaling.measure.budget import PHASES
from scaling.measure.clock import Clock, GraphClock

Lane = Literal["main", "comm", "copy", "hook"]

COMPUTED = ("forward", "backward")  # phases of which it is recorded how far the device is behind the host


class Marks:
    """What a step marks its phases on: this one notes nothing."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A phase on the lane `main`."""
        return nullcontext()

    def on_lane(self, lane: Lane) -> PhaseMarker:
        """Marks phases on another lane, also from another thread."""
        return unmarked

    def paused(self, *, until_beside_ends: bool = False) -> AbstractContextManager[None]:
        """What runs inside is no part of the phase that is open on `main`, but `communicate` on `hook`.
        `until_beside_ends`: what follows of the phase begins when the lane `comm` is done."""
        return nullcontext()


UNMARKED = Marks()


class _Span:
    """A phase as the context in which it runs; `after_comm` begins no sooner than the lane `comm` is done."""

    __slots__ = ("_recorder", "after_comm", "lane", "name", "start", "stop", "stopped_at_s")

    def __init__(self, recorder: PhaseRecorder, name: str, lane: Lane, after_comm: bool = False) -> None:
        self._recorder, self.name, self.lane, self.after_comm = recorder, name, lane, after_comm
        self.start: Any = None
        self.stop: Any = None
        self.stopped_at_s: float | None = None  # on the host

    def __enter__(self) -> None:
        self._recorder._begin(self)

    def __exit__(self, kind: object, *_: object) -> None:
        self._recorder._end(self.lane, failed=kind is not None)


@dataclass(frozen=True)
class StepSample:
    """`start_s`: on the host's monotonic clock, in seconds; `spans`: (phase, lane, start, stop), in seconds
    from the step's start; `behind_s`: phase of `COMPUTED` -> seconds that the device was done after the host
    had queued it. None where nothing was marked; `behind_s` also on a CPU."""

    start_s: float
    step_s: float
    spans: list[tuple[str, str, float, float]] | None
    behind_s: dict[str, float] | None = None


class PhaseRecorder(Marks):
    """Phases of a lane do not nest. `uncertainty_s`: how far `start_s` may be off the host's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: list[tuple[Any, Any, list[_Span] | None]] = []
        self._spans: list[_Span] | None = None
        self._open: dict[str, _Span] = {}
        self._placed: list[_Span] = []
        self._last: dict[str, tuple[Any, float]] = {}  # lane -> its last mark, and when it was taken
        self._anchor = clock.anchor()
        self.uncertainty_s = self._anchor.uncertainty_s

    @contextmanager
    def step(self, *, profiled: bool) -> Iterator[Marks]:
        spans: list[_Span] | None = [] if profiled else None
        self._spans = spans
        try:
            start = self._clock.mark()
            self._last = {"main": (start, time.perf_counter())}
            yield self if profiled else UNMARKED
            self._steps.append((start, self._clock.mark(), spans))
        finally:
            self._spans, self._open = None, {}

    def phase(self, name: str) -> AbstractContextManager[None]:
        """On `main`. ValueError: not in PHASES, another phase of the lane is open, or no step is."""
        return _Span(self, name, "main")

    def on_lane(self, lane: Lane) -> PhaseMarker:
        """Marks phases on `lane`, which follow none that was marked there before; raises as `phase` does."""
        self._last.pop(lane, None)
        return lambda name: _Span(self, name, lane)

    @contextmanager
    def paused(self, *, until_beside_ends: bool = False) -> Iterator[None]:
        interrupted = self._open["main"]
        self._end("main")
        hook = _Span(self, "communicate", "hook")
        self._open["hook"], hook.start = hook, interrupted.stop
        yield
        self._end("hook")
        resumed = _Span(self, interrupted.name, "main", after_comm=until_beside_ends)
        self._open["main"], resumed.start = resumed, hook.stop

    def _begin(self, span: _Span) -> None:
        if span.name not in PHASES:
            raise ValueError(f"unknown phase {span.name!r}; allowed: {', '.join(PHASES)}")
        if self._spans is None:
            raise ValueError(f"phase {span.name!r} outside a step")
        if span.lane in self._open:
            other = self._open[span.lane].name
            raise ValueError(f"phase {span.name!r} inside phase {other!r}: phases do not nest")
        self._open[span.lane] = span
        mark, at_s = self._last.get(span.lane, (None, -math.inf))
        follows = time.perf_counter() - at_s < self._clock.chain_s
        span.start = mark if follows else self._clock.mark()

    def _end(self, lane: str, *, failed: bool = False) -> None:
        span = self._open.pop(lane, None)
        if span is not None and self._spans is not None and not failed:
            span.stop, span.stopped_at_s = self._clock.mark(), time.perf_counter()
            self._last[lane] = (span.stop, span.stopped_at_s)
            self._spans.append(span)

    def place(self, name: str, start: Any, stop: Any, lane: Lane = "main") -> None:
        """Adds a phase whose marks were taken elsewhere, as the replay of a CUDA graph does."""
        assert self._spans is not None, "inside a profiled iteration"
        span = _Span(self, name, lane)
        span.start, span.stop = start, stop
        self._placed.append(span)
        self._spans.append(span)

    def take(self) -> list[StepSample]:
        """The steps recorded since the last call. Waits for the device: for use outside measured windows."""
        self._clock.settle()
        now = self._clock.anchor()
        self.uncertainty_s = max(self.uncertainty_s, now.uncertainty_s)
        device_s = self._clock.seconds(self._anchor.mark, now.mark)
        rate = (now.host_s - self._anchor.host_s) / device_s if device_s > 0 else 1.0

        def on_host_s(mark: Any) -> float:
            return self._anchor.host_s + rate * self._clock.seconds(self._anchor.mark, mark)

        taken = [
            StepSample(
                on_host_s(start),
                self._clock.seconds(start, stop),
                None if spans is None else self._timed(start, spans),
                None if spans is None else self._behind_s(spans, on_host_s),
            )
            for start, stop, spans in self._steps
        ]
        self._clock.reuse({id(mark): mark for mark in self._used_marks()}.values())
        self._steps, self._placed, self._anchor = [], [], now
        return taken

    def _behind_s(self, spans: list[_Span], on_host_s: Callable[[Any], float]) -> dict[str, float] | None:
        if not self._clock.is_asynchronous:
            return None
        # The last of a phase stands: spans of a lane are in their order.
        return {
            span.name: on_host_s(span.stop) - span.stopped_at_s
            for span in spans
            if span.lane == "main" and span.name in COMPUTED and span.stopped_at_s is not None
        }

    def _used_marks(self) -> Iterator[Any]:
        yield self._anchor.mark
        foreign = set(map(id, self._placed))
        for start, stop, spans in self._steps:
            yield from (start, stop)
            for span in spans or ():
                if id(span) not in foreign:
                    yield from (span.start, span.stop)

    def _timed(self, start: Any, spans: list[_Span]) -> list[tuple[str, str, float, float]]:
        def at(mark: Any) -> float:
            return self._clock.seconds(start, mark)

        comm_ends = max((at(span.stop) for span in spans if span.lane == "comm"), default=0.0)
        timed = []
        for span in spans:
            begin, end = at(span.start), at(span.stop)
            if span.after_comm:
                begin = min(max(begin, comm_ends), end)
            timed.append((span.name, span.lane, begin, end))
        return sorted(timed, key=lambda span: span[2:])


class GraphMarks(Marks):
    def __init__(self) -> None:
        self._spans: list[tuple[str, Lane, Any, Any]] = []
        self._clock = GraphClock()

    def phase(self, name: str) -> AbstractContextManager[None]:
        return self._span(name, "main")

    def on_lane(self, lane: Lane) -> Any:
        return lambda name: self._span(name, lane)

    @contextmanager
    def _span(self, name: str, lane: Lane) -> Iterator[None]:
        start = self._clock.mark()
        yield
        self._spans.append((name, lane, start, self._clock.mark()))

    def place(self, recorder: PhaseRecorder) -> None:
        """Adds the phases of the last replay to the iteration under way."""
        for name, lane, start, stop in self._spans:
            recorder.place(name, start, stop, lane)


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected inside: a collection that frees another CUDA graph breaks a capture."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
