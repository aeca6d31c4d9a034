"""Whether aggregators reach the same accuracy: their differences beside what seeds alone do.

1. The reference is the combination of aggregator and world size with the most seeds, of several an exact one
   and the one with the largest spread: n accuracies, their mean and standard deviation s.
2. One more training of the reference would lie within t s sqrt(1 + 1/n) of that mean, t being Student's
   quantile with n - 1 degrees of freedom: the prediction interval for a new value. The mean of m more lies
   within t s sqrt(1/m + 1/n).
3. A combination that lies within that bound does not differ from the reference beyond the noise of seeds.

The bound is for 95% of each comparison alone: of twenty that differ in nothing, one lies beyond it. Trainings
of the same seed start from the same weights and see the same batches: their difference, where both have the
seed, is given beside it. It is not chance between seeds, but what the exchange itself does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaling.analysis.columns import Row
from scaling.analysis.formats import MISSING, listed, percent, workers
from scaling.analysis.groups import Group, group_key
from scaling.analysis.learning import family_key, over_seeds
from scaling.analysis.samples import CellResult
from scaling.measure.statistics import CONFIDENCE
from scaling.report.page_tables import PageTable

STATISTIC = (
    "The reference is the combination with the most seeds. Difference: from its mean. Noise: what a further "
    "training of the reference would differ from that mean by in 95% of cases (Student's t from the spread "
    "of its seeds, of each comparison alone). Same seed: the mean difference from the reference's training "
    "of the same seed, which starts from the same weights and sees the same batches."
)
HEADINGS = (
    *("aggregator", "workers", "step", "exchange", "seeds", "test accuracy", "difference, points"),
    *("noise, points", "verdict", "same seed, points"),
)


@dataclass(frozen=True)
class Compared:
    """A combination beside the reference.

    Attributes:
        row: over its seeds.
        cells: its cells' ids.
        is_lossy: whether its aggregator says so; one worker exchanges nothing, and loses nothing.
        difference: of its mean accuracy from the reference's, a ratio.
        noise: what that may be by chance, a ratio.
        at_equal_seed: mean difference at the seeds that both have; None where they share none.
    """

    row: Row
    cells: list[str]
    is_lossy: bool
    difference: float
    noise: float
    at_equal_seed: float | None

    @property
    def is_within(self) -> bool:
        """Whether seeds alone may differ as much."""
        return abs(self.difference) <= self.noise

    @property
    def name(self) -> str:
        """`ring on 2 workers`."""
        return named(self.row)


@dataclass(frozen=True)
class SeedNoise:
    """All trainings of one recipe, beside the one with the most seeds.

    Attributes:
        title: of the reference's group.
        reference: its row over seeds.
        cells: the reference's cells.
        is_lossy: whether its aggregator is, on its number of workers.
        noise: for one further training, a ratio.
        others: in the table's order.
    """

    title: str
    reference: Row
    cells: list[str]
    is_lossy: bool
    noise: float
    others: list[Compared]


def named(row: Row) -> str:
    """`ring on 2 workers`."""
    return f"{row['aggregator']} on {workers(row['world_size'])}"


def noise_bound(spread: float, num_seeds: int, num_others: int = 1) -> float:
    """What the mean of so many further trainings differs from that of the seeds by, in 95% of cases.

    Args:
        spread: standard deviation over the seeds.
        num_seeds: behind it and the mean; two at least.
        num_others: further trainings.
    """
    from scipy import special  # scipy.stats has the same by name, but takes seconds to import

    quantile = float(special.stdtrit(num_seeds - 1, (1 + CONFIDENCE) / 2))
    return quantile * spread * math.sqrt(1 / num_others + 1 / num_seeds)


def seed_noise(groups: Sequence[Group], cells: Mapping[str, CellResult]) -> list[SeedNoise]:
    """One for each recipe that was trained with several seeds and on several combinations.

    Groups that differ in the step alone are taken together: it changes the time, and no sum. Combinations
    of another global batch than the reference's are trained by another recipe, and left out.

    Args:
        groups: all of the summary.
        cells: the samples, by cell id.
    """
    recipes: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        if group.kind == "convergence":
            recipes.setdefault(group_key({**group.rows[0], "step": None}), []).append(group)
    found = []
    for alike in recipes.values():
        families = _families(alike)
        known = [own for own in families if (own[0][0]["seed_sd_accuracy"] or 0.0) > 0]
        if not known:
            continue
        reference = max(known, key=lambda own: _rank(own[0][0], cells))
        others = [
            _compared(reference, own, cells)
            for own in families
            if own is not reference and own[0][0]["global_batch"] == reference[0][0]["global_batch"]
        ]
        if others:
            row, group = reference[0]
            bound = noise_bound(row["seed_sd_accuracy"], row["num_seeds"])
            lossy = _is_lossy(row, cells)
            found.append(SeedNoise(group.title, row, _ids(reference[1]), lossy, bound, others))
    return found


def _rank(row: Row, cells: Mapping[str, CellResult]) -> tuple[int, bool, float]:
    """The largest is the reference's: beside a lossy one that goes astray all others would be noise."""
    return row["num_seeds"], not _is_lossy(row, cells), row["seed_sd_accuracy"]


def _is_lossy(row: Row, cells: Mapping[str, CellResult]) -> bool:
    return row["world_size"] > 1 and bool(cells[row["cell_id"]].cell.get("lossy"))


