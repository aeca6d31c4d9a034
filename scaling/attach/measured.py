"""What an attached script's runs have measured, arm by arm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import trim_mean

from scaling.attach import marks
from scaling.attach.inside.arms import ARMS, PROCESS, row_of
from scaling.attach.launch import Run
from scaling.measure.statistics import half_width

PHASES = (  # a phase and the word for it in a sentence
    ("input", "input"), ("forward", "forward"), ("backward", "backward"),
    ("gradients", "time between backward and optimizer"), ("update", "optimizer"),
    ("evaluation", "evaluation"), ("collective", "its own collectives"),
)  # fmt: skip
LONG = 2.0  # times the usual step: what takes longer is in no block
LEAST_ROUNDS = 2  # in each half of a launch, for ranks to be compared in both
AGREE = 0.02  # of a step: launches that differ by less agree; a third of them costs less than a wrong tie
BEFORE = "time before backward"  # of a phase that is more than the forward pass
Key = tuple[int, int]  # a launch and a round in it: one where each arm is a process of its own


@dataclass(frozen=True)
class Saved:
    ratio: float  # of the step's time, from the mean over rounds of the logarithms of neighbouring blocks
    is_certain: bool  # shorter by the interval, and by more than the A/A spread in each of several launches
    is_compared: bool = True
    # Half of the 95% t interval over rounds, at least half of what launches differ by; None of under three.
    half: float | None = None
    rounds: int = 0
    launches: tuple[float, ...] = ()
    disagrees: bool = False

    @property
    def text(self) -> str:
        return f"{self.ratio:.1%}{self._half_text}"

    @property
    def change(self) -> str:
        return f"{-self.ratio:+.1%}{self._half_text}"

    @property
    def _half_text(self) -> str:
        if self.half is None:
            return ""
        return f" ± {self.half:.1%}" if self.half <= 1 else " (± more than 100%)"


@dataclass
class Measured:
    # Launch -> median seconds of a step, by rank.
    steps_s: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    # Round -> the slowest rank's mean step in the arm's block; and where all wait for the last in each step.
    rounds: dict[str, dict[Key, float]] = field(default_factory=dict)
    rounds_together: dict[str, dict[Key, float]] = field(default_factory=dict)
    apart: str | None = None
    # Half of a launch -> as `steps_s`, without the script's own collectives, where a rank waits for others.
    own_s: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    # Launch -> the slowest rank's mean step with steps of other kinds, and without: wall clock over number.
    means_s: dict[str, dict[int, float]] = field(default_factory=dict)
    rates_s: dict[str, dict[int, float]] = field(default_factory=dict)
    # Half of a launch -> what a step's slowest rank takes more, on average, than the one slowest on average.
    uneven_s: dict[str, dict[int, float]] = field(default_factory=dict)
    # Upper to lower quartile of a rank's steps, the largest of its ranks and launches.
    variation: dict[str, float] = field(default_factory=dict)
    # Of arms with phases: launch -> of each rank, the median seconds of each phase.
    phases: dict[str, dict[int, list[dict[str, float]]]] = field(default_factory=dict)
    signatures: dict[str, marks.Signature] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    facts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    long_steps: dict[str, list[marks.LongSteps]] = field(default_factory=dict)  # of each run
    left_out: list[float] = field(default_factory=list)  # what steps of another kind add, of a steady step

    def add(self, launch: int, run: Run) -> None:
        if run.reason is not None:
            self.reasons.update(dict.fromkeys(run.arms, run.reason))
            return
        self.facts.update(dict.fromkeys(run.arms, run.ranks))
        if row_of(run.arm).is_traced:
            return
        signature, steps = marks.steady(run.ranks)
        blocks, is_one = marks.blocks_of(steps), len(run.arms) == 1
        if is_one:
            blocks = dict.fromkeys(run.arms, next(iter(blocks.values()), {}))
        for arm in run.arms:
            self.signatures[arm] = signature if is_one else marks.signature_of(run.ranks, arm, signature)
            rounds = {at: ranks for at, ranks in blocks.get(arm, {}).items() if all(ranks)}
            if ARMS[arm].is_cached and (reason := _why_not_cached(run)):
                self.reasons[arm] = reason
            elif rounds:
                self._take(launch, arm, rounds)
                if arm == "baseline" or ARMS[arm].has_phases:
                    self.long_steps.setdefault(arm, []).append(marks.long_steps(run.ranks, arm))
            elif self.signatures[arm] == signature:
                self.reasons[arm] = "the run was over before"
        self.means_s.setdefault(run.arm, {})[launch] = marks.mean_s(run.ranks)
        if "baseline" in run.arms:
            self.left_out.append(marks.left_out_ratio(run.ranks))

    def _take(self, launch: int, arm: str, rounds: Mapping[int, list[list[marks.MarkedStep]]]) -> None:
        ranks = range(len(next(iter(rounds.values()))))
        steps = [[step for block in rounds.values() for step in block[rank]] for rank in ranks]
        every = np.array([[step.step_s for step in rank] for rank in steps])
        usual_s = float(np.median(every.max(axis=0)))
        for at, block in rounds.items():
            own = np.array([[step.step_s for step in rank] for rank in block])
            own = own[:, own.max(axis=0) <= LONG * usual_s]  # long steps have a line of their own
            if not own.size:
                continue
            self.rounds.setdefault(arm, {})[launch, at] = float(own.mean(axis=1).max())
            self.rounds_together.setdefault(arm, {})[launch, at] = float(own.max(axis=0).mean())
        self.steps_s.setdefault(arm, {})[launch] = marks.medians_s(steps)
        self.rates_s.setdefault(arm, {})[launch] = float(every.mean(axis=1).max())
        lower, upper = np.percentile(every, (25, 75), axis=1)
        self.variation[arm] = max(self.variation.get(arm, 1.0), float((upper / lower).max()))
        busy_s = np.array([[step.step_s - step.waited_s for step in rank] for rank in steps])
        halves = np.array_split(busy_s, 2, axis=1) if len(rounds) >= 2 * LEAST_ROUNDS else [busy_s]
        for half, seconds in enumerate(halves):
            # Of steps that are long by turns a median is that of either kind.
            self.own_s.setdefault(arm, {})[2 * launch + half] = trim_mean(seconds, 0.25, axis=1).tolist()
        if any(step.spans for rank in steps for step in rank) and ARMS[arm].has_phases:
            self.phases.setdefault(arm, {})[launch] = [marks.phases_s(rank) for rank in steps]
            means = [seconds.mean(axis=1) for seconds in halves]
            for half, seconds in enumerate(halves):
                slowest = means[len(halves) - 1 - half].argmax()  # of the other half: not by chance
                uneven_s = seconds.max(axis=0).mean() - means[half][slowest]
                self.uneven_s.setdefault(arm, {})[2 * launch + half] = float(uneven_s)

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Each rank's record of the script as it is; `alone`: without exchange, if it was measured."""
        return self.facts["baseline"]

    @property
    def alone(self) -> list[dict[str, Any]]:
        return self.facts.get("no_exchange", [])

    @property
    def usual_s(self) -> float:
        return float(np.median([max(ranks) for ranks in self.steps_s["baseline"].values()]))

    @property
    def marks_ratio(self) -> tuple[float, float | None]:
        """What marks cost of a step by their own clock; how much longer a hooked step is than the clock's."""
        own_s = [rank.get("own_s", 0.0) / max(len(min(rank["step_s"], key=len)), 1) for rank in self.ranks]
        step_s = self.rate_s("baseline")
        return max(own_s) / step_s, step_s / self.rate_s("clock") - 1 if "clock" in self.rates_s else None

    @property
    def device(self) -> str:
        return str(self.ranks[0]["device"]) if "baseline" in self.facts else "cpu"

    def rate_s(self, arm: str) -> float:
        """Wall clock over steps, the mean of its launches on the log scale."""
        return math.exp(float(np.mean(np.log(list(self.rates_s[arm].values())))))

    @property
    def aa(self) -> Saved | None:
        return self._saved("aa", self.rounds, None)

    @property
    def spread_ratio(self) -> float | None:
        """The largest relative difference of a baseline and its repetition in a launch; None without one."""
        return max(map(abs, aa.launches)) if (aa := self.aa) is not None else None

    def saved(self, arm: str) -> Saved | None:
        """How much shorter a step is; without exchange all still wait for the last rank in each step."""
        if ARMS[arm].when == PROCESS:
            return self._saved_apart(arm)
        values = self.rounds if ARMS[arm].exchanges else self.rounds_together
        return self._saved(arm, values, self.spread_ratio)

    def _saved(self, arm: str, values: dict[str, dict[Key, float]], floor: float | None) -> Saved | None:
        before, after = self.rounds.get("baseline", {}), values.get(arm, {})
        both = sorted(before.keys() & after.keys())
        if not both:
            return None
        logs = np.array([math.log(before[key] / after[key]) for key in both])
        launches = np.array([launch for launch, _ in both])
        means = {launch: float(logs[launches == launch].mean()) for launch in dict.fromkeys(launches)}
        gains = tuple(1 - math.exp(-mean) for mean in means.values())
        apart, within = max(gains) - min(gains), 0.0
        half = max(half_width(logs), apart / 2) if len(logs) > 2 else None
        if len(logs) > len(means):
            within = half_width(logs - [means[launch] for launch in launches], len(means))
        is_compared, ratio = floor is not None and len(gains) > 1, 1 - math.exp(-float(logs.mean()))
        is_above = is_compared and min(gains) > (floor or 0.0)
        return Saved(
            ratio, is_above and (half is None or ratio > half), is_compared, half, len(logs), gains,
            disagrees=len(gains) > 1 and apart > max(2 * within, AGREE),
        )  # fmt: skip

    def _saved_apart(self, arm: str) -> Saved | None:
        """Of an arm in a process of its own: compared with the clock, which has no hook either. It is certain
        where all its runs are faster than all unchanged ones, by more than the spread and the clocks' own."""
        if arm not in self.rates_s:
            return None
        own, clock, hooked = (list(self.rates_s.get(of, {}).values()) for of in (arm, "clock", "baseline"))
        unchanged, floor = clock or hooked, self.spread_ratio
        least, apart = 1 - max(own) / min([*clock, *hooked]), 1 - min(unchanged) / max(unchanged)
        is_certain = floor is not None and min(len(own), len(unchanged)) > 1 and least > max(floor, apart)
        ratio = 1 - self.rate_s(arm) / self.rate_s("clock" if clock else "baseline")
        return Saved(ratio, is_certain, len(own) > 1)

    def mean_elements(self, arm: str) -> list[float]:
        """Of each rank, the mean elements of its batches; 0 where none was seen."""
        is_switched = len(self.facts[arm][0].get("arms", ())) > 1
        name = "cached_batches" if ARMS[arm].is_cached and is_switched else "batches"
        drawn = [[size for _, size in rank[name]] for rank in self.facts[arm]]
        return [float(np.mean(sizes)) if sizes else 0.0 for sizes in drawn]

    def changed(self, arm: str) -> bool:
        return self.signatures.get(arm) != self.signatures.get("baseline")

    def phases_of(self, arm: str) -> list[dict[str, float]]:
        launches = list(self.phases.get(arm, {}).values())
        return [
            {name: float(np.median([of[name] for of in launched])) for name in launched[0]}
            for launched in zip(*launches, strict=True)
        ]

    def long_steps_found(self) -> tuple[float, marks.LongSteps, float]:
        """What steps over twice the usual time add: least of unchanged runs, usual one, the input's part."""
        runs = self.long_steps["baseline"]
        usual = sorted(runs, key=lambda found: found.more_ratio)[len(runs) // 2]
        seen = [found.input_ratio for found in self.long_steps.get(self.phase_source, [])]
        in_input = next((ratio for ratio in seen if ratio is not None), 0.0)
        return min(found.more_ratio for found in runs), usual, in_input

    @property
    def own_arm(self) -> str:
        """The arm that tells what a rank takes by itself: a GPU waits in a script's own collectives too."""
        collectives = [rank.get("collective", 0.0) for rank in self.phases_of("marked")]
        return "marked" if self.device == "cuda" and any(collectives) else "no_exchange"

    @property
    def has_loader(self) -> bool:
        return any(rank["batches"] for rank in self.ranks)

    @property
    def phase_words(self) -> list[tuple[str, str]]:
        """A phase and its word. Nothing tells the forward pass from input and logging without a DataLoader,
        nor from what an optimizer does between several backward passes of a batch (LBFGS, SAM)."""
        backward, batches, *_ = self.signatures["baseline"]
        if self.has_loader and backward <= batches:
            return list(PHASES)
        words = [(name, BEFORE if name == "forward" else word) for name, word in PHASES]
        return words if self.has_loader else words[1:]

    @property
    def phase_source(self) -> str:
        """The arm whose phases count: without waiting for other ranks, and a GPU's work ends in its own."""
        return "marked" if self.device == "cuda" or "no_exchange" not in self.phases else "no_exchange"


def _why_not_cached(run: Run) -> str | None:
    if any(rank.get("draws_in_thread") for rank in run.ranks) and len(run.arms) > 1:
        return "a thread of the script draws batches ahead of the steps"
    if not any(rank.get("has_cached_input", len(run.arms) == 1) for rank in run.ranks):
        return "the script draws its batches from no torch DataLoader"
    return None
