"""The objectives of `recommend`, as a user writes them, and trade-offs between two of them.

A trade-off has the settings that no other one beats in two values, both to be small.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scaling.analysis.candidates import (
    ACCURACY,
    EFFICIENCY,
    ENERGY,
    HOURS,
    MEMORY,
    NO_EXCHANGE,
    TIME,
    Candidate,
)
from scaling.analysis.decisions import TIE_RATIO
from scaling.analysis.findings import Finding
from scaling.errors import ScalingError

AGAINST_TIME = (MEMORY, HOURS, ENERGY)  # weighed against the time of a step, which breaks ties in them

Point = TypeVar("Point")


def front(
    points: Iterable[Point],
    first: Callable[[Point], float],
    second: Callable[[Point], float],
    tie_ratio: float = 0.0,
) -> list[Point]:
    """The points that no other one beats in both values, the smallest first value first. Values that differ
    by less than `tie_ratio` are the same: of equal first ones the smaller second one stands."""
    found: list[Point] = []
    floor = 0.0
    for point in sorted(points, key=lambda point: (first(point), second(point))):
        if found and second(point) * (1 + tie_ratio) >= second(found[-1]):
            continue
        if found and first(point) <= floor * (1 + tie_ratio):
            found[-1] = point
            continue
        floor = first(point)
        found.append(point)
    return found


def seconds_a_sample(candidate: Candidate) -> float:
    """The time of a step over its samples, which world sizes and batches do not change."""
    return float(candidate.row["iteration_s"] / candidate.row["global_batch"])


def trade_off(objective: str, candidates: Sequence[Candidate]) -> Finding | None:
    """The front of an objective and of the time of a step; None where one setting is the best in both."""
    if objective not in AGAINST_TIME:
        return None
    found = front(candidates, lambda one: one.value, seconds_a_sample, TIE_RATIO)
    if len(found) < 2:
        return None
    names = ("iteration_s", "global_batch")
    points: list[dict[str, Any]] = [
        {**one.values(), "further": _differing(one, candidates), **{name: one.row[name] for name in names}}
        for one in found
    ]
    values = {
        "objective": objective,
        "points": points,
        "by_step": len({p["global_batch"] for p in points}) == 1,
    }
    return Finding("trade_off", tuple(one.cell_id for one in found), values)


def _differing(one: Candidate, others: Sequence[Candidate]) -> list[str]:
    own = [part for part in one.parts[1:] if part != NO_EXCHANGE]
    return [part for part in own if any(part not in other.parts for other in others)]


TARGET = "time-to-target"  # of settings that were not trained: `scaling.analysis.critical_batch`
OBJECTIVES = (TIME, ACCURACY, f"{EFFICIENCY} >= 0.8", HOURS, ENERGY, MEMORY)  # one of each, as an example

_EFFICIENCY = re.compile(rf"\s*{EFFICIENCY}\s*(?:>=|>|≥)\s*(\d+(?:\.\d+)?)\s*(%?)\s*")


@dataclass(frozen=True)
class Objective:
    """What is minimized, and under which condition."""

    name: str  # TIME, ACCURACY, EFFICIENCY, HOURS, ENERGY or MEMORY
    text: str  # as it was asked for
    smallest_efficiency: float | None = None  # a candidate's parallel efficiency is at least this; None: any

    def with_ties_by_time(self, candidates: Sequence[Candidate], are_ties: Sequence[bool]) -> list[Candidate]:
        """The candidates, smallest value first; of those that tie with the first the fastest is in front."""
        if self.name not in AGAINST_TIME:
            return list(candidates)
        tied = [candidates[0], *(one for one, is_tie in zip(candidates, are_ties, strict=True) if is_tie)]
        seconds = [seconds_a_sample(one) for one in tied]
        are_fast = [one_s <= (1 + TIE_RATIO) * min(seconds) for one_s in seconds]
        choice = tied[are_fast.index(True)]
        return [choice, *(one for one in candidates if one is not choice)]


def parse_objective(text: str) -> Objective:
    """Reads an objective; ScalingError where there is no such one."""
    if text in (TIME, ACCURACY, HOURS, ENERGY, MEMORY):
        return Objective(text, text)
    if match := _EFFICIENCY.fullmatch(text):
        bound = float(match[1]) / (100 if match[2] else 1)
        if not 0 < bound <= 2:
            raise ScalingError(f"the efficiency is {bound:g}; it is a ratio such as 0.8")
        return Objective(EFFICIENCY, text, bound)
    allowed = ", ".join(f"'{objective}'" for objective in (*OBJECTIVES, TARGET))
    raise ScalingError(f"no objective {text!r}; allowed: {allowed}")
