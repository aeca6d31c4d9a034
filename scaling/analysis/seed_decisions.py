"""Which combinations of a recipe end better or worse than their seeds explain.

Exact combinations have one mean and variance; lossy variances are moderated; Welch's t with Holm over them.
The method: docs/background/statistics.md; how often it is right: `benchmarks/seed_quality.py`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from scaling.analysis.columns import by_key

WORSE_LEVEL, BETTER_LEVEL = 0.035, 0.003  # chances to call a lossy combination so where none is
MORE_OF_FEW, FEW_DEGREES = 0.008, (1.9, 3.0)  # added where Welch's t of so few degrees is too careful
EXACT_LEVEL = 0.005  # the chance to call an exact one either

OUTLIER_LEVEL = 0.01
OTHERS = 2 / 3

UNKNOWN_RATIO, UNKNOWN_DEGREES = 3.0, 3.0  # of lossy ones without a second seed: variance over exact

WITHIN, WORSE, BETTER = "within", "worse", "better"


@dataclass(frozen=True)
class Combination:
    """An aggregator on a number of workers, with the score of each seed: the larger the better."""

    scores: Mapping[Hashable, float]
    is_lossy: bool
    world_size: int

    @property
    def mean(self) -> float:
        return fmean(self.scores.values())

    @property
    def degrees(self) -> int:
        return len(self.scores) - 1

    @property
    def squares(self) -> float:
        return math.fsum((score - self.mean) ** 2 for score in self.scores.values())


@dataclass(frozen=True)
class SeedDecision:
    difference: float  # of a mean from that of (the other) exact combinations
    noise: float  # what it may be by chance in that direction
    verdict: str  # WITHIN, WORSE or BETTER


@dataclass(frozen=True)
class PooledNoise:
    """Of exact combinations: variance of a score over seeds, its degrees, correlation of equal seeds."""

    variance: float
    degrees: float
    correlation: float

    def mean(self, exact: Sequence[Combination]) -> tuple[float, float]:
        """The mean over seeds of the mean of each seed, and its variance."""
        by_seed = by_key((pair for one in exact for pair in one.scores.items()), lambda pair: pair[0])
        scores = [[score for _, score in pairs] for pairs in by_seed.values()]
        parts = [(1 + (len(same) - 1) * self.correlation) / len(same) for same in scores]
        return fmean(map(fmean, scores)), self.variance * math.fsum(parts) / len(parts) ** 2


def decide(trained: Sequence[Combination]) -> tuple[PooledNoise, list[SeedDecision | None]] | None:
    """A decision for each combination; None for one without another exact one, or without a spread."""
    exact = {place: one for place, one in enumerate(trained) if not one.is_lossy}
    lossy = {place: one for place, one in enumerate(trained) if one.is_lossy}
    noise = _noise([one for one in exact.values() if one.degrees])
    if noise is None:
        return None
    decisions = _of_exact(exact, noise, EXACT_LEVEL + (0 if lossy else WORSE_LEVEL + BETTER_LEVEL))
    differ = {place for place, decision in decisions.items() if decision.verdict != WITHIN}
    alike = [one for place, one in exact.items() if place not in differ]
    decisions |= _of_lossy(lossy, alike, noise)
    return noise, [decisions.get(place) for place in range(len(trained))]


def _noise(exact: Sequence[Combination]) -> PooledNoise | None:
    degrees = sum(one.degrees for one in exact)
    variance = math.fsum(one.squares for one in exact) / max(degrees, 1)
    if variance == 0:
        return None
    products, shared_degrees = 0.0, 0
    for one, other in combinations(exact, 2):
        pairs = [(score, other.scores[seed]) for seed, score in one.scores.items() if seed in other.scores]
        if len(pairs) > 1:
            middle, other_middle = (fmean(scores) for scores in zip(*pairs, strict=True))
            products += math.fsum((left - middle) * (right - other_middle) for left, right in pairs)
            shared_degrees += len(pairs) - 1
    correlation = min(1.0, max(0.0, products / shared_degrees / variance)) if shared_degrees else 1.0
    return PooledNoise(variance, degrees / (1 + (len(exact) - 1) * correlation**2), correlation)


def _of_exact(exact: Mapping[int, Combination], noise: PooledNoise, level: float) -> dict[int, SeedDecision]:
    """Decisions of all but a single one that remains."""
    decisions: dict[int, SeedDecision] = {}
    left = dict(exact)
    while len(left) > 1:
        # Of two that differ, the one with fewer seeds does from the other; else the later one.
        tests = []
        for place, one in left.items():
            middle, variance = noise.mean([other for key, other in left.items() if key != place])
            error = math.sqrt(noise.variance / len(one.scores) + variance)
            limit = bound(error, noise.degrees, level / 2 / len(left))
            decisions[place] = SeedDecision(one.mean - middle, limit, WITHIN)
            tests.append((round(abs(one.mean - middle) / limit, 9), -len(one.scores), place))
        furthest = max(tests)[2]
        decision = decisions[furthest]
        if abs(decision.difference) <= decision.noise:
            return decisions
        decisions[furthest] = _beyond(decision.difference, decision.noise)
        del left[furthest]
    return {place: decision for place, decision in decisions.items() if place not in left}


def _of_lossy(
    lossy: Mapping[int, Combination], exact: Sequence[Combination], noise: PooledNoise
) -> dict[int, SeedDecision]:
    variances, tests = _lossy_variances(list(lossy.values()), noise), []
    is_of_few = FEW_DEGREES[0] < noise.degrees < FEW_DEGREES[1] and any(one.degrees for one in lossy.values())
    worse_level = WORSE_LEVEL + MORE_OF_FEW * is_of_few
    for (place, one), (variance, own_degrees) in zip(lossy.items(), variances, strict=True):
        same_size = [other for other in exact if other.world_size == one.world_size]
        has_several = len({seed for other in same_size for seed in other.scores}) > 1
        middle, of_middle = noise.mean(same_size if has_several else exact)
        own = variance / len(one.scores)
        if math.isfinite(own_degrees):
            degrees = (own + of_middle) ** 2 / (own**2 / own_degrees + of_middle**2 / noise.degrees)
        else:  # Both parts are the exact ones' variance.
            degrees = min(UNKNOWN_DEGREES, noise.degrees)
        difference, error = one.mean - middle, math.sqrt(own + of_middle)
        level = worse_level if difference < 0 else BETTER_LEVEL
        chance = float(_special().stdtr(degrees, -abs(difference) / error))
        tests.append((chance / level, place, difference, error, degrees, level))
    decisions, remaining, is_open = {}, len(tests), True
    for chance, place, difference, error, degrees, level in sorted(tests):
        is_open = is_open and chance <= 1 / remaining
        limit = bound(error, degrees, level / remaining)
        decisions[place] = _beyond(difference, limit) if is_open else SeedDecision(difference, limit, WITHIN)
        remaining -= is_open
    return decisions


def _lossy_variances(lossy: Sequence[Combination], noise: PooledNoise) -> list[tuple[float, float]]:
    """Of each, the variance of a score over seeds and its degrees of freedom; infinite if it is assumed."""
    ratios = [one.squares / max(one.degrees, 1) / noise.variance for one in lossy]
    is_outlier = [
        one.degrees > 0 and _special().fdtrc(one.degrees, noise.degrees, ratio) < OUTLIER_LEVEL
        for one, ratio in zip(lossy, ratios, strict=True)
    ]
    ordinary = [one for one, is_out in zip(lossy, is_outlier, strict=True) if not is_out]
    degrees = sum(one.degrees for one in ordinary)
    if not any(one.degrees for one in lossy):
        return [(UNKNOWN_RATIO * noise.variance, math.inf)] * len(lossy)
    pooled = max(noise.variance, math.fsum(one.squares for one in ordinary) / max(degrees, 1))
    variances = []
    for one, ratio, is_out in zip(lossy, ratios, is_outlier, strict=True):
        weight = 1 + OTHERS * (degrees - one.degrees)
        moderated = (weight * pooled + one.squares) / (weight + one.degrees)
        own = ratio * noise.variance, float(one.degrees)
        variances.append(own if is_out else (moderated, weight + one.degrees / 2))
    return variances


def _beyond(difference: float, limit: float) -> SeedDecision:
    return SeedDecision(difference, limit, WORSE if difference < 0 else BETTER)


def bound(error: float, degrees: float, level: float) -> float:
    """What a difference of that standard error exceeds, in one direction, with that chance."""
    return -error * float(_special().stdtrit(degrees, level))


def _special() -> Any:
    from scipy import special  # scipy.stats has the same by name, but takes seconds to import

    return special
