"""Measures the time per iteration of one cell on one rank, in three parts.

1. Warm-up, each iteration waited for: at least `warmup`, until no trend is found in the last ones,
   `WARMUP_LIMIT` times as many are done, or a quarter of `max_seconds` is used. Discarded.
2. Unprofiled iterations: nothing is marked inside. Between blocks the ranks go on until the 95% interval of
   the median of the slowest rank's steps lies within `precision_goal` and `min_seconds` are over, or
   `iterations` or `max_seconds` end it.
3. Profiled iterations, whose phases are marked.

All ranks agree on every count. Every part ends with the device idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from scaling.measure.phases import Marks, PhaseRecorder, StepSample
from scaling.measure.statistics import LOOK_EVERY, MIN_SAMPLES, enough, is_warm
from scaling.process_group import Group

WARMUP_SHARE = 0.25
WARMUP_LIMIT = 10
MIN_ITERATIONS = 3
WARMUP_WINDOW = 10
BLOCK_S = 0.1
"""A block lasts so long at least: what the ranks say to each other between two blocks takes milliseconds."""

PROFILED_SETTLING = 2
"""Profiled iterations that are discarded: their first marks and, after a change of the path, first calls."""

DECIMALS = 9  # of a second, in raw samples

StopReason = Literal["precision", "iterations", "seconds"]


@dataclass(frozen=True)
class Extent:
    """How long to measure. `precision_goal`: half of the interval's width over the median; None: exactly
    `iterations`; `min_seconds`: of the unprofiled part, where `iterations` allow; `max_seconds`: for warm-up
    and unprofiled iterations together, and half as much for profiled ones."""

    warmup: int
    iterations: int
    precision_goal: float | None = None
    min_seconds: float = 0.0
    max_seconds: float | None = None
    profiled_iterations: int = 20

    def warmup_end(self, times: Sequence[float], elapsed_s: float) -> str | None:
        """Why warm-up ends after iterations that took `times`; None: it goes on."""
        if not times:
            return None
        if self.max_seconds is not None and elapsed_s >= WARMUP_SHARE * self.max_seconds:
            return "a quarter of max_seconds is used"
        if len(times) >= self.warmup and is_warm(times, WARMUP_WINDOW):
            return f"no trend in the last {WARMUP_WINDOW} iterations"
        if len(times) >= max(WARMUP_LIMIT * self.warmup, WARMUP_WINDOW):
            return f"a trend was left after {len(times)} iterations"
        return None

    def block(self, num_done: int, elapsed_s: float, pace_s: float) -> int:
        size = self.iterations - num_done
        if self.precision_goal is not None:
            size = min(size, max(LOOK_EVERY, int(BLOCK_S / max(pace_s, 1e-9))))
        if self.max_seconds is not None:
            size = min(size, int((self.max_seconds - elapsed_s) / max(pace_s, 1e-9)))
        return max(size, min(MIN_ITERATIONS, self.iterations) - num_done, 1)

    def end(self, times: Sequence[float], window_s: float, elapsed_s: float) -> StopReason | None:
        """Why the unprofiled part ends after `times`, `window_s` long; None: it goes on."""
        goal = self.precision_goal
        min_samples = min(MIN_SAMPLES, self.iterations)
        if goal is not None and window_s >= self.min_seconds and enough(times, goal, min_samples):
            return "precision"
        if len(times) >= self.iterations:
            return "iterations"
        pace_s = window_s / len(times)
        if self.max_seconds is not None and elapsed_s + pace_s > self.max_seconds:
            return "seconds"
        return None


@dataclass
class Measurement:
    """Its parts are called in turn, each collective. `host_offset_s`: from this host's monotonic clock to
    rank 0's; `steps_each`: steps of an iteration: a block of local updates is one; `rows`: one an iteration:
    `start_s` on rank 0's clock, `spans` [phase, lane, start, stop] in seconds from the step's start."""

    iterate: Callable[[Marks], None]
    recorder: PhaseRecorder
    extent: Extent
    agreement: Group
    host_offset_s: float = 0.0
    after_each: Callable[[], None] = lambda: None
    steps_each: int = 1
    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    warmup_end: str = ""
    stop_reason: StopReason = "iterations"
    block_iterations: list[int] = field(default_factory=list)
    _elapsed_s: float = 0.0
    _pace_s: float = 0.0

    def warm_up(self) -> None:
        times: list[float] = []
        ended = None
        while ended is None:
            start = time.perf_counter()
            self._run(1, profiled=False)
            self._keep(warmup=True)  # waits for the device
            times.append(self.agreement.largest(time.perf_counter() - start))
            self._elapsed_s += times[-1]
            ended = self.extent.warmup_end(times, self._elapsed_s)
        self.warmup_end, self._pace_s = ended, times[-1]
        self.seconds["warmup"] = self._elapsed_s

    def measure(self) -> None:
        times: list[float] = []
        window_s, reason = 0.0, None
        self.agreement.largest(0.0)  # ranks begin together: else the first step of one waits for the others
        start = time.perf_counter()
        while reason is None:
            self._run(self.extent.block(len(times), self._elapsed_s + window_s, self._pace_s), profiled=False)
            samples = self._keep(warmup=False)
            self.block_iterations.append(len(samples))
            times += self.agreement.largest_of([sample.step_s for sample in samples])
            window_s = self.agreement.largest(time.perf_counter() - start)
            self._pace_s = float(np.median(times))
            reason = self.extent.end(times, window_s, self._elapsed_s + window_s)
        self._elapsed_s += window_s
        self.stop_reason, self.seconds["unprofiled"] = reason, window_s

    def profile(self, *, settle_each: bool) -> None:
        start = time.perf_counter()
        self._profile(PROFILED_SETTLING, settle_each=settle_each, warmup=True)
        num_kept, most_s = self.extent.profiled_iterations, self.extent.max_seconds
        if most_s is not None:
            fitting = int(most_s / 2 / max(self._pace_s, 1e-9))
            num_kept = max(min(num_kept, fitting), min(MIN_ITERATIONS, num_kept))
        self._profile(num_kept, settle_each=settle_each, warmup=False)
        self.seconds["profiled"] = self.agreement.largest(time.perf_counter() - start)

    def _profile(self, count: int, *, settle_each: bool, warmup: bool) -> None:
        for _ in range(count):
            self._run(1, profiled=True)
            if settle_each:
                self._keep(warmup=warmup)
        self._keep(warmup=warmup)

    def _run(self, count: int, *, profiled: bool) -> None:
        for _ in range(count):
            with self.recorder.step(profiled=profiled) as marks:
                self.iterate(marks)
            self.after_each()

    def _keep(self, *, warmup: bool) -> list[StepSample]:
        samples = self.recorder.take()
        for sample in samples:
            row: dict[str, Any] = {
                "iteration": len(self.rows),
                "warmup": warmup,
                "profiled": sample.spans is not None,
                "start_s": round(sample.start_s + self.host_offset_s, DECIMALS),
                "step_s": round(sample.step_s, DECIMALS),
                **({"steps": self.steps_each} if self.steps_each > 1 else {}),
            }
            if sample.spans is not None:
                row["spans"] = [
                    [name, lane, round(start, DECIMALS), round(stop, DECIMALS)]
                    for name, lane, start, stop in sample.spans
                ]
            if sample.behind_s:
                row["behind_s"] = {name: round(late_s, DECIMALS) for name, late_s in sample.behind_s.items()}
            self.rows.append(row)
        return samples
