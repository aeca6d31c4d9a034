"""Trade-offs: the settings that no other one beats in two values, both to be small."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from scaling.analysis.candidates import ENERGY, HOURS, MEMORY, NO_EXCHANGE, Candidate
from scaling.analysis.decisions import TIE_RATIO
from scaling.analysis.findings import Finding

AGAINST_TIME = (MEMORY, HOURS, ENERGY)
"""Objectives that are weighed against the time of a step; ties in them are broken by it."""

Point = TypeVar("Point")


def front(
    points: Iterable[Point],
    first: Callable[[Point], float],
    second: Callable[[Point], float],
    tie_ratio: float = 0.0,
) -> list[Point]:
    """The points that no other one beats in both values, the smallest first value first.

    Args:
        points: in any order.
        first, second: a point's values.
        tie_ratio: values that differ by less are the same: of equal first ones the smaller second one stands.
    """
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
