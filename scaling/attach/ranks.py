"""Where each rank's step of an attached script goes, and which ranks are slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.attach.measured import Measured

LEAST_SLOWER = 0.02  # of a step: a rank that is less slow is not named; less than ties, for all wait for it
MOST_VARIATION = 2.0  # upper to lower quartile of a rank's steps without exchange


def varies(measured: Measured, arm: str) -> bool:
    """Whether an arm's steps of one rank take so different times that their medians tell little."""
    return measured.variation.get(arm, 1.0) > MOST_VARIATION


def shares(measured: Measured) -> list[dict[str, float]]:
    """Of each rank, the seconds of a baseline step by phase, exchange and rest included; empty if unknown."""
    by_rank, alone = measured.phases_of(measured.phase_source), measured.steps_s.get("no_exchange")
    if not by_rank or not alone or measured.changed("no_exchange") or varies(measured, "no_exchange"):
        return []
    result = []
    for rank, phases in enumerate(by_rank):
        both = [[ranks[rank] for ranks in of.values()] for of in (measured.steps_s["baseline"], alone)]
        step_s, alone_s = (float(np.median(launches)) for launches in both)
        seconds = {**phases, "exchange": max(step_s - alone_s, 0.0)}
        result.append({**seconds, "rest": max(step_s - sum(seconds.values()), 0.0)})
    return result


@dataclass(frozen=True)
class SlowRank:
    """The ranks that the others wait for, how much longer they take by themselves, and in which phase."""

    ranks: tuple[int, ...]
    longer_ratio: float
    phase: str
    batch_ratio: float = 1.0  # their elements of a batch, to those of the others
    batch_error: float = 0.0  # the standard error of it

    @property
    def has_larger_batch(self) -> bool:
        """Whether its batches explain that it is slow: they are larger beyond the sampling error."""
        return self.batch_ratio > 1.1 and self.batch_ratio - 1 > 2 * self.batch_error


def slow_rank(measured: Measured) -> SlowRank | None:
    """The ranks that are by themselves slower than the others in every launch, above the A/A spread."""
    launches, spread = measured.own_s.get(measured.own_arm, {}), measured.spread_ratio
    if spread is None or len(launches) < 2 or len(next(iter(launches.values()))) < 2:
        return None
    if measured.changed(measured.own_arm) or varies(measured, measured.own_arm):
        return None
    base_s, least = measured.usual_s, max(spread, LEAST_SLOWER)
    group, longer_s = _longer(list(launches.values()))
    if min(longer_s, default=0.0) <= least * base_s:
        return _slow_in_a_phase(measured, least * base_s)
    ratio = float(np.median(longer_s)) / base_s
    phase = _slow_phase(measured, group, ratio * base_s)
    return SlowRank(group, ratio, phase, *_batch_ratio(measured, group))


def _longer(launches: Sequence[Sequence[float]]) -> tuple[tuple[int, ...], list[float]]:
    groups = {_above_gap(ranks) for ranks in launches}
    if len(groups) != 1 or not (group := groups.pop()):
        return (), []
    return group, [
        min(ranks[at] for at in group) - max(s for at, s in enumerate(ranks) if at not in group)
        for ranks in launches
    ]


def _slow_in_a_phase(measured: Measured, least_s: float) -> SlowRank | None:
    """Those with the longest steps in each launch, and one phase longer by `least_s`: steps vary more."""
    arm, found = measured.phase_source, list[tuple[float, tuple[int, ...], str]]()
    steps, phases = measured.steps_s.get(arm, {}), measured.phases.get(arm, {})
    slowest, _ = _longer(list(steps.values()))
    if not slowest or len(phases) < 2 or measured.changed(arm):
        return None
    for name, word in measured.phase_words:
        group, longer_s = _longer([[rank[name] for rank in ranks] for ranks in phases.values()])
        if name != "collective" and group == slowest and min(longer_s, default=0.0) > least_s:
            found.append((float(np.median(longer_s)), group, word))
    if not found:
        return None
    seconds, group, word = max(found)
    return SlowRank(group, seconds / measured.usual_s, word, *_batch_ratio(measured, group))


def _slow_phase(measured: Measured, group: Sequence[int], longer_s: float) -> str:
    """The phase that explains most of the `longer_s` that a group of ranks takes more; "step" if unknown."""
    phases = measured.phases_of(measured.phase_source)
    if not phases:
        return "step"
    slow = [seconds for rank, seconds in enumerate(phases) if rank in group]
    others = [seconds for rank, seconds in enumerate(phases) if rank not in group]
    excess = {
        word: float(np.median([rank[name] for rank in slow]) - np.median([rank[name] for rank in others]))
        for name, word in measured.phase_words
        if name != "collective"
    }
    excess["time outside these phases (rest)"] = longer_s - sum(excess.values())
    return max(excess, key=lambda word: excess[word])


def _above_gap(ranks: Sequence[float]) -> tuple[int, ...]:
    order = np.argsort(ranks)
    cut = int(np.argmax(np.diff(np.asarray(ranks)[order]))) + 1
    slow = tuple(sorted(int(at) for at in order[cut:]))
    return slow if len(slow) <= len(ranks) / 2 else ()


def batch_elements(measured: Measured) -> np.ndarray[Any, Any] | None:
    drawn = [[size for _, size in rank["batches"]] for rank in measured.alone]
    shortest = min(map(len, drawn), default=0)
    return np.array([rank[:shortest] for rank in drawn], dtype=float) if shortest else None


def _batch_ratio(measured: Measured, group: Sequence[int]) -> tuple[float, float]:
    sizes = batch_elements(measured)
    if sizes is None:
        return 1.0, 0.0
    others = ~(in_group := np.isin(range(len(sizes)), group))
    ratio = float(sizes[in_group].mean() / max(sizes[others].mean(), 1e-9))
    relative = float(sizes.std() / max(sizes.mean(), 1e-9))
    return ratio, ratio * relative * (1 / sizes[in_group].size + 1 / sizes[others].size) ** 0.5


def unevenness(sizes: np.ndarray[Any, Any]) -> float:
    """Of [rank][batch] elements, the largest of a step to the mean of its ranks, on average."""
    return float((sizes.max(axis=0) / np.maximum(sizes.mean(axis=0), 1e-9)).mean())
