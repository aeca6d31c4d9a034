"""Measures the time per iteration of one cell on one rank.

Warm-up, the stated rule: the first iterations are discarded until `warmup` of them are done, or, where a
budget `max_seconds` is set and runs short, until a quarter of it is used; never fewer than one. Then follow
`iterations` measured ones, or as many as fit the budget at the pace of the last warm-up iteration, never
fewer than three. All ranks agree on both counts before the measured window, in which nothing is exchanged but
what the strategy needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from scaling.aggregators.base import PhaseMarker
from scaling.measure.phases import PhaseRecorder

WARMUP_SHARE = 0.25
MIN_ITERATIONS = 3


class Agreement(Protocol):
    """The part of the ranks' control channel that is needed here."""

    def largest(self, value: float) -> float:
        """The largest value that any rank gave. Collective."""


@dataclass(frozen=True)
class Extent:
    """How long to measure; `max_seconds` is a budget for warm-up and measurement together, in seconds."""

    warmup: int
    iterations: int
    max_seconds: float | None = None

    def warmup_is_over(self, num_done: int, elapsed_s: float) -> bool:
        """Whether warm-up ends after `num_done` iterations that took `elapsed_s` together."""
        if num_done >= self.warmup:
            return True
        return num_done >= 1 and self.max_seconds is not None and elapsed_s >= WARMUP_SHARE * self.max_seconds

    def num_measured(self, elapsed_s: float, last_s: float) -> int:
        """Iterations to measure, `elapsed_s` into the budget, if each takes as long as the last one."""
        if self.max_seconds is None:
            return self.iterations
        fitting = int((self.max_seconds - elapsed_s) / max(last_s, 1e-9))
        return max(min(self.iterations, fitting), min(MIN_ITERATIONS, self.iterations))


def measure_iterations(
    iterate: Callable[[PhaseMarker], None], recorder: PhaseRecorder, extent: Extent, agreement: Agreement
) -> list[dict[str, float | int | bool]]:
    """Runs warm-up and measured iterations.

    Args:
        iterate: one iteration; marks its phases.
        recorder: on this rank's clock.
        extent: how many.
        agreement: between the ranks, outside the measured window.

    Returns:
        One row an iteration, as raw samples: `iteration`, `warmup`, `step_s` and `<phase>_s`, in seconds.
    """
    rows: list[dict[str, float | int | bool]] = []

    def record(*, warmup: bool) -> None:
        for taken in recorder.take():
            rows.append({"iteration": len(rows), "warmup": warmup, **taken})

    elapsed_s, last_s, num_done = 0.0, 0.0, 0
    while not (num_done and extent.warmup_is_over(num_done, elapsed_s)):
        start = time.perf_counter()
        with recorder.step():
            iterate(recorder.phase)
        record(warmup=True)  # waits for the device
        last_s = agreement.largest(time.perf_counter() - start)
        elapsed_s += last_s
        num_done += 1
    for _ in range(extent.num_measured(elapsed_s, last_s)):
        with recorder.step():
            iterate(recorder.phase)
    record(warmup=False)
    return rows
