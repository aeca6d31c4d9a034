"""Marks between the phases of a CUDA graph, passed at each replay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from scaling.measure.clock import GraphClock
from scaling.measure.phases import Lane, PhaseRecorder


class GraphMarks:
    """Takes marks that the graph under capture passes at each replay."""

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

    def paused(self, *, until_beside_ends: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

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
