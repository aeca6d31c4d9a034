"""What limits an attached script, from the differences of its runs; nothing below the A/A spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scaling.attach.launch import Run
from scaling.attach.marks import Signature, medians_s, phases_s, steady

SHOWN = (("input", "input"), ("forward", "forward"), ("backward", "backward"), ("update", "optimizer"))
"""Phases with the words for them."""


@dataclass
class Measured:
    """The runs of a script.

    Attributes:
        steps_s: arm -> launch -> median seconds of a step, by rank.
        phases: arm with phases -> of each rank, the median seconds of each phase; of the last launch.
        signatures: arm -> what a step consists of.
        reasons: arm -> why a run of it was not measured.
        device: "cpu" or "cuda".
    """

    steps_s: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    phases: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    signatures: dict[str, Signature] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"

    def add(self, launch: int, run: Run) -> None:
        """Takes a run."""
        if run.reason is not None:
            self.reasons[run.arm] = run.reason
            return
        self.signatures[run.arm], steps = steady(run.ranks)
        self.steps_s.setdefault(run.arm, {})[launch] = medians_s(steps)
        self.device = run.ranks[0]["device"]
        if any(rank["phases"] for rank in run.ranks):
            self.phases[run.arm] = [phases_s(rank) for rank in steps]

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
        pairs = _paired(self.slowest_s(reference), self.slowest_s(arm))
        if not pairs:
            return None
        ratios = [(before - after) / before for before, after in pairs]
        floor = self.spread_ratio
        return Saved(float(np.median(ratios)), floor is not None and len(pairs) > 1 and min(ratios) > floor)

    def changed(self, arm: str) -> bool:
        """Whether its step consists of something else than the baseline's."""
        return self.signatures.get(arm) != self.signatures.get("baseline")


@dataclass(frozen=True)
class Saved:
    """Of a step.

    Attributes:
        ratio: of the step's time.
        is_certain: more than the A/A spread in every launch.
    """

    ratio: float
    is_certain: bool


def _paired(first: Mapping[int, float], second: Mapping[int, float]) -> list[tuple[float, float]]:
    return [(first[launch], second[launch]) for launch in sorted(first.keys() & second.keys())]


def answer(measured: Measured) -> list[str]:
    """At most eight lines: where the time goes, what would change it, and what to try next."""
    if "baseline" not in measured.steps_s:
        return [f"Not measured, because {measured.reasons.get('baseline', 'the baseline did not run')}."]
    spread = measured.spread_ratio
    floor = (
        "no A/A pair: nothing is claimed" if spread is None else f"A/A spread {spread:.1%}, nothing below it"
    )
    exchange, faster_input = measured.saved("baseline", "no_exchange"), _input_saved(measured)
    slow = slow_rank(measured)
    lines = [
        f"A step takes {_ms(measured.step_s('baseline'))} ({floor}).",
        _where(measured),
        _slow_text(measured, slow),
        _exchange_text(measured, exchange),
        _input_text(measured, faster_input),
        _efficiency_text(measured),
        _left_out_text(measured),
        f"Next: {_next(measured, slow, exchange, faster_input)}",
    ]
    return [line for line in lines if line]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _missing(measured: Measured, what: str, arm: str) -> str:
    reason = measured.reasons.get(arm, f"the arm {arm} was not asked for")
    return f"{what}: not measured, because {reason}."


def shares(measured: Measured) -> list[dict[str, float]]:
    """Of each rank, the seconds of a baseline step by phase, exchange and rest included; empty if unknown.

    On a CPU the phases are those of the run without exchange, so that no rank's wait for others is in them.
    Work on a GPU ends after the call that asks for it, so there they are those of the run that waits for it.
    """
    source = "marked" if measured.device == "cuda" else "no_exchange"
    by_rank, base = measured.phases.get(source), measured.steps_s["baseline"]
    if by_rank is None or "no_exchange" not in measured.steps_s:
        return []
    alone = measured.steps_s["no_exchange"]
    result = []
    for rank, phases in enumerate(by_rank):
        step_s = float(np.median([ranks[rank] for ranks in base.values()]))
        alone_s = float(np.median([ranks[rank] for ranks in alone.values()]))
        seconds = dict(phases)
        seconds["exchange"] = max(step_s - alone_s, 0.0)
        if source == "marked":
            seconds["backward"] = max(seconds["backward"] - seconds["exchange"], 0.0)
        seconds["rest"] = max(step_s - sum(seconds.values()), 0.0)
        result.append(seconds)
    return result


def _where(measured: Measured) -> str:
    by_rank = shares(measured)
    if not by_rank:
        return _missing(measured, "Where it goes", "no_exchange")
    parts, spread = [], measured.spread_ratio
    for rank, seconds in enumerate(by_rank):
        words = [(word, seconds[name]) for name, word in SHOWN]
        total_s = sum(seconds.values())
        said = [f"{word} {value / total_s:.0%}" for word, value in [*words, ("rest", seconds["rest"])]]
        # A difference of two arms; the others are times of one run.
        exchange = seconds["exchange"] / total_s
        is_above = spread is not None and exchange > spread
        said.append(f"exchange and waiting {f'{exchange:.0%}' if is_above else 'not above the spread'}")
        parts.append(f"rank {rank}: {', '.join(said)}")
    return f"Where it goes (phases of one run): {'; '.join(parts)}."


