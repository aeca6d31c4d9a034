"""Whether aggregators reach the same accuracy: their differences compared with those between seeds.

Trainings on text are compared by bits per byte, all others by test accuracy: their score. The exact
combinations of aggregator and world size are the reference (`scaling.analysis.seed_decisions`).

Trainings of the same seed start from the same weights and see the same batches: their difference, where both
have the seed, is given too. It is not chance between seeds, but what the exchange itself does.

Whether the accuracy of a lossy aggregator was measured and is as good; without that it is not recommended.

A gradient that is brought together with loss may train to another accuracy, and the times do not show it. An
aggregator is lossy where its cell says so; cells of folders that do not say so are judged by the name.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from operator import itemgetter
from typing import Any

from scaling.analysis.columns import Row, aggregator_name, by_key, pick
from scaling.analysis.findings import Finding
from scaling.analysis.groups import CellGroup, group_key, group_rows
from scaling.analysis.learning import REACHED, family_key, over_seeds
from scaling.analysis.samples import CellResult
from scaling.analysis.seed_decisions import WITHIN, WORSE, Combination, SeedDecision, bound, decide
from scaling.analysis.summary_findings import setting
from scaling.axes import Shared, columns
from scaling.measure.statistics import CONFIDENCE

BITS, ACCURACY = "bits_per_byte", "final_test_accuracy"
REFERENCE = "reference"

KNOWN_LOSSY = ("one_bit", "mpi_one_bit", "cntk")  # for folders that are older than the cells' own word


def is_lossy(cell: CellResult) -> bool:
    known = cell.cell.get("lossy")
    return aggregator_name(cell.label("aggregator")) in KNOWN_LOSSY if known is None else bool(known)


@dataclass(frozen=True)
class Compared:
    row: Row  # over its seeds
    cells: list[str]  # its cells' ids
    is_lossy: bool  # whether its aggregator says so; one worker exchanges nothing, and loses nothing
    mean: float  # of the score over its seeds
    # the difference as the score has it; None of the only exact one, which is the reference
    decision: SeedDecision | None
    # mean difference from the (other) exact ones at the seeds that both have, if any
    at_equal_seed: float | None

    @property
    def verdict(self) -> str:
        return REFERENCE if self.decision is None else self.decision.verdict

    @property
    def exchange(self) -> str:
        return "none" if self.row["world_size"] == 1 else "lossy" if self.is_lossy else "exact"


@dataclass(frozen=True)
class SeedNoise:
    """All trainings of one recipe, compared with the exact ones."""

    given: Mapping[str, Any]  # what their groups have in common
    score: str  # the column that is compared: `BITS` or `ACCURACY`
    mean: float  # of the exact combinations that do not differ
    spread: float  # standard deviation over seeds, of all exact combinations
    noise: float  # in 95% of cases one more exact training is nearer to the mean
    # in the table's order; none where exact ones show no spread, and nothing is decided
    combinations: list[Compared]

    @property
    def exact(self) -> list[Compared]:
        return [one for one in self.combinations if not one.is_lossy and one.verdict in (REFERENCE, WITHIN)]


_Family = tuple[tuple[Row, CellGroup], list[Row]]


def seed_noise(groups: Sequence[CellGroup], cells: Mapping[str, CellResult]) -> list[SeedNoise]:
    """One result a recipe and global batch trained on several combinations, whatever the step. Where no exact
    one shows a spread over seeds it is without decisions, and is there if a lossy one was trained."""
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
    return Combination(scores, row["world_size"] > 1 and is_lossy(cells[row["cell_id"]]), row["world_size"])


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
            **pick(vars(noise), "mean", "spread"),
            "num_exact": len(exact),
            "num_seeds": max(one.row["num_seeds"] or 1 for one in exact),
        },
        "noise": noise.noise,
        "others": [_values(one, one.decision) for one in tested if one.decision],
        "largest_at_equal_seed": max(at_equal_seed, default=None),
    }
    cells = tuple(cell for one in noise.combinations for cell in one.cells)
    return Finding("seed_noise", cells, values)


def _values(one: Compared, decision: SeedDecision) -> dict[str, Any]:
    return {
        **setting(one.row),
        "exchange": "lossy" if one.is_lossy else "exact",
        "mean": one.mean,
        "distance": abs(decision.difference),
        **vars(decision),
    }


LARGEST_LOSS = 0.01  # the accuracy that a lossy training may lose where no exact one shows how seeds scatter
SAME_UPDATE = columns(Shared.UPDATE)  # what the timed cell and the training share, besides the workload


def lossy_ids(cells: Sequence[CellResult]) -> frozenset[str]:
    return frozenset(cell.cell_id for cell in cells if cell.is_trained and is_lossy(cell))


class Trainings:
    """The trainings of a study, from its rows and samples: what its lossy cells are judged by."""

    def __init__(self, rows: Sequence[Row], cells: Sequence[CellResult]) -> None:
        self._rows, self._cells, self._lossy = rows, cells, lossy_ids(cells)
        trained = [row for row in rows if row["kind"] == "convergence" and row["repeats"]]
        self._of_aggregator = by_key(trained, lambda row: (_same(row), row["aggregator"]))
        self._of_update = by_key(trained, lambda row: (_same(row), _update(row)))

    @cached_property
    def _noise(self) -> list[SeedNoise]:
        return seed_noise(group_rows(self._rows), {cell.cell_id: cell for cell in self._cells})

    def why_not(self, row: Row, cell: CellResult) -> Finding | None:
        """Why a lossy cell may not be recommended, if it may not: it may with a training that differs in the
        time alone and reached its target in every repeat, or, without a target, ended no further below exact
        ones than allowed."""
        if not is_lossy(cell) or row["world_size"] == 1:
            return None
        same_aggregator = self._of_aggregator.get((_same(row), row["aggregator"]))
        if not same_aggregator:
            return Finding("lossy_not_trained")
        same_update = self._of_update.get((_same(row), _update(row)), [])
        own_same = [other for other in same_update if other["aggregator"] == row["aggregator"]]
        if not own_same:
            return _trained_otherwise(row, same_aggregator)
        exact = [other for other in same_update if other["cell_id"] not in self._lossy]
        for other in own_same:
            if other["target_state"] == REACHED:
                continue
            if (state := other["target_state"]) is not None:
                return Finding("lossy_missed_target", (other["cell_id"],), {"target_state": state})
            if (loss := self._lost(other, exact)) is not None:
                return loss
        return None

    def _lost(self, lossy: Row, exact: Sequence[Row]) -> Finding | None:
        """Whether it is worse by what `seed_noise` decides; without a spread over seeds, by LARGEST_LOSS."""
        scored = [row for row in exact if row["final_test_accuracy"] is not None]
        if lossy["final_test_accuracy"] is None or not scored:
            return Finding("lossy_without_exact", (lossy["cell_id"],))
        for noise in self._noise:
            for one in noise.combinations:
                if lossy["cell_id"] in one.cells and one.decision is not None:
                    lost = {"lost": abs(one.decision.difference), "score": noise.score}
                    lost["reference"] = "exact aggregators"
                    ids = (*one.cells, *(cell_id for other in noise.exact for cell_id in other.cells))
                    return Finding("lossy_below", ids, lost) if one.verdict == WORSE else None
        reference = max(scored, key=lambda row: row["final_test_accuracy"])
        lost_accuracy = reference["final_test_accuracy"] - lossy["final_test_accuracy"]
        if lost_accuracy <= LARGEST_LOSS:
            return None
        values = {"lost": lost_accuracy, "score": ACCURACY, "reference": reference["aggregator"]}
        return Finding("lossy_below", (lossy["cell_id"], reference["cell_id"]), values)


_same, _update = itemgetter("model", "dataset", "world_size"), itemgetter(*SAME_UPDATE)


def _trained_otherwise(row: Row, trained: Sequence[Row]) -> Finding:
    """The variables in which the trainings differ from the row, with their values."""
    names = [name for name in SAME_UPDATE if any(other[name] != row[name] for other in trained)]
    here, *others = ({name: trained_row[name] for name in names} for trained_row in (row, *trained))
    different = [*{tuple(other.values()): other for other in others}.values()]
    cells = tuple(other["cell_id"] for other in trained)
    return Finding("lossy_trained_otherwise", cells, {"trained_with": different, "wanted": here})
