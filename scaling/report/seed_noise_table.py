"""The table of accuracies compared with the noise of seeds (`scaling.analysis.seed_noise`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaling.analysis.seed_noise import BITS, Compared, SeedNoise
from scaling.report.formats import MISSING, percent, points
from scaling.report.tables import Column, Table, table_of
from scaling.report.titles import title_of

STATISTIC = (
    "Exact aggregators sum the same numbers: together they are the reference, and their spread over seeds is "
    "pooled. Difference: of the mean over seeds from theirs (of an exact one: from the others). Noise: a "
    "smaller difference in that direction may be chance (Welch's t with moderated variances, Holm over the "
    "lossy combinations). Same seed: the mean difference from exact trainings of the same seed, which start "
    "from the same weights and see the same batches."
)
LEFT_OUT = ("step", "exchange", "same seed")  # columns that the answer's table does not have
_FIRST: tuple[Column[Compared], ...] = (
    Column("aggregator", lambda other: other.row["aggregator"]),
    Column("workers", lambda other: str(other.row["world_size"])),
    Column("step", lambda other: other.row["step"]),
    Column("exchange", lambda other: other.exchange),
    Column("seeds", lambda other: str(other.row["num_seeds"] or 1)),
)


def _columns(score: str) -> list[Column[Compared]]:
    unit, difference = ("", "{:+.3f}".format) if score == BITS else (", points", points)

    def shown(value: float | None) -> str:
        return MISSING if value is None else difference(value)

    return [
        *_FIRST,
        Column(
            "bits per byte" if score == BITS else "test accuracy", lambda other: _shown(score, other.mean)
        ),
        Column(f"difference{unit}", lambda other: shown(getattr(other.decision, "difference", None))),
        Column(f"noise{unit}", lambda other: shown(getattr(other.decision, "noise", None)).lstrip("+")),
        Column("verdict", lambda other: other.verdict),
        Column(f"same seed{unit}", lambda other: shown(other.at_equal_seed)),
    ]


def _shown(score: str, value: float) -> str:
    return f"{value:.3f}" if score == BITS else percent(value, 2)


def seed_noise_tables(noises: Sequence[SeedNoise]) -> list[Table]:
    return [_table(noise) for noise in noises if noise.combinations]


def noise_table(noises: Sequence[SeedNoise]) -> Table | None:
    """What the answer begins with, of the only recipe: each combination's difference and verdict."""
    if len(noises) != 1 or not noises[0].combinations:
        return None
    table = _table(noises[0])
    places = [place for place, name in enumerate(table.headings) if name.partition(",")[0] not in LEFT_OUT]
    headings, *rows = ([row[place] for place in places] for row in (table.headings, *table.rows))
    return replace(table, headings=headings, rows=rows, section="")


def _table(noise: SeedNoise) -> Table:
    what = "Bits per byte" if noise.score == BITS else "Accuracy"
    title = f"{what} compared with the noise of seeds: {title_of(noise.given)}"
    cells = [one.cells for one in noise.combinations]
    spread = f"{noise.spread:.3f}" if noise.score == BITS else f"{100 * noise.spread:.2f} points"
    statistic = f"{STATISTIC} Exact: {_shown(noise.score, noise.mean)}, standard deviation {spread}."
    columns = _columns(noise.score)
    return table_of(title, statistic, columns, noise.combinations, cells=cells, section="training")
