"""What an experiment is: its points, how one of them is measured, and how long that may take."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from scaling.device_studies.declaration import EXPERIMENTS, Report

if TYPE_CHECKING:
    import torch

    from scaling.measure.clock import Clock


Value = int | float | str | bool
Point = dict[str, Value]
Variables = Mapping[str, Any]
Samples = Iterator[dict[str, Any]]
Device: TypeAlias = "torch.device"
WARMUP_CALLS = 3  # at least: the first call sets libraries up, the second may still grow caches of memory
SLOW_CALLS = 3  # then a point is left out for their time: the first, and the faster of two that follow
SET_UP_S = 5.0  # what libraries may take in a process's first call, beyond the limit
DOUBTLESS = 2.0  # a second call that would pass the limit by this factor is enough
WARMUP_SHARE = 0.1  # of a cell's seconds the warm-up lasts so long, where three calls take less
SHORTEST_SAMPLE_S = 1e-3  # where the caller says no number of calls: marks take microseconds
SAMPLES_A_WINDOW = 50  # marks before the device is waited for: a GPU's queue does not run empty in one


class LeftOutError(Exception):
    """A point that is not measured on a device, with the reason in one clause. A result, not a failure."""


@dataclass(frozen=True)
class Budget:
    seconds: float  # measuring ends after so many, once there are `min_samples`
    min_samples: int = 6  # fewer than six give no interval
    max_samples: int = 1000
    limit_s: float = 10.0  # a point whose fewest samples would take longer is left out

    def require(self, expected_s: float, why: str) -> None:
        """LeftOutError where the fewest samples take too long; `why`: "a step takes 2 s or more on 64
        samples"."""
        if expected_s * self.min_samples > self.limit_s:
            raise LeftOutError(
                f"{why}, so that {self.min_samples} samples would pass the limit of {self.limit_s:g} s"
            )

    def refuse_slow(self, seconds: Sequence[float], why: str, calls: int = 1) -> float:
        """The least of a point's first calls, without the first, which sets libraries up. A single slow one
        may be somebody else's doing: it takes three calls, or one that is beyond doubt. `seconds`: of the
        calls so far; `why`: with a place for the seconds ("a step took {:.2g} s"). Raises LeftOutError."""
        one_s = min(seconds[1:] or seconds)
        doubtless = one_s * calls * self.min_samples > DOUBTLESS * self.limit_s and len(seconds) > 1
        if len(seconds) >= SLOW_CALLS or doubtless or one_s > self.limit_s + SET_UP_S:
            self.require(one_s * calls, why.format(one_s))
        return one_s

    def samples(
        self, step: Callable[[], object], device: Device, per_sample: int | None = None
    ) -> list[float]:
        """Seconds of one call of `step`, after a warm-up; LeftOutError: calls are too slow. On a GPU between
        CUDA events in a queue that does not run empty, so that `step` need not wait; on the CPU by the
        monotonic clock. `per_sample`: calls that a sample covers and is divided by; None: as many as take a
        millisecond."""
        from scaling.measure.clock import clock_for

        clock = clock_for(device)
        one_s = self._warm_up(step, clock, per_sample or 1)
        calls = per_sample or max(1, round(SHORTEST_SAMPLE_S / max(one_s, 1e-9)))
        samples: list[float] = []
        start = time.perf_counter()
        while (left_s := self.seconds - (time.perf_counter() - start)) > 0 or len(samples) < self.min_samples:
            fitting = max(self.min_samples - len(samples), int(left_s / (one_s * calls)) + 1)
            if device.type == "cuda":
                clock.settle()
                step()  # fills the queue: the first sample begins behind it
            marks = [clock.mark()]
            for _ in range(min(fitting, SAMPLES_A_WINDOW)):
                for _ in range(calls):
                    step()
                marks.append(clock.mark())
            clock.settle()
            samples += [clock.seconds(start, stop) / calls for start, stop in itertools.pairwise(marks)]
            clock.reuse(marks)
            if len(samples) >= self.max_samples:
                break
        return samples[: self.max_samples]

    def _warm_up(self, step: Callable[[], object], clock: Clock, calls: int) -> float:
        start, seconds = time.perf_counter(), []
        for num_calls in itertools.count(1):
            before = time.perf_counter()
            step()
            clock.settle()
            now = time.perf_counter()
            seconds.append(now - before)
            one_s = self.refuse_slow(seconds, "a step took {:.2g} s", calls)
            if num_calls >= WARMUP_CALLS and now - start >= WARMUP_SHARE * self.seconds:
                break
        return one_s


@dataclass(frozen=True)
class Experiment(ABC):
    """A question that is put to CPU and GPU. The fields of a subclass are what a study may set."""

    name: ClassVar[str]
    report: ClassVar[Report | None] = None  # None: a figure, a table and the fastest, as its points tell
    most_threads_a_core: ClassVar[int] = 1  # points with more are dropped

    @abstractmethod
    def points(self) -> list[Point]:
        """The independent variables of each cell, in order; all points have the same keys. Every point
        becomes a cell on each of the part's devices. Two keys are not variables: `only_device` ("cpu" or
        "cuda") keeps a point to one device; `threads` (a number, or "all") sets its CPU threads."""

    @abstractmethod
    def measure(self, point: Variables, device: Device, budget: Budget) -> Samples:
        """Raw samples of one cell, and facts; `point` is one of `points`, without `only_device` and
        `threads`.

        A row is a sample, `{"phase": what was timed, "seconds": s}` ("step", "train", "predict", "compile",
        "epoch" or another word); a fact, `{"fact": name, "value": number, text or truth value}` ("samples":
        how many training samples a step takes); or a curve, `{"fact": name, "x": [...], "y": [...]}`. Raises
        LeftOutError: not for this device; MemoryError, torch.OutOfMemoryError: it does not fit; RuntimeError:
        the cell has failed, with this reason."""


def steps(samples: list[float], phase: str = "step") -> Samples:
    yield from ({"phase": phase, "seconds": seconds} for seconds in samples)


def facts(**values: Any) -> Samples:
    yield from ({"fact": name, "value": value} for name, value in values.items())


def create(name: str, parameters: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of that name; StudyError: the name is unknown, or a parameter is unknown or wrong."""
    experiment: Experiment = EXPERIMENTS.create(name, Experiment, parameters)
    return experiment


def parameters_of(experiment: Experiment) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(experiment)))
    return plain
