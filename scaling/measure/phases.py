"""Records which phase of the step the time went to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scaling.measure.clock import Clock
from scaling.measure.phase_names import PHASES

__all__ = ["PHASES", "PhaseRecorder"]


class PhaseRecorder:
    """Marks steps and their phases on a clock; phases do not nest, and one may come several times in a step.

    Args:
        clock: what marks are taken on.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: list[tuple[Any, Any, list[tuple[str, Any, Any]]]] = []
        self._spans: list[tuple[str, Any, Any]] | None = None
        self._inside: str | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """One whole step."""
        spans: list[tuple[str, Any, Any]] = []
        self._spans = spans
        try:
            start = self._clock.mark()
            yield
            self._steps.append((start, self._clock.mark(), spans))
        finally:
            self._spans = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase of the step under way.

        Raises:
            ValueError: the name is not in PHASES, another phase is open, or no step is.
        """
        if name not in PHASES:
            raise ValueError(f"unknown phase {name!r}; allowed: {', '.join(PHASES)}")
        if self._spans is None:
            raise ValueError(f"phase {name!r} outside a step")
        if self._inside is not None:
            raise ValueError(f"phase {name!r} inside phase {self._inside!r}: phases do not nest")
        spans = self._spans
        self._inside = name
        try:
            start = self._clock.mark()
            yield
            spans.append((name, start, self._clock.mark()))
        finally:
            self._inside = None

    def take(self) -> list[dict[str, float]]:
        """The steps recorded since the last call: `step_s` and `<phase>_s` of each, in seconds.

        Waits for the device: call it outside the measured window.
        """
        self._clock.settle()
        taken = []
        for start, stop, spans in self._steps:
            row: dict[str, float] = defaultdict(float)
            row["step_s"] = self._clock.seconds(start, stop)
            for name, begin, end in spans:
                row[f"{name}_s"] += self._clock.seconds(begin, end)
            taken.append(dict(row))
        self._steps = []
        return taken
