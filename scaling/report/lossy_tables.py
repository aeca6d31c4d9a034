"""What lossy aggregators save and what that costs: from the folder's own cells, and from fidelity sheets.

Of each lossy aggregator and world size: bytes, encoding, time and accuracy compared with those of an exact
one that is equal in everything else. Whether its replicas agree and how far its mean is from the exact one is
no matter of a study: `scaling verify NAME --save-to DIR` measures it and puts the sheet into the folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scaling.analysis.columns import Row, aggregator_name, is_control_arm
from scaling.analysis.groups import CellGroup
from scaling.analysis.learning import over_seeds
from scaling.analysis.samples import CellResult
from scaling.analysis.seed_noise import BITS, Compared, SeedNoise, is_lossy
from scaling.report.formats import MISSING, megabytes, milliseconds, number, percent, points
from scaling.report.tables import Column, Table, table_of
from scaling.report.text import title_of

REFERENCE = "all_reduce"
"""The exact aggregator that others are compared with; where it is missing, the fastest exact one."""

STATISTIC = (
    "Each lossy aggregator is compared with an exact one, equal in all else: all_reduce, or without it the "
    "fastest (of trainings the most accurate). scaling verify NAME --save-to DIR measures its error, whether "
    "its replicas agree, and below which bandwidth it pays off."
)

SHEET_STATISTIC = (
    "By scaling verify, apart from this study and perhaps on another machine: errors are those of the mean "
    "against float64, as parts of its 2-norm; replicas are compared bit for bit; it pays on links below "
    "(bytes that it saves) / (seconds of encoding and decoding), latency and overlap left out."
)


def sheet_tables(sheets: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    if not sheets:
        return []
    some = next(iter(sheets.values()))
    title = f"Fidelity sheets: {some['num_steps']} steps, {some['world_size']} ranks, {some['trained_on']}"
    return [
        table_of(title, SHEET_STATISTIC, SHEET_COLUMNS, sheets.items(), section="lossy", source="sheets/")
    ]


_NamedSheet = tuple[str, Mapping[str, Any]]


def _value(header: str, key: str, form: str = ".3g") -> Column[_NamedSheet]:
    return Column(header, lambda named: format(named[1][key], form))


def _rate(header: str, key: str) -> Column[_NamedSheet]:
    def text(named: _NamedSheet) -> str:
        rate = named[1][f"{key}_bytes_per_s"]
        return MISSING if rate is None else f"{rate / 1e9:.3g}"

    return Column(header, text)


SHEET_COLUMNS: tuple[Column[_NamedSheet], ...] = (
    Column("lossy", lambda named: named[0]),
    _value("error, first step", "first_error_ratio"),
    _value("error, all steps", "sum_error_ratio"),
    Column(
        "replicas",
        lambda of: "the same bits" if of[1]["replicas_agree"] else f"off by {of[1]['replicas_off_by']:.3g}",
    ),
    _value("bytes", "metered_bytes", ","),
    _value("all_reduce's", "exact_bytes", ","),
    _rate("encode, GB/s", "encode"),
    _rate("decode, GB/s", "decode"),
    Column("host, us a bucket", lambda of: number(of[1].get("host_us_per_bucket"), digits=1)),
    _rate("pays below, GB/s", "break_even"),
    Column("measured on", lambda named: str(named[1]["measured_on"])),
)


@dataclass(frozen=True)
class _Pair:
    """A lossy cell and the exact one that it is compared with; None where there is none."""

    group: CellGroup
    row: Row
    other: Row | None

    def both(self, name: str) -> tuple[Any, Any]:
        return self.row[name], self.other[name] if self.other else None

    def share(self, name: str) -> str:
        """The lossy one's as a part of the exact one's."""
        lossy, exact = self.both(name)
        return percent(lossy / exact) if lossy is not None and exact else MISSING

    @property
    def coding_s(self) -> float | None:
        """Encoding and decoding; None where neither was marked."""
        known = [self.row[name] for name in ("encode_s", "decode_s") if self.row[name] is not None]
        return sum(known) if known else None

    @property
    def accuracy_points(self) -> str:
        """The lossy one's accuracy less the exact one's."""
        lossy, exact = self.both("final_test_accuracy")
        return MISSING if lossy is None or exact is None else f"{100 * (lossy - exact):+.2f}"


_SENT: tuple[Column[_Pair], ...] = (
    Column("lossy", lambda pair: pair.group.name(pair.row)),
    Column("exact", lambda pair: pair.group.name(pair.other) if pair.other else MISSING),
    Column("workers", lambda pair: str(pair.row["world_size"])),
    Column("MB moved a rank", lambda pair: megabytes(pair.both("wire_bytes_per_rank")[0])),
    Column("exact one's, MB", lambda pair: megabytes(pair.both("wire_bytes_per_rank")[1])),
    Column("ratio", lambda pair: pair.share("wire_bytes_per_rank")),
)
COLUMNS: dict[str, tuple[Column[_Pair], ...]] = {
    "iteration": (
        *_SENT,
        Column("encode + decode, ms", lambda pair: milliseconds(pair.coding_s)),
        Column("ms a step", lambda pair: milliseconds(pair.both("iteration_s")[0])),
        Column("exact one's, ms", lambda pair: milliseconds(pair.both("iteration_s")[1])),
        Column("ratio", lambda pair: pair.share("iteration_s")),
    ),
    "convergence": (
        *_SENT,
        Column("test accuracy", lambda pair: percent(pair.both("final_test_accuracy")[0], 2)),
        Column("exact one's", lambda pair: percent(pair.both("final_test_accuracy")[1], 2)),
        Column("difference, points", lambda pair: pair.accuracy_points),
    ),
}


def fidelity_tables(groups: Sequence[CellGroup], cells: Mapping[str, CellResult]) -> list[Table]:
    tables = []
    for group in groups:
        if group.kind not in COLUMNS:
            continue
        rows = _rows(group)
        lossy = [row for row in rows if row["world_size"] > 1 and is_lossy(cells[row["cell_id"]])]
        if not lossy:
            continue
        exact = [row for row in rows if not (is_lossy(cells[row["cell_id"]]) or is_control_arm(row))]
        pairs = [_Pair(group, row, _exact_one(row, exact)) for row in lossy]
        tables.append(
            table_of(
                f"{'Trainings' if group.kind == 'convergence' else 'Steps'}: {title_of(group.given)}",
                STATISTIC,
                COLUMNS[group.kind],
                pairs,
                remarks=_remarks(group, lossy, groups),
                cells=[[row["cell_id"] for row in (pair.row, pair.other) if row] for pair in pairs],
                section="lossy",
            )
        )
    return tables


def _rows(group: CellGroup) -> list[Row]:
    done = [row for row in group.rows if row["repeats"]]
    return over_seeds(done) if group.kind == "convergence" else done


def _exact_one(row: Row, exact: Iterable[Row]) -> Row | None:
    """The exact cell to compare with; None where there is none of that world size, buckets and input."""
    same = ("world_size", "input_placement", "loader_workers")
    comparable = [other for other in exact if all(other[name] == row[name] for name in same)]

    def order(other: Row) -> tuple[bool, bool, float]:
        is_reference = aggregator_name(other["aggregator"]) == REFERENCE
        accuracy = -(other["final_test_accuracy"] or 0.0)
        best = accuracy if row["kind"] == "convergence" else other["iteration_s"]
        return not is_reference, other["bucket_mb"] != row["bucket_mb"], best or 0.0

    return min(comparable, key=order, default=None)


def _remarks(group: CellGroup, lossy: Sequence[Row], groups: Sequence[CellGroup]) -> list[str]:
    """Which of them no training of this folder tells the accuracy of."""
    rows = [row for other in groups if other.kind == "convergence" for row in other.rows]
    same = [row for row in rows if row["model"] == group.rows[0]["model"]]
    trained = {row["aggregator"] for row in same if row["final_test_accuracy"] is not None}
    missing = ", ".join(dict.fromkeys(row["aggregator"] for row in lossy if row["aggregator"] not in trained))
    text = f"What accuracy {missing} costs on this network was not measured in this study."
    return [text] if missing else []


NOISE_STATISTIC = (
    "Exact aggregators sum the same numbers: together they are the reference, and their spread over seeds is "
    "pooled. Difference: of the mean over seeds from theirs (of an exact one: from the others). Noise: a "
    "smaller difference in that direction may be chance (Welch's t with moderated variances, Holm over the "
    "lossy combinations). Same seed: the mean difference from exact trainings of the same seed, which start "
    "from the same weights and see the same batches."
)
LEFT_OUT = ("step", "exchange", "same seed")  # columns that the answer's table does not have


def _columns(score: str) -> list[Column[Compared]]:
    unit, difference = ("", "{:+.3f}".format) if score == BITS else (", points", points)

    def shown(value: float | None) -> str:
        return MISSING if value is None else difference(value)

    return [
        Column("aggregator", lambda other: other.row["aggregator"]),
        Column("workers", lambda other: str(other.row["world_size"])),
        Column("step", lambda other: other.row["step"]),
        Column("exchange", lambda other: other.exchange),
        Column("seeds", lambda other: str(other.row["num_seeds"] or 1)),
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
    statistic = f"{NOISE_STATISTIC} Exact: {_shown(noise.score, noise.mean)}, standard deviation {spread}."
    columns = _columns(noise.score)
    return table_of(title, statistic, columns, noise.combinations, cells=cells, section="training")
