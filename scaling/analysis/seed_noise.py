"""Whether aggregators reach the same accuracy: their differences compared with those between seeds.

Trainings on text are compared by bits per byte, all others by test accuracy: their score. The exact
combinations of aggregator and world size are the reference (`scaling.analysis.seed_decisions`).

Trainings of the same seed start from the same weights and see the same batches: their difference, where both
have the seed, is given too. It is not chance between seeds, but what the exchange itself does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from scaling.analysis.columns import Row, aggregator_name
from scaling.analysis.findings import Finding
from scaling.analysis.grouping import by_key
from scaling.analysis.groups import CellGroup, group_key
from scaling.analysis.learning import family_key, over_seeds
from scaling.analysis.samples import CellResult
from scaling.analysis.seed_decisions import WITHIN, Combination, Decision, bound, decide
from scaling.analysis.training_findings import setting
from scaling.measure.statistics import CONFIDENCE

BITS, ACCURACY = "bits_per_byte", "final_test_accuracy"
REFERENCE = "reference"

KNOWN_LOSSY = ("one_bit", "mpi_one_bit", "cntk")
"""For folders that are older than the cells' own word."""


def is_lossy(cell: CellResult) -> bool:
    """Whether the exchange changes the gradient."""
    known = cell.cell.get("lossy")
    return aggregator_name(cell.label("aggregator")) in KNOWN_LOSSY if known is None else bool(known)


@dataclass(frozen=True)
class Compared:
    """A combination, compared with the exact ones.

    Attributes:
        row: over its seeds.
        cells: its cells' ids.
        is_lossy: whether its aggregator says so; one worker exchanges nothing, and loses nothing.
        mean: of the score over its seeds.
        decision: the difference as the score has it; None of the only exact one, which is the reference.
        at_equal_seed: mean difference from the (other) exact ones at the seeds that both have, if any.
    """

    row: Row
    cells: list[str]
    is_lossy: bool
    mean: float
    decision: Decision | None
    at_equal_seed: float | None

    @property
    def verdict(self) -> str:
        """ "reference", "within", "worse" or "better"."""
        return REFERENCE if self.decision is None else self.decision.verdict

    @property
    def exchange(self) -> str:
        """The exchange: exact, lossy, or none with one worker."""
        return "none" if self.row["world_size"] == 1 else "lossy" if self.is_lossy else "exact"


@dataclass(frozen=True)
class SeedNoise:
    """All trainings of one recipe, compared with the exact ones.

    Attributes:
        given: what their groups have in common.
        score: the column that is compared: `BITS` or `ACCURACY`.
        mean: of the exact combinations that do not differ.
        spread: standard deviation over seeds, of all exact combinations.
        noise: in 95% of cases one more exact training is nearer to the mean.
        combinations: in the table's order; none where exact ones show no spread, and nothing is decided.
    """

    given: Mapping[str, Any]
    score: str
    mean: float
    spread: float
    noise: float
    combinations: list[Compared]

    @property
    def exact(self) -> list[Compared]:
        """Those that make the reference."""
        return [one for one in self.combinations if not one.is_lossy and one.verdict in (REFERENCE, WITHIN)]


_Family = tuple[tuple[Row, CellGroup], list[Row]]


def seed_noise(groups: Sequence[CellGroup], cells: Mapping[str, CellResult]) -> list[SeedNoise]:
    """One result for each recipe and global batch trained on several combinations.

    Groups that differ in the step alone are taken together: it changes the time, and no sum. Where no exact
    combination shows a spread over seeds, there is a result, without decisions, if a lossy one was trained.
    """
    trained = (group for group in groups if group.kind == "convergence")
    recipes = by_key(trained, lambda group: group_key({**group.rows[0], "step": None}))
    noises = []
    for recipe in recipes.values():
        by_batch = by_key(_families(recipe), lambda family: family[0][0]["global_batch"])
        for families in by_batch.values():
            score = BITS if any(row[BITS] is not None for _, rows in families for row in rows) else ACCURACY
            # Where a loss was not finite there is nothing to compare: another finding says so.
            scored = [family for family in families if all(row[score] is not None for row in family[1])]
            if len(scored) > 1 and (noise := _noise(scored, score, cells)) is not None:
                noises.append(noise)
    return noises


