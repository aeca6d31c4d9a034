"""The table of accuracies compared with the noise of seeds (`scaling.analysis.seed_noise`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaling.analysis.seed_noise import BITS, Compared, SeedNoise
from scaling.report.formats import MISSING, percent, points
from scaling.report.tables import Column, Table, table_of
from scaling.report.titles import title_of

STATISTIC = (
    "The reference is the combination with the most seeds. Difference: from its mean. Noise: in 95% of "
    "cases a further training of the reference differs from that mean by less (Student's t from the spread "
    "of its seeds, for each comparison alone). Same seed: the mean difference from the reference's training "
    "of the same seed, which starts from the same weights and sees the same batches."
)


_FIRST: tuple[Column[Compared], ...] = (
    Column("aggregator", lambda other: other.row["aggregator"]),
    Column("workers", lambda other: str(other.row["world_size"])),
    Column("step", lambda other: other.row["step"]),
    Column("exchange", lambda other: other.exchange),
    Column("seeds", lambda other: str(other.row["num_seeds"] or 1)),
)


def _columns(score: str) -> list[Column[Compared]]:
    unit, difference = ("", _difference_in_bits) if score == BITS else (", points", points)
    return [
        *_FIRST,
        Column(
            "bits per byte" if score == BITS else "test accuracy", lambda other: _shown(score, other.mean)
        ),
        Column(f"difference{unit}", lambda other: difference(other.difference)),
        Column(f"noise{unit}", lambda other: difference(other.noise).removeprefix("+")),
        Column("verdict", lambda other: other.verdict),
        Column(
            f"same seed{unit}",
            lambda other: MISSING if other.at_equal_seed is None else difference(other.at_equal_seed),
        ),
    ]


def _difference_in_bits(value: float) -> str:
    return f"{value:+.3f}"


def _shown(score: str, value: float) -> str:
    return f"{value:.3f}" if score == BITS else percent(value, 2)


def seed_noise_tables(noises: Sequence[SeedNoise]) -> list[Table]:
    """One a recipe: the reference, then all others."""
    return [_table(noise) for noise in noises]


def _table(noise: SeedNoise) -> Table:
    what = "Bits per byte" if noise.score == BITS else "Accuracy"
    title = f"{what} compared with the noise of seeds: {title_of(noise.given)}"
    cells = [noise.cells, *(other.cells for other in noise.others)]
    columns = _columns(noise.score)
    table = table_of(title, STATISTIC, columns, noise.others, cells=cells, section="training")
    return replace(table, rows=[_reference_row(noise), *table.rows])


def _reference_row(noise: SeedNoise) -> list[str]:
    row = noise.reference
    spread = f"{noise.spread:.3f}" if noise.score == BITS else f"{100 * noise.spread:.2f}"
    mean = f"{_shown(noise.score, noise.mean)} ± {spread}"
    first = [row["aggregator"], str(row["world_size"]), row["step"], "reference", str(row["num_seeds"])]
    bound = f"{noise.noise:.3f}" if noise.score == BITS else f"{100 * noise.noise:.2f}"
    return [*first, mean, MISSING, bound, MISSING, MISSING]
