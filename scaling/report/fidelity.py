"""What lossy aggregators save and what that costs: from the folder's own cells, and from fidelity sheets.

Of each lossy aggregator and world size: bytes, encoding, time and accuracy compared with those of an exact
one that is equal in everything else. Whether its replicas agree and how far its mean is from the exact one is
no matter of a study: `scaling verify NAME --save-to DIR` measures it and puts the sheet into the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scaling.analysis.columns import Row, aggregator_name, is_control_arm
from scaling.analysis.formats import MISSING, megabytes, milliseconds, percent
from scaling.analysis.groups import Group
from scaling.analysis.learning import over_seeds
from scaling.analysis.samples import CellResult
from scaling.report.tables import Table

REFERENCE = "all_reduce"
"""The exact aggregator that others are compared with; where it is missing, the fastest exact one."""

_BYTES = ("lossy", "exact", "workers", "MB moved a rank", "exact one's, MB", "of it")
HEADINGS = {
    "iteration": (*_BYTES, "encode + decode, ms", "ms an iteration", "exact one's, ms", "of it"),
    "convergence": (*_BYTES, "test accuracy", "exact one's", "difference, points"),
}

STATISTIC = (
    "Each lossy aggregator compared with an exact one that is equal in everything else: all_reduce, or if it "
    "was not measured the fastest (of trainings the most accurate). Its error against the float64 mean, the "
    "agreement of its replicas and the bandwidth below which it pays: scaling verify NAME --save-to DIR."
)

SHEET_HEADINGS = (
    *("lossy", "error, first step", "error, all steps", "replicas", "bytes", "all_reduce's"),
    *("encode, GB/s", "decode, GB/s", "pays below, GB/s", "measured on"),
)
SHEET_STATISTIC = (
    "By scaling verify, apart from this study and perhaps on another machine: errors are those of the mean "
    "against float64, as parts of its 2-norm; replicas are compared bit for bit; it pays on links below "
    "(bytes that it saves) / (seconds of encoding and decoding), latency and overlap left out."
)


def sheet_tables(sheets: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """The fidelity sheets of a folder as one table; none where it has none.

    Args:
        sheets: aggregator -> what `scaling.conformance.fidelity.Sheet.as_dict` gave.
    """
    if not sheets:
        return []
    some = next(iter(sheets.values()))
    return [
        Table(
            f"Fidelity sheets: {some['num_steps']} steps, {some['world_size']} ranks, {some['trained_on']}",
            SHEET_STATISTIC,
            list(SHEET_HEADINGS),
            [_sheet_row(name, sheet) for name, sheet in sheets.items()],
            section="lossy",
            source="sheets/",
        )
    ]


def _sheet_row(name: str, sheet: Mapping[str, Any]) -> list[str]:
    rates = [sheet[f"{what}_bytes_per_s"] for what in ("encode", "decode", "break_even")]
    agreement = "the same bits" if sheet["replicas_agree"] else f"off by {sheet['replicas_off_by']:.3g}"
    return [
        name,
        *(f"{sheet[key]:.3g}" for key in ("first_error_ratio", "sum_error_ratio")),
        agreement,
        *(f"{sheet[key]:,}" for key in ("metered_bytes", "exact_bytes")),
        *(MISSING if rate is None else f"{rate / 1e9:.3g}" for rate in rates),
        str(sheet["measured_on"]),
    ]


def fidelity_tables(groups: Sequence[Group], cells: Mapping[str, CellResult]) -> list[Table]:
    """One table a group of cells that has a lossy aggregator on several workers.

    Args:
        groups: all of the summary.
        cells: the samples, by cell id.
    """
    tables = []
    for group in groups:
        if group.kind not in HEADINGS:
            continue
        lossy = [row for row in _rows(group) if row["world_size"] > 1 and _is_lossy(row, cells)]
        if not lossy:
            continue
        exact = [row for row in _rows(group) if not _is_lossy(row, cells) and not is_control_arm(row)]
        pairs = [(row, _beside(row, exact)) for row in lossy]
        tables.append(
            Table(
                f"{'Trainings' if group.kind == 'convergence' else 'Iterations'}: {group.title}",
                STATISTIC,
                list(HEADINGS[group.kind]),
                [_values(group, row, other) for row, other in pairs],
                _remarks(group, lossy, groups),
                cells=[[row["cell_id"] for row in pair if row is not None] for pair in pairs],
                section="lossy",
            )
        )
    return tables


def _rows(group: Group) -> list[Row]:
    done = [row for row in group.rows if row["repeats"]]
    return over_seeds(done) if group.kind == "convergence" else done


def _is_lossy(row: Row, cells: Mapping[str, CellResult]) -> bool:
    return bool(cells[row["cell_id"]].cell.get("lossy"))


def _beside(row: Row, exact: Iterable[Row]) -> Row | None:
    """The exact cell to compare with; None where there is none of that world size, buckets and input."""
    same = ("world_size", "input_placement", "loader_workers")
    comparable = [other for other in exact if all(other[name] == row[name] for name in same)]

    def order(other: Row) -> tuple[bool, bool, float]:
        is_reference = aggregator_name(other["aggregator"]) == REFERENCE
        best = (
            -(other["final_test_accuracy"] or 0.0) if row["kind"] == "convergence" else other["iteration_s"]
        )
        return not is_reference, other["bucket_mb"] != row["bucket_mb"], best or 0.0

    return min(comparable, key=order, default=None)


def _values(group: Group, row: Row, other: Row | None) -> list[str]:
    exact = other or dict.fromkeys(row)
    named = [group.name(row), MISSING if other is None else group.name(other), str(row["world_size"])]
    sent = _pair(row["wire_bytes_per_rank"], exact["wire_bytes_per_rank"], megabytes)
    if group.kind == "convergence":
        accuracy, its = row["final_test_accuracy"], exact["final_test_accuracy"]
        known = accuracy is not None and its is not None
        points = f"{100 * (accuracy - its):+.2f}" if known else MISSING
        return [*named, *sent, percent(accuracy, 2), percent(its, 2), points]
    coding = [row[name] for name in ("encode_s", "decode_s") if row[name] is not None]
    times = _pair(row["iteration_s"], exact["iteration_s"], milliseconds)
    return [*named, *sent, milliseconds(sum(coding)) if coding else MISSING, *times]


def _pair(lossy: Any, exact: Any, shown: Callable[[Any], str]) -> list[str]:
    """Both, and the first as a part of the second."""
    return [shown(lossy), shown(exact), percent(lossy / exact) if lossy is not None and exact else MISSING]


def _remarks(group: Group, lossy: Sequence[Row], groups: Sequence[Group]) -> list[str]:
    """Which of them no training of this folder tells the accuracy of."""
    trained = {
        row["aggregator"]
        for other in groups
        if other.kind == "convergence"
        for row in other.rows
        if row["final_test_accuracy"] is not None and row["model"] == group.rows[0]["model"]
    }
    missing = dict.fromkeys(row["aggregator"] for row in lossy if row["aggregator"] not in trained)
    if not missing:
        return []
    return [f"What accuracy {', '.join(missing)} costs on this network was not measured in this study."]