def _noise(families: Sequence[_Family], score: str, cells: Mapping[str, CellResult]) -> SeedNoise | None:
    sign = -1 if score == BITS else 1
    trained = [_combination(family, score, sign, cells) for family in families]
    given, decided = families[0][0][1].given, decide(trained)
    if decided is None:
        has_lossy = any(one.is_lossy for one in trained)
        return SeedNoise(given, score, math.nan, math.nan, math.nan, []) if has_lossy else None
    noise, decisions = decided
    compared = [
        Compared(
            row, [str(seed["cell_id"]) for seed in rows], one.is_lossy, sign * one.mean,
            replace(decision, difference=sign * decision.difference) if decision else None,
            _at_equal_seed(one, trained, sign),
        )
        for ((row, _), rows), one, decision in zip(families, trained, decisions, strict=True)
    ]  # fmt: skip
    is_exact = [not one.is_lossy and one.verdict in (REFERENCE, WITHIN) for one in compared]
    mean, of_mean = noise.mean(list(compress(trained, is_exact)))
    spread, error = math.sqrt(noise.variance), math.sqrt(noise.variance + of_mean)
    further = bound(error, noise.degrees, (1 - CONFIDENCE) / 2)
    return SeedNoise(given, score, sign * mean, spread, further, compared)


def _combination(family: _Family, score: str, sign: int, cells: Mapping[str, CellResult]) -> Combination:
    (row, _), rows = family
    scores: dict[Hashable, float] = {}
    for one in rows:
        scores[one["cell_id"] if one["seed"] in scores else one["seed"]] = sign * float(one[score])
    lossy = row["world_size"] > 1 and is_lossy(cells[row["cell_id"]])
    return Combination(scores, lossy, row["world_size"])


def _at_equal_seed(one: Combination, trained: Sequence[Combination], sign: int) -> float | None:
    """The mean over the seeds of its difference from the other exact ones of that seed."""
    others = [other.scores for other in trained if other is not one and not other.is_lossy]
    differences = [
        score - statistics.fmean(same)
        for seed, score in one.scores.items()
        if (same := [scores[seed] for scores in others if seed in scores])
    ]
    return sign * statistics.fmean(differences) if differences else None


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


def seed_noise_finding(noise: SeedNoise) -> Finding:
    """The noise, and the combinations within it."""
    if not noise.combinations:
        return Finding("seed_noise_unknown", (), {"given": noise.given, "score": noise.score})
    exact, tested = noise.exact, [one for one in noise.combinations if one.decision is not None]
    at_equal_seed = [
        abs(one.at_equal_seed) for one in tested if not one.is_lossy and one.at_equal_seed is not None
    ]
    values = {
        "given": noise.given,
        "score": noise.score,
        "reference": {
            **setting(exact[0].row),
            "num_exact": len(exact),
            "mean": noise.mean,
            "spread": noise.spread,
            "num_seeds": max(one.row["num_seeds"] or 1 for one in exact),
        },
        "noise": noise.noise,
        "others": [_values(one, one.decision) for one in tested if one.decision],
        "largest_at_equal_seed": max(at_equal_seed, default=None),
    }
    cells = tuple(cell for one in noise.combinations for cell in one.cells)
    return Finding("seed_noise", cells, values)


def _values(one: Compared, decision: Decision) -> dict[str, Any]:
    return {
        **setting(one.row),
        "exchange": "lossy" if one.is_lossy else "exact",
        "mean": one.mean,
        "difference": decision.difference,
        "distance": abs(decision.difference),
        "noise": decision.noise,
        "verdict": decision.verdict,
    }