@dataclass(frozen=True)
class SlowRank:
    """The rank that the others wait for: its number, how much longer it takes alone, and in which phase."""

    rank: int
    longer_ratio: float
    phase: str


def slow_rank(measured: Measured) -> SlowRank | None:
    """The rank that is the slowest without exchange in every launch, by more than the A/A spread."""
    launches, spread = measured.steps_s.get("no_exchange", {}), measured.spread_ratio
    if spread is None or not launches or len(next(iter(launches.values()))) < 2:
        return None
    slowest = {int(np.argmax(ranks)) for ranks in launches.values()}
    if len(slowest) > 1:
        return None
    (rank,) = slowest
    base_s = measured.step_s("baseline")
    longer = [
        (ranks[rank] - float(np.median([s for at, s in enumerate(ranks) if at != rank]))) / base_s
        for ranks in launches.values()
    ]
    if min(longer) <= max(spread, 0.02):
        return None
    phases = measured.phases.get("no_exchange", [])
    excess: dict[str, float] = {}
    if phases:
        others = [seconds for at, seconds in enumerate(phases) if at != rank]
        excess = {
            word: phases[rank][name] - float(np.median([other[name] for other in others]))
            for name, word in SHOWN
        }
        step_excess_s = float(np.median(longer)) * base_s
        excess["rest of the step"] = step_excess_s - sum(excess.values())
    return SlowRank(
        rank, float(np.median(longer)), max(excess, key=lambda word: excess[word], default="step")
    )


def _slow_text(measured: Measured, slow: SlowRank | None) -> str:
    if "no_exchange" not in measured.steps_s:
        return _missing(measured, "Slow rank", "no_exchange")
    if slow is None:
        return "Slow rank: none above the A/A spread."
    return (
        f"Slow rank: rank {slow.rank}, in its {slow.phase}; alone it takes {slow.longer_ratio:.0%} of a step "
        "more than the others."
    )


def _exchange_text(measured: Measured, saved: Saved | None) -> str:
    if saved is None:
        return _missing(measured, "Without the exchange", "no_exchange")
    if measured.changed("no_exchange"):
        return "Without the exchange: not measured, because the script's step became another one."
    control = measured.saved("baseline", "hook_control")
    bound = (
        "its hook's cost is not known"
        if control is None
        else f"its hook costs {-control.ratio:.1%}"
        if -control.ratio > (measured.spread_ratio or 0.0)
        else "its hook costs less than the A/A spread"
    )
    if not saved.is_certain:
        return f"Without the exchange: no gain above the A/A spread ({bound})."
    return f"Without the exchange a step would be {saved.ratio:.0%} shorter ({bound})."


def _input_saved(measured: Measured) -> Saved | None:
    return None if measured.changed("cached_input") else measured.saved("baseline", "cached_input")


def _input_text(measured: Measured, saved: Saved | None) -> str:
    if saved is None:
        if "cached_input" in measured.steps_s:
            return "With cached input: not measured, because the script's step became another one."
        return _missing(measured, "With cached input", "cached_input")
    if not saved.is_certain:
        return "With cached input: no gain above the A/A spread."
    return f"With cached input a step would be {saved.ratio:.0%} shorter."


def _efficiency_text(measured: Measured) -> str:
    if "one_worker" not in measured.steps_s:
        return _missing(measured, "Efficiency against one worker", "one_worker")
    if measured.changed("one_worker"):
        one, many = measured.signatures["one_worker"], measured.signatures["baseline"]
        return (
            f"Efficiency: not measured, because with one worker the script makes {one[0]} backward passes "
            f"and {one[1]} batches a step instead of {many[0]} and {many[1]}."
        )
    ratio = measured.step_s("one_worker") / measured.step_s("baseline")
    return f"Efficiency against one worker: {ratio:.0%} for the same batch on each (seen once, no verdict)."


def _left_out_text(measured: Measured) -> str:
    some = [f"a run of {arm} ({why})" for arm, why in measured.reasons.items() if arm in measured.steps_s]
    return f"Left out: {'; '.join(some)}." if some else ""


def _next(
    measured: Measured, slow: SlowRank | None, exchange: Saved | None, faster_input: Saved | None
) -> str:
    """The experiment on what takes most."""
    found: list[tuple[float, str]] = []
    if slow is not None:
        found.append(
            (
                slow.longer_ratio,
                f"find out what rank {slow.rank} does in its {slow.phase} that others do not.",
            )
        )
    if faster_input is not None and faster_input.is_certain:
        found.append((faster_input.ratio, "more loader workers, or data that need less work for each batch."))
    if exchange is not None and exchange.is_certain:
        # What ranks wait for the slow one is not the exchange's.
        own = exchange.ratio - (slow.longer_ratio if slow else 0.0)
        found.append((own, "a larger batch on each rank or gradient accumulation: fewer exchanges a sample."))
    if found:
        return max(found)[1]
    return "nothing stands out; profile the computation itself, which the arms leave as it is."