_Family = tuple[tuple[Row, Group], list[Row]]


def _families(groups: Sequence[Group]) -> list[_Family]:
    """((row over seeds, group), rows of the seeds) of all combinations that have an accuracy."""
    found: list[_Family] = []
    for group in groups:
        done = [row for row in group.rows if row["repeats"]]
        members: dict[tuple[object, ...], list[Row]] = {}
        for row in done:
            members.setdefault(family_key(row), []).append(row)
        for merged, own in zip(over_seeds(done), members.values(), strict=True):
            if merged["final_test_accuracy"] is not None:
                found.append(((merged, group), own))
    return found


def _compared(reference: _Family, other: _Family, cells: Mapping[str, CellResult]) -> Compared:
    (base, _), (row, _) = reference[0], other[0]
    bound = noise_bound(base["seed_sd_accuracy"], base["num_seeds"], row["num_seeds"] or 1)
    by_seed = {one["seed"]: one["final_test_accuracy"] for one in reference[1]}
    pairs = [
        one["final_test_accuracy"] - by_seed[one["seed"]]
        for one in other[1]
        if one["seed"] in by_seed and one["final_test_accuracy"] is not None
    ]
    return Compared(
        row,
        _ids(other[1]),
        _is_lossy(row, cells),
        row["final_test_accuracy"] - base["final_test_accuracy"],
        bound,
        sum(pairs) / len(pairs) if pairs else None,
    )


def _ids(rows: Sequence[Row]) -> list[str]:
    return [str(row["cell_id"]) for row in rows]


def seed_noise_tables(found: Sequence[SeedNoise]) -> list[PageTable]:
    """One a recipe: the reference, then all others."""
    return [
        PageTable(
            f"Accuracy beside the noise of seeds: {one.title}",
            STATISTIC,
            list(HEADINGS),
            [_reference_row(one), *(_row(other) for other in one.others)],
            cells=[one.cells, *(other.cells for other in one.others)],
            section="training",
        )
        for one in found
    ]


def _reference_row(one: SeedNoise) -> list[str]:
    row = one.reference
    accuracy = f"{percent(row['final_test_accuracy'], 2)} ± {100 * row['seed_sd_accuracy']:.2f}"
    first = [row["aggregator"], str(row["world_size"]), row["step"], "reference", str(row["num_seeds"])]
    return [*first, accuracy, MISSING, f"{100 * one.noise:.2f}", MISSING, MISSING]


def _row(one: Compared) -> list[str]:
    row = one.row
    return [
        *(row["aggregator"], str(row["world_size"]), row["step"], _exchange(one)),
        *(str(row["num_seeds"] or 1), percent(row["final_test_accuracy"], 2)),
        *(_points(one.difference), f"{100 * one.noise:.2f}", "within" if one.is_within else "beyond"),
        MISSING if one.at_equal_seed is None else _points(one.at_equal_seed),
    ]


def _exchange(one: Compared) -> str:
    if one.row["world_size"] == 1:
        return "none"
    return "lossy" if one.is_lossy else "exact"


def _points(ratio: float) -> str:
    text = f"{100 * ratio:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def seed_noise_sentences(found: Sequence[SeedNoise]) -> list[str]:
    """One a recipe: the noise, the exact aggregators beside it, then the lossy ones."""
    return [_sentence(one) for one in found]


def _sentence(one: SeedNoise) -> str:
    row = one.reference
    exact = [other for other in one.others if not other.is_lossy]
    lossy = [other for other in one.others if other.is_lossy]
    kinds = ((exact, "exact", not one.is_lossy), (lossy, "lossy", one.is_lossy))
    told = [_verdict(own, kind, has_reference=has) for own, kind, has in kinds if own]
    paired = [abs(other.at_equal_seed) for other in exact if other.at_equal_seed is not None]
    same_seed = ""
    if paired:
        same_seed = (
            f" Beside the reference's training of the same seed, exact ones differ in accuracy by "
            f"{100 * max(paired):.2f} points at most."
        )
    return (
        f"{one.title}: is the accuracy the same? {named(row)} reaches "
        f"{percent(row['final_test_accuracy'], 2)} (standard deviation over {row['num_seeds']} seeds "
        f"{percent(row['seed_sd_accuracy'], 2)}), so that another seed would lie within "
        f"{100 * one.noise:.2f} points of it in 95% of cases. {' '.join(told)}{same_seed}"
    )


def _verdict(own: Sequence[Compared], kind: str, *, has_reference: bool) -> str:
    """`All 7 other exact combinations are within that noise: the furthest is ring on 1 worker (+0.08).`"""
    furthest = max(own, key=lambda one: abs(one.difference))
    beyond = [one for one in own if not one.is_within]
    if not beyond:
        if len(own) == 1:
            return f"The {kind} {own[0].name} is within that noise ({_points(own[0].difference)} points)."
        return (
            f"All {len(own)} {'other ' * has_reference}{kind} combinations are within that noise: the "
            f"furthest is {furthest.name} ({_points(furthest.difference)} points)."
        )
    each = listed([f"{one.name} ({_points(one.difference)} points)" for one in beyond])
    rest = f", the other {len(own) - len(beyond)} within it" if len(beyond) < len(own) else ""
    return f"Of the {kind} ones {each} lie{'s' * (len(beyond) == 1)} beyond that noise{rest}."
