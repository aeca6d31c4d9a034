"""The table of accuracies compared with the noise of seeds (`scaling.analysis.seed_noise`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaling.analysis.seed_noise import Compared, SeedNoise
from scaling.report.formats import MISSING, percent, points
from scaling.report.tables import Column, Table, table_of
from scaling.report.titles import title_of

STATISTIC = (
    "The reference is the combination with the most seeds. Difference: from its mean. Noise: what a further "
    "training of the reference would differ from that mean by in 95% of cases (Student's t from the spread "
    "of its seeds, of each comparison alone). Same seed: the mean difference from the reference's training "
    "of the same seed, which starts from the same weights and sees the same batches."
)


COLUMNS: tuple[Column[Compared], ...] = (
    Column("aggregator", lambda other: other.row["aggregator"]),
    Column("workers", lambda other: str(other.row["world_size"])),
    Column("step", lambda other: other.row["step"]),
    Column("exchange", lambda other: other.exchange),
    Column("seeds", lambda other: str(other.row["num_seeds"] or 1)),
    Column("test accuracy", lambda other: percent(other.row["final_test_accuracy"], 2)),
    Column("difference, points", lambda other: points(other.difference)),
    Column("noise, points", lambda other: f"{100 * other.noise:.2f}"),
    Column("verdict", lambda other: "within" if other.is_within else "beyond"),
    Column(
        "same seed, points",
        lambda other: MISSING if other.at_equal_seed is None else points(other.at_equal_seed),
    ),
)


def seed_noise_tables(noises: Sequence[SeedNoise]) -> list[Table]:
    """One a recipe: the reference, then all others."""
    return [_table(noise) for noise in noises]


def _table(noise: SeedNoise) -> Table:
    title = f"Accuracy compared with the noise of seeds: {title_of(noise.given)}"
    cells = [noise.cells, *(other.cells for other in noise.others)]
    table = table_of(title, STATISTIC, COLUMNS, noise.others, cells=cells, section="training")
    return replace(table, rows=[_reference_row(noise), *table.rows])


def _reference_row(noise: SeedNoise) -> list[str]:
    row = noise.reference
    accuracy = f"{percent(row['final_test_accuracy'], 2)} ± {100 * row['seed_sd_accuracy']:.2f}"
    first = [row["aggregator"], str(row["world_size"]), row["step"], "reference", str(row["num_seeds"])]
    return [*first, accuracy, MISSING, f"{100 * noise.noise:.2f}", MISSING, MISSING]
