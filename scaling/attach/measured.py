"""What an attached script's runs have measured, arm by arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scaling.attach.launch import Run
from scaling.attach.marks import (
    LongSteps,
    Signature,
    Step,
    left_out_ratio,
    long_steps,
    mean_s,
    medians_s,
    phases_s,
    steady,
)

PHASES = (
    ("input", "input"),
    ("forward", "forward"),
    ("backward", "backward"),
    ("gradients", "time between backward and optimizer"),
    ("update", "optimizer"),
    ("evaluation", "evaluation"),
    ("collective", "its own collectives"),
)
"""A phase and the word for it in a sentence."""

BEFORE = "time before backward"
"""Of a phase that is more than the forward pass."""


@dataclass(frozen=True)
class Saved:
    """Of a step.

    Attributes:
        ratio: of the step's time.
        is_certain: more than the A/A spread in every launch, of which there are several.
        is_compared: there are several, and an A/A spread.
    """

    ratio: float
    is_certain: bool
    is_compared: bool = True


@dataclass
class Measured:
    """The runs of a script.

    Attributes:
        steps_s: arm -> launch -> median seconds of a step, by rank.
        together_s: arm -> launch -> the median over steps of the slowest rank's: what a step takes where all
            wait for the last rank in it.
        own_s: the same as `steps_s` without the script's own collectives, in which a rank waits for others.
        means_s: arm -> launch -> the mean step of the slowest rank, steps of other kinds included.
        uneven_s: arm without exchange -> launch -> what the slowest rank of each step takes, on average, more
            than the rank that is slowest on average.
        variation: arm -> upper to lower quartile of a rank's steps, the largest of its ranks and launches.
        phases: arm with phases -> launch -> of each rank, the median seconds of each phase.
        signatures: arm -> what a step consists of.
        reasons: arm -> why a run of it was not measured.
        facts: arm -> each rank's record, of its last run.
        long_steps: arm -> of each run, its steps that take over twice the usual time.
        left_out: what the baseline's steps of another kind add, of a steady step, and in which phases.
    """

    steps_s: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    together_s: dict[str, dict[int, float]] = field(default_factory=dict)
    own_s: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    means_s: dict[str, dict[int, float]] = field(default_factory=dict)
    uneven_s: dict[str, dict[int, float]] = field(default_factory=dict)
    variation: dict[str, float] = field(default_factory=dict)
    phases: dict[str, dict[int, list[dict[str, float]]]] = field(default_factory=dict)
    signatures: dict[str, Signature] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    facts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    long_steps: dict[str, list[LongSteps]] = field(default_factory=dict)
    left_out: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def add(self, launch: int, run: Run) -> None:
        """Takes a run."""
        if run.reason is not None:
            self.reasons[run.arm] = run.reason
            return
        self.facts[run.arm] = run.ranks
        if run.arm == "trace":
            return
        self.signatures[run.arm], steps = steady(run.ranks)
        self.steps_s.setdefault(run.arm, {})[launch] = medians_s(steps)
        self.means_s.setdefault(run.arm, {})[launch] = mean_s(run.ranks)
        every = np.array([[step.step_s for step in rank] for rank in steps])
        lower, upper = np.percentile(every, (25, 75), axis=1)
        self.variation[run.arm] = max(self.variation.get(run.arm, 1.0), float((upper / lower).max()))
        self.together_s.setdefault(run.arm, {})[launch] = float(np.median(every.max(axis=0)))
        busy_s = [[step.step_s - step.waited_s for step in rank] for rank in steps]
        self.own_s.setdefault(run.arm, {})[launch] = [float(np.median(rank)) for rank in busy_s]
        if run.arm != "clock":
            self.long_steps.setdefault(run.arm, []).append(long_steps(run.ranks))
        if any(name != "evaluation" for rank in run.ranks for name, _, _ in rank["phases"]):
            self.phases.setdefault(run.arm, {})[launch] = [phases_s(rank) for rank in steps]
        if run.arm in ("no_exchange", "marked"):
            self.uneven_s.setdefault(run.arm, {})[launch] = _uneven_s(steps)
        if run.arm == "baseline":
            self.left_out.append(left_out_ratio(run.ranks))

    @property
    def marks_ratio(self) -> tuple[float, float | None]:
        """What marks cost of a baseline's step: by their own clock, and against a clock alone if that shows.

        A clock alone tells the mean step. It shows where it is shorter than that of every unchanged run, by
        more than the differences of A/A means.
        """
        by_clock_s = max(
            rank.get("own_s", 0.0) / max(len(min(rank["step_s"], key=len)), 1)
            for rank in self.facts["baseline"]
        )
        means = self.means_s["baseline"]
        again = self.means_s.get("aa", {})
        unchanged = [*means.values(), *again.values()]
        clock_s = float(np.median(list(self.means_s.get("clock", means).values())))
        ratio = 1 - clock_s / float(np.median(unchanged))
        floor = max((abs(b - a) / a for a, b in _paired(means, again)), default=1.0)
        shows = clock_s < min(unchanged) and ratio > floor
        return by_clock_s / self.step_s("baseline"), ratio if shows else None

    @property
    def device(self) -> str:
        """ "cpu" or "cuda"."""
        return str(self.facts["baseline"][0]["device"]) if "baseline" in self.facts else "cpu"

    def slowest_s(self, arm: str) -> dict[int, float]:
        """The slowest rank's step in each launch."""
        return {launch: max(ranks) for launch, ranks in self.steps_s.get(arm, {}).items()}

    def step_s(self, arm: str) -> float:
        """The median of its launches."""
        return float(np.median(list(self.slowest_s(arm).values())))

    @property
    def spread_ratio(self) -> float | None:
        """The largest relative difference of a baseline and its repetition; None without a pair."""
        pairs = _paired(self.slowest_s("baseline"), self.slowest_s("aa"))
        return max((abs(b - a) / a for a, b in pairs), default=None)

    def saved(self, reference: str, arm: str) -> Saved | None:
        """How much shorter a step is; None where either was not measured."""
        return self._saved(_paired(self.slowest_s(reference), self.slowest_s(arm)))

    @property
    def exchange(self) -> Saved | None:
        """How much shorter a step is without exchange, where all still wait for the last rank in it."""
        return self._saved(_paired(self.slowest_s("baseline"), self.together_s.get("no_exchange", {})))

    def _saved(self, pairs: Sequence[tuple[float, float]]) -> Saved | None:
        if not pairs:
            return None
        ratios = [(before - after) / before for before, after in pairs]
        floor = self.spread_ratio if len(pairs) > 1 else None
        is_certain = floor is not None and min(ratios) > floor
        return Saved(float(np.median(ratios)), is_certain, floor is not None)

    def saved_once(self, arm: str) -> Saved | None:
        """How much shorter a step is than the median of all unchanged runs; None where it was not measured.

        What is seen once has no baseline of its own launch: it is never certain.
        """
        if arm not in self.steps_s:
            return None
        every = [*self.slowest_s("baseline").values(), *self.slowest_s("aa").values()]
        return Saved(1 - self.step_s(arm) / float(np.median(every)), False)

    def mean_elements(self, arm: str) -> list[float]:
        """Of each rank, the mean elements of its batches; 0 where none was seen."""
        drawn = [[size for _, size in rank["batches"]] for rank in self.facts[arm]]
        return [float(np.mean(sizes)) if sizes else 0.0 for sizes in drawn]

    def changed(self, arm: str) -> bool:
        """Whether its step consists of something else than the baseline's."""
        return self.signatures.get(arm) != self.signatures.get("baseline")

    def phases_of(self, arm: str) -> list[dict[str, float]]:
        """Of each rank, the median over launches; empty where there are none."""
        launches = list(self.phases.get(arm, {}).values())
        if not launches:
            return []
        return [
            {
                name: float(np.median([launch[rank][name] for launch in launches]))
                for name in launches[0][rank]
            }
            for rank in range(len(launches[0]))
        ]

    def long_steps_found(self) -> tuple[float, LongSteps, float]:
        """What steps over twice the usual time add: the least of all unchanged runs and the usual one.

        Third, how much of it is in their input; 0 where that is not seen.
        """
        runs = [*self.long_steps["baseline"], *self.long_steps.get("aa", [])]
        usual = sorted(runs, key=lambda found: found.more_ratio)[len(runs) // 2]
        seen = [found.input_ratio for found in self.long_steps.get(self.phase_source, [])]
        in_input = next((ratio for ratio in seen if ratio is not None), 0.0)
        return min(found.more_ratio for found in runs), usual, in_input

    @property
    def own_arm(self) -> str:
        """The arm that tells what each rank takes by itself.

        Where a script has collectives of its own, a GPU's waiting in them shows only where each is timed to
        its end.
        """
        collectives = [rank.get("collective", 0.0) for rank in self.phases_of("marked")]
        return "marked" if self.device == "cuda" and any(collectives) else "no_exchange"

    @property
    def has_loader(self) -> bool:
        """Whether batches of a DataLoader were seen."""
        return any(rank["batches"] for rank in self.facts["baseline"])

    @property
    def phase_words(self) -> list[tuple[str, str]]:
        """A phase and its word.

        Nothing tells the forward pass from input and logging without a DataLoader, nor from what an optimizer
        does between several backward passes of a batch (LBFGS, SAM).
        """
        backward, batches, *_ = self.signatures["baseline"]
        if self.has_loader and backward <= batches:
            return list(PHASES)
        words = [(name, BEFORE if name == "forward" else word) for name, word in PHASES]
        return words if self.has_loader else words[1:]

    @property
    def phase_source(self) -> str:
        """The arm whose phases count: without exchange no rank's wait for others is in them.

        A GPU's work ends after the call that asks for it, so there it is the run that waits for it.
        """
        return "marked" if self.device == "cuda" or "no_exchange" not in self.phases else "no_exchange"


def _paired(first: Mapping[int, float], second: Mapping[int, float]) -> list[tuple[float, float]]:
    return [(first[launch], second[launch]) for launch in sorted(first.keys() & second.keys())]


def _uneven_s(steps: Sequence[Sequence[Step]]) -> float:
    busy_s = np.array([[step.step_s - step.waited_s for step in rank] for rank in steps])
    return float(busy_s.max(axis=0).mean() - busy_s.mean(axis=1).max())
