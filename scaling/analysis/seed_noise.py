"""Whether aggregators reach the same accuracy: their differences compared with those between seeds.

Trainings on text are compared by bits per byte, all others by test accuracy: their score.

1. The reference is the combination of aggregator and world size with the most seeds, of several an exact one
   and the one with the largest spread: n scores, their mean and standard deviation s.
2. One more training of the reference would lie within t s sqrt(1 + 1/n) of that mean, t being Student's
   quantile with n - 1 degrees of freedom: the prediction interval for a new value. The mean of m more lies
   within t s sqrt(1/m + 1/n).
3. A combination that lies within that bound does not differ from the reference beyond the noise of seeds.

The bound is for 95% of each comparison alone: of twenty that differ in nothing, one lies beyond it. Trainings
of the same seed start from the same weights and see the same batches: their difference, where both have the
seed, is given too. It is not chance between seeds, but what the exchange itself does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.analysis.columns import Row
from scaling.analysis.findings import Finding
from scaling.analysis.grouping import by_key
from scaling.analysis.groups import CellGroup, group_key
from scaling.analysis.learning import family_key, over_seeds
from scaling.analysis.samples import CellResult
from scaling.analysis.training_findings import setting
from scaling.measure.statistics import CONFIDENCE

BITS, ACCURACY = "bits_per_byte", "final_test_accuracy"


@dataclass(frozen=True)
class Compared:
    """A combination, compared with the reference.

    Attributes:
        row: over its seeds.
        cells: its cells' ids.
        is_lossy: whether its aggregator says so; one worker exchanges nothing, and loses nothing.
        score: the column that is compared: `BITS` or `ACCURACY`.
        mean: of the score over its seeds.
        difference: of that from the reference's mean.
        noise: what that may be by chance.
        at_equal_seed: mean difference at the seeds that both have; None where they share none.
    """

    row: Row
    cells: list[str]
    is_lossy: bool
    score: str
    mean: float
    difference: float
    noise: float
    at_equal_seed: float | None

    @property
    def is_within(self) -> bool:
        """Whether seeds alone can explain the difference."""
        return abs(self.difference) <= self.noise

    @property
    def verdict(self) -> str:
        """ "within", "worse" or "better"."""
        if self.is_within:
            return "within"
        return "worse" if (self.difference > 0) == (self.score == BITS) else "better"

    @property
    def exchange(self) -> str:
        """The exchange: exact, lossy, or none with one worker."""
        return "none" if self.row["world_size"] == 1 else _exactness(self.is_lossy)


@dataclass(frozen=True)
class SeedNoise:
    """All trainings of one recipe, compared with the combination that has most seeds.

    Attributes:
        given: what the reference's group has in common.
        reference: its row over seeds.
        cells: the reference's cells.
        is_lossy: whether its aggregator is, on its number of workers.
        score: the column that is compared.
        mean, spread: of the reference's score over its seeds: mean and standard deviation.
        noise: for one further training.
        others: in the table's order.
    """

    given: Mapping[str, Any]
    reference: Row
    cells: list[str]
    is_lossy: bool
    score: str
    mean: float
    spread: float
    noise: float
    others: list[Compared]


def noise_bound(
    spread: float, num_seeds: int, num_others: int = 1, *, degrees: int | None = None, comparisons: int = 1
) -> float:
    """The 95% bound on the difference between the mean of that many further trainings and that of the seeds.

    Args:
        spread: standard deviation over the seeds.
        num_seeds: behind it and the mean; two at least.
        num_others: further trainings.
        degrees: of freedom behind the spread; by default those of its seeds.
        comparisons: for which the bound holds together (Bonferroni).
    """
    from scipy import special  # scipy.stats has the same by name, but takes seconds to import

    degrees = num_seeds - 1 if degrees is None else degrees
    quantile = float(special.stdtrit(degrees, 1 - (1 - CONFIDENCE) / 2 / comparisons))
    return quantile * spread * math.sqrt(1 / num_others + 1 / num_seeds)


def seed_noise(groups: Sequence[CellGroup], cells: Mapping[str, CellResult]) -> list[SeedNoise]:
    """One result for each recipe trained with several seeds and on several combinations.

    Groups that differ in the step alone are taken together: it changes the time, and no sum. Combinations
    of another global batch than the reference's are trained by another recipe, and left out.
    """
    trained = (group for group in groups if group.kind == "convergence")
    recipes = by_key(trained, lambda group: group_key({**group.rows[0], "step": None}))
    noises = []
    for recipe in recipes.values():
        families = _families(recipe)
        score = BITS if any(row[BITS] is not None for _, rows in families for row in rows) else ACCURACY
        # Where a loss was not finite there is nothing to compare: another finding says so.
        families = [family for family in families if all(row[score] is not None for row in family[1])]
        known = [family for family in families if _spread(family, score) > 0]
        if not known:
            continue
        reference = max(known, key=lambda family: (*_rank(family[0][0], cells), _spread(family, score)))
        others = [
            _compared(reference, family, score, cells)
            for family in families
            if family is not reference and family[0][0]["global_batch"] == reference[0][0]["global_batch"]
        ]
        if others:
            row, group = reference[0]
            mean, spread = _mean(reference, score), _spread(reference, score)
            bound = noise_bound(spread, row["num_seeds"])
            ids, lossy = _ids(reference[1]), _is_lossy(row, cells)
            noises.append(SeedNoise(group.given, row, ids, lossy, score, mean, spread, bound, others))
    return noises


def _rank(row: Row, cells: Mapping[str, CellResult]) -> tuple[int, bool]:
    """A sort key; the largest is the reference. With a diverged lossy reference all others would count as
    noise.
    """
    return row["num_seeds"], not _is_lossy(row, cells)


def _is_lossy(row: Row, cells: Mapping[str, CellResult]) -> bool:
    return row["world_size"] > 1 and bool(cells[row["cell_id"]].cell.get("lossy"))


_Family = tuple[tuple[Row, CellGroup], list[Row]]


def _families(groups: Sequence[CellGroup]) -> list[_Family]:
    """((row over seeds, group), rows of the seeds) for all combinations with an accuracy."""
    families: list[_Family] = []
    for group in groups:
        done = [row for row in group.rows if row["repeats"]]
        members = by_key(done, family_key).values()
        for merged, rows in zip(over_seeds(done), members, strict=True):
            if merged["final_test_accuracy"] is not None:
                families.append(((merged, group), rows))
    return families


def _scores(family: _Family, score: str) -> list[float]:
    return [float(row[score]) for row in family[1]]


def _mean(family: _Family, score: str) -> float:
    return statistics.fmean(_scores(family, score))


def _spread(family: _Family, score: str) -> float:
    """The standard deviation over the seeds; 0 of one."""
    scores = _scores(family, score)
    return statistics.stdev(scores) if len(scores) > 1 else 0.0


def _compared(reference: _Family, other: _Family, score: str, cells: Mapping[str, CellResult]) -> Compared:
    base, row, mean = reference[0][0], other[0][0], _mean(other, score)
    by_seed = {row["seed"]: row[score] for row in reference[1]}
    pairs = [row[score] - by_seed[row["seed"]] for row in other[1] if row["seed"] in by_seed]
    return Compared(
        row, _ids(other[1]), _is_lossy(row, cells), score, mean,
        difference=mean - _mean(reference, score),
        noise=noise_bound(_spread(reference, score), base["num_seeds"], row["num_seeds"] or 1),
        at_equal_seed=statistics.fmean(pairs) if pairs else None,
    )  # fmt: skip


def _ids(rows: Sequence[Row]) -> list[str]:
    return [str(row["cell_id"]) for row in rows]


def seed_noise_finding(noise: SeedNoise) -> Finding:
    """The noise, and the combinations within it."""
    row, others = noise.reference, noise.others
    reference = {**setting(row), "mean": noise.mean, "spread": noise.spread, "num_seeds": row["num_seeds"]}
    paired = [
        abs(other.at_equal_seed) for other in others if not other.is_lossy and other.at_equal_seed is not None
    ]
    values = {
        "given": noise.given,
        "score": noise.score,
        "reference": {**reference, "exchange": _exactness(noise.is_lossy)},
        "noise": noise.noise,
        "others": [_values(other) for other in others],
        "largest_at_equal_seed": max(paired, default=None),
    }
    cells = (*noise.cells, *(cell for other in others for cell in other.cells))
    return Finding("seed_noise", cells, values)


def _values(other: Compared) -> dict[str, Any]:
    return {
        **setting(other.row),
        "exchange": _exactness(other.is_lossy),
        "mean": other.mean,
        "difference": other.difference,
        "distance": abs(other.difference),
        "verdict": other.verdict,
    }


def _exactness(is_lossy: bool) -> str:
    return "lossy" if is_lossy else "exact"
