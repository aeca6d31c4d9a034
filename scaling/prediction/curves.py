"""Points of a curve of computation over local batches: their order, and the lines between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev


@dataclass(frozen=True)
class Point:
    """One local batch: the step, and the phases that were measured, in seconds; from so many folders."""

    local_batch: int
    step_s: float
    relative_sd: float
    phases: Mapping[str, float] = field(default_factory=dict)
    num_sources: int = 1
    step_sd: float | None = None


def rising(points: Sequence[Point]) -> list[Point]:
    """Neighbours of which the larger batch takes less time get their mean, with their spread."""
    blocks: list[list[Point]] = []
    for point in points:
        blocks.append([point])
        while len(blocks) > 1 and fmean(p.step_s for p in blocks[-1]) < fmean(p.step_s for p in blocks[-2]):
            blocks[-2:] = [[*blocks[-2], *blocks[-1]]]
    return [pooled for block in blocks for pooled in _pooled(block)]


def _pooled(block: Sequence[Point]) -> list[Point]:
    if len(block) == 1:
        return list(block)
    step_s = fmean(point.step_s for point in block)
    spread = stdev(point.step_s for point in block) / step_s
    return [replace(point, step_s=step_s, relative_sd=max(spread, point.relative_sd)) for point in block]


def line(curve: Sequence[Point], values: Sequence[float], local_batch: int) -> float:
    """On the line through the two points around, or the two nearest; never below a tenth of the least."""
    near = around(curve, local_batch)
    at = [values[curve.index(point)] for point in near]
    if len(near) == 1:
        return at[0]
    a, b = (point.local_batch for point in near)
    return max(at[0] + (at[1] - at[0]) * (local_batch - a) / (b - a), 0.1 * min(values))


def around(curve: Sequence[Point], local_batch: int) -> Sequence[Point]:
    """The point of that batch, or else the two around it, or the two nearest."""
    batches = [point.local_batch for point in curve]
    if local_batch in batches:
        return [curve[batches.index(local_batch)]]
    above = next((i for i, batch in enumerate(batches) if batch > local_batch), len(batches) - 1)
    return curve[max(above, 1) - 1 : max(above, 1) + 1]


def phase(curve: Sequence[Point], name: str, local_batch: int) -> float | None:
    known = [point for point in curve if name in point.phases]
    if not known:
        return None
    if len(known) == 1:
        return known[0].phases[name]
    return line(known, [point.phases[name] for point in known], local_batch)
