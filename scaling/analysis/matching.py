"""Which cells of two folders are the same measurement: by id first, then by their variables.

A cell's identity is a hash of all that decides its result; it changes with the versions of this program that
know more variables, and some variables are the machine's (threads of a GPU's worker). Hence three rounds, the
strictest first; in each, cells are paired only where exactly one on either side fits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from scaling.analysis.columns import Row, by_key, has_no_model, is_aa_replicate, shares_gpus
from scaling.axes import Role, Shared, column_types, columns, columns_without

COMPARED_KINDS = ("iteration", "convergence")


@dataclass(frozen=True)
class Match:
    """Two rows of the same measurement, with the variables in which they still differ."""

    a: Row
    b: Row
    differing: dict[str, tuple[Any, Any]]


def match_cells(a: Sequence[Row], b: Sequence[Row]) -> tuple[list[Match], list[Row], list[Row]]:
    """The pairs of two summaries' cells, in a's order, and the rows of a and of b without a partner."""
    left, right = ([row for row in rows if _is_compared(row)] for rows in (a, b))
    partner: dict[str, Row] = {}
    partners: set[str] = set()
    for key in (_identity, _variables, _loose_variables):
        of_a = _unique([row for row in left if row["cell_id"] not in partner], key)
        of_b = _unique([row for row in right if row["cell_id"] not in partners], key)
        for name, row in of_a.items():
            if name in of_b:
                partner[row["cell_id"]] = of_b[name]
                partners.add(of_b[name]["cell_id"])
    matches = [
        Match(row, other, _differing(row, other)) for row in left if (other := partner.get(row["cell_id"]))
    ]
    alone = [row for row in left if row["cell_id"] not in partner]
    return matches, alone, [row for row in right if row["cell_id"] not in partners]


def nearest_differences(a: Sequence[Row], b: Sequence[Row]) -> list[str]:
    """The variables in which the two most similar cells differ, for folders without a common cell."""
    pairs = [_differing(row, other) for row in a for other in b if _is_compared(row) and _is_compared(other)]
    counted = [(len(pair), index) for index, pair in enumerate(pairs)]
    return list(pairs[min(counted)[1]]) if pairs else []


def _is_compared(row: Row) -> bool:
    return has_time(row) and not is_aa_replicate(row)


def has_time(row: Row) -> bool:
    """Whether the row is a timing or a training; with workers that share GPUs it has no time."""
    return row["kind"] in COMPARED_KINDS and not has_no_model(row) and not shares_gpus(row)


_identity = itemgetter("cell_id")


def _variables(row: Row) -> Hashable:
    return tuple(row[name] for name in columns_without(Role.RECORDED))


def _loose_variables(row: Row) -> Hashable:
    names = columns(Shared.FOLDERS) if row["kind"] == "iteration" else columns_without(Role.RECORDED)
    if row["device"] != "cpu":
        names.remove("threads")  # the machine's share of cores, unless the study says otherwise
    return tuple(row[name] for name in names)


def _unique(rows: Sequence[Row], key: Callable[[Row], Hashable]) -> dict[Hashable, Row]:
    by_name = by_key(rows, key)
    return {name: rows[0] for name, rows in by_name.items() if len(rows) == 1}


def _differing(a: Row, b: Row) -> dict[str, tuple[Any, Any]]:
    names = [name for name in column_types() if name != "study"]
    return {name: (a[name], b[name]) for name in names if a[name] != b[name]}
