"""The objectives of `recommend`, as users write them, the scatter of their values, and trade-offs.

A trade-off between two objectives has the settings that no other one beats in two values, both to be small.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
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
    CandidateSet,
)
from scaling.analysis.columns import pick
from scaling.analysis.decisions import TIE_RATIO, Difference, with_variance
from scaling.analysis.findings import Finding
from scaling.analysis.study_scatter import MODERATED, StudyScatter, study_scatter
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
    points: list[dict[str, Any]] = [
        one.values()
        | {"further": _differing(one, candidates), **pick(one.row, "iteration_s", "global_batch")}
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


# Of settings that were not trained, by what is to be small: `scaling.analysis.critical_batch`.
TARGETS = {"time-to-target": "seconds", f"{HOURS}-to-target": "hours", f"{ENERGY}-to-target": "joules"}
OBJECTIVES = (TIME, ACCURACY, f"{EFFICIENCY} >= 0.8", HOURS, ENERGY, MEMORY)  # one of each, as an example

_EFFICIENCY = re.compile(rf"\s*{EFFICIENCY}\s*(?:>=|>|≥)\s*(\d+(?:\.\d+)?)\s*(%?)\s*")


@dataclass(frozen=True)
class Scatters:
    """How candidates scatter over launches: the study's times, and what else is made smallest."""

    of_times: StudyScatter
    of_values: StudyScatter | None

    def difference(self, first: Candidate, second: Candidate) -> Difference:
        log_factor = math.log(second.factor / first.factor)
        difference = (self.of_values or self.of_times).difference(first.cell_id, second.cell_id, log_factor)
        left_open = (first.open_ratio**2 + second.open_ratio**2) / 3  # evenly within the instrument's step
        return with_variance(difference, left_open, difference.degrees or 1.0) if left_open else difference


def scatters_and_intervals(
    objective: str, sets: Sequence[CandidateSet], of_times: StudyScatter
) -> tuple[Scatters, list[CandidateSet]]:
    """The scatter of all workloads' candidates, and the workloads with intervals from that scatter.
    Time to an accuracy, energy and memory have a scatter of their own, other objectives that of the steps."""
    if objective not in (ACCURACY, ENERGY, MEMORY):
        return Scatters(of_times, None), list(sets)
    candidates = [one for workload in sets for one in workload.candidates]
    of_values = study_scatter({one.cell_id: one.times for one in candidates})

    def with_interval(one: Candidate) -> Candidate:
        if (interval := of_values.interval(one.cell_id)) is None:
            return one
        low, high = interval[0] * (1 - one.open_ratio), interval[1] * (1 + one.open_ratio)
        return replace(one, low=low, high=high, method=MODERATED)

    return Scatters(of_times, of_values), [
        replace(workload, candidates=[*map(with_interval, workload.candidates)]) for workload in sets
    ]


@dataclass(frozen=True)
class Objective:
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
    allowed = ", ".join(f"'{objective}'" for objective in (*OBJECTIVES, *TARGETS))
    raise ScalingError(f"no objective {text!r}; allowed: {allowed}")
