"""The table of accuracies compared with the noise of seeds (`scaling.analysis.seed_noise`)."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.formats import MISSING, percent, points
from scaling.analysis.seed_noise import Compared, SeedNoise
from scaling.report.tables import Table

STATISTIC = (
    "The reference is the combination with the most seeds. Difference: from its mean. Noise: what a further "
    "training of the reference would differ from that mean by in 95% of cases (Student's t from the spread "
    "of its seeds, of each comparison alone). Same seed: the mean difference from the reference's training "
    "of the same seed, which starts from the same weights and sees the same batches."
)


def seed_noise_tables(noises: Sequence[SeedNoise]) -> list[Table]:
    """One a recipe: the reference, then all others."""
    headings = (
        *("aggregator", "workers", "step", "exchange", "seeds", "test accuracy", "difference, points"),
        *("noise, points", "verdict", "same seed, points"),
    )
    return [
        Table(
            f"Accuracy compared with the noise of seeds: {noise.title}",
            STATISTIC,
            headings,
            [_reference_row(noise), *map(_row, noise.others)],
            cells=[noise.cells, *(other.cells for other in noise.others)],
            section="training",
        )
        for noise in noises
    ]


def _reference_row(noise: SeedNoise) -> list[str]:
    row = noise.reference
    accuracy = f"{percent(row['final_test_accuracy'], 2)} ± {100 * row['seed_sd_accuracy']:.2f}"
    first = [row["aggregator"], str(row["world_size"]), row["step"], "reference", str(row["num_seeds"])]
    return [*first, accuracy, MISSING, f"{100 * noise.noise:.2f}", MISSING, MISSING]


def _row(other: Compared) -> list[str]:
    row = other.row
    return [
        *(row["aggregator"], str(row["world_size"]), row["step"], other.exchange),
        *(str(row["num_seeds"] or 1), percent(row["final_test_accuracy"], 2)),
        *(points(other.difference), f"{100 * other.noise:.2f}", "within" if other.is_within else "beyond"),
        MISSING if other.at_equal_seed is None else points(other.at_equal_seed),
    ]
