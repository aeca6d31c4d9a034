"""The data of a comparison of two sides: cells, the shift that they share, the detectable difference.

And conditions on it under which a build fails, gates: `slower > 5%`.

Cells of two folders are the same measurement by id first, then by their variables: an id is a hash of all
that decides the result. It changes with the versions of this program that know more variables, and some are
the machine's (threads of a GPU's worker). Hence three rounds, the strictest first; in each, cells are paired
only where exactly one on either side fits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal

from scaling.analysis.columns import Row, by_key, has_no_model, is_aa_replicate, shares_gpus
from scaling.analysis.decisions import (
    FEWEST,
    ONE_LAUNCH_SCATTER,
    TIE_RATIO,
    Difference,
    goes_along,
    launches_needed,
)
from scaling.analysis.environments import DifferingKey as EnvironmentDifference
from scaling.analysis.findings import Finding
from scaling.axes import Role, Shared, column_types, columns, columns_without
from scaling.errors import ScalingError

Verdict = Literal["faster", "slower", "same", "not resolved"]
"""Of b: `same` is shown to be within TIE_RATIO; `not resolved` is neither the same nor different."""

Reason = Literal["one launch", "shift of the others", "scatter"]
"""Why a pair is not resolved: one launch on a side; only what the others have in common differs from it; or
launches scatter too much."""

METHOD = "moderated t of the launches' times (logarithms), relative to all cells' shift, Holm's correction"


LARGEST_RATIO = 1000.0  # of two times: more tells nothing


COMPARED_KINDS = ("iteration", "convergence")


@dataclass(frozen=True)
class Match:
    """Two rows of the same measurement, with the variables in which they still differ."""

    a: Row
    b: Row
    differing: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class CellComparison:
    given: Mapping[str, Any]  # what it has in common with others
    name: str  # what distinguishes it from them: aggregator and the like
    match: Match  # both rows of the summaries
    quantity: str  # the column that is compared: iteration_s, or train_s of a training
    difference: Difference  # of b from a
    # the same relative to what all cells of the world size have in common; `difference` itself where there
    # are too few for that
    tested: Difference
    p_adjusted: float | None  # of `tested`, corrected for all pairs; None with one launch on a side
    verdict: Verdict  # of b against a
    num_launches: tuple[int, int]  # of a and b

    @property
    def kind(self) -> str:
        """ "iteration" or "convergence": a table never mixes times of different kinds."""
        return str(self.match.a["kind"])

    @property
    def log_shift(self) -> float:
        """The logarithm of the change that the other cells share; 0 if the verdict is not relative to it."""
        return self.difference.log_ratio - self.tested.log_ratio

    @property
    def reason(self) -> Reason | None:
        if self.verdict != "not resolved":
            return None
        if self.within_one_launch:
            return "one launch"
        is_of_others = self.tested.is_significant and not goes_along(self.difference, self.tested)
        return "shift of the others" if is_of_others else "scatter"

    @property
    def within_one_launch(self) -> bool:
        return self.tested.error is None

    def launches_needed(self, level: float) -> int | None:
        """The launches per side needed to find this difference at that level; None if impractically many."""
        deviation = ONE_LAUNCH_SCATTER * 2**0.5
        if self.tested.error is not None:
            deviation = self.tested.error * min(self.num_launches) ** 0.5
        needed = launches_needed(self.tested.log_ratio, deviation, level)
        return None if needed is None else max(FEWEST, needed)

    def as_dict(self) -> dict[str, Any]:
        a, b = self.match.a, self.match.b
        return {
            "kind": self.kind,
            "name": self.name,
            "world_size": a["world_size"],
            "cell_id_a": a["cell_id"],
            "cell_id_b": b["cell_id"],
            "quantity": self.quantity,
            "a": a[self.quantity],
            "b": b[self.quantity],
            **self.difference.as_dict(),
            "relative_ratio": self.tested.ratio,
            "launches_a": self.num_launches[0],
            "launches_b": self.num_launches[1],
            "p_value": self.tested.p_value,
            **{name: getattr(self, name) for name in ("p_adjusted", "verdict", "reason")},
            "within_one_launch": self.within_one_launch,
            "final_test_accuracy_a": a["final_test_accuracy"],
            "final_test_accuracy_b": b["final_test_accuracy"],
            "differing": {name: list(values) for name, values in self.match.differing.items()},
        }


@dataclass(frozen=True)
class Shift:
    kind: str  # kind, world_size: of the cells
    world_size: int
    num_cells: int  # how many they are
    difference: Difference  # of b from a
    is_relative: bool  # whether cells are called relative to it
    # whether it is known how far two measurements of the same differ in it: launches took turns, or there are
    # several campaigns a side. Else CAMPAIGN_RATIO stands for that
    is_measured: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("kind", "world_size", "num_cells")},
            **self.difference.as_dict(),
            "is_significant": self.difference.is_significant,
            "cells_are_relative_to_it": self.is_relative,
            "campaigns_are_measured": self.is_measured,
        }


@dataclass(frozen=True)
class Comparison:
    environment: list[EnvironmentDifference]  # fields that differ
    cells: list[CellComparison]  # the pairs, in the first folder's order
    shifts: list[Shift]  # of all cells, one a kind and world size
    only_in_a: list[Row]  # only_in_a, only_in_b: rows without a partner, or whose partner has no samples
    only_in_b: list[Row]
    level: float  # the family-wise one
    # cells of kinds that are not compared, and trainings whose workers shared GPUs, in both
    num_left_out: int
    is_paired: bool = False  # whether launches of both sides took turns in one campaign
    # what stays of a cell's ratio however many launches there are, by the A/A pairs: one standard deviation;
    # 0 where that is not known
    offset_ratio: float = 0.0
    # A/A pairs that differ more than their launches scatter
    warnings: list[Finding] = field(default_factory=list)

    @cached_property
    def num_tests(self) -> int:
        return sum(not cell.within_one_launch for cell in self.cells)

    @property
    def level_of_each(self) -> float:
        return self.level / max(1, self.num_tests)

    def detectable(self, cell: CellComparison) -> float | None:
        """The smallest ratio, relative to the shared shift, that would have been called different in this
        pair; None with one launch, and where launches scatter so much that it is beyond LARGEST_RATIO."""
        half = cell.tested.half_width(self.level_of_each)
        smallest = None if half is None else max(half, 2 * abs(cell.log_shift))
        return None if smallest is None or smallest > math.log(LARGEST_RATIO) else math.exp(smallest)

    def as_dict(self) -> dict[str, Any]:
        shown = ("kind", "model", "aggregator", "step", "world_size", "state", "reason", "cell_id")
        return {
            "method": METHOD,
            "family_wise_level": self.level,
            "tie_ratio": TIE_RATIO,
            "num_tests": self.num_tests,
            "environment": [asdict(difference) for difference in self.environment],
            "shifts": [shift.as_dict() for shift in self.shifts],
            "cells": [
                {
                    **cell.as_dict(),
                    "detectable_ratio": self.detectable(cell),
                    "launches_needed": cell.launches_needed(self.level_of_each),
                }
                for cell in self.cells
            ],
            "only_in_a": [{name: row[name] for name in shown} for row in self.only_in_a],
            "only_in_b": [{name: row[name] for name in shown} for row in self.only_in_b],
            "num_left_out": self.num_left_out,
            "launches_took_turns": self.is_paired,
            "offset_ratio": self.offset_ratio,
        }


_GATE = re.compile(r"\s*(slower|faster)\s*(?:>\s*(\d+(?:\.\d+)?)\s*%)?\s*")


LEVEL_SHARE = 1 / 5
"""The part of the comparison's level at which a cell, or the shift of all, fails: a build that fails without
a reason costs more than a line that says slower. On identical folders a gate at 5% fails in less than 1%."""


@dataclass(frozen=True)
class Gate:
    """A condition that fails a build: confirmed verdicts, or a shift of all cells, beyond the ratio."""

    verdict: str  # slower or faster
    more_than: float  # 0.05 for 5%

    def failing(self, comparison: Comparison) -> list[CellComparison]:
        """The cells that fail; cells with one launch never do."""
        sign = 1 if self.verdict == "slower" else -1
        return [
            cell
            for cell in comparison.cells
            if cell.verdict == self.verdict
            and (cell.p_adjusted or 0.0) < LEVEL_SHARE * comparison.level
            and cell.difference.ratio**sign > 1 + self.more_than
        ]

    def failing_shifts(self, comparison: Comparison) -> list[Shift]:
        """The shifts that fail; of two campaigns, the usual difference on one machine is allowed for."""
        level = LEVEL_SHARE * comparison.level / max(1, len(comparison.shifts))
        sign = 1 if self.verdict == "slower" else -1
        return [
            shift
            for shift in comparison.shifts
            if (half := shift.difference.half_width(level)) is not None
            and sign * shift.difference.log_ratio > max(half, math.log1p(self.more_than))
        ]

    def blind(self, comparison: Comparison) -> list[CellComparison]:
        """The cells that pass although a difference of that size could not have been detected in them."""
        failing = self.failing(comparison)
        return [cell for cell in comparison.cells if cell not in failing and self._is_blind(comparison, cell)]

    def _is_blind(self, comparison: Comparison, cell: CellComparison) -> bool:
        half = cell.tested.half_width(LEVEL_SHARE * comparison.level_of_each)
        if half is None:
            return True
        shift = cell.log_shift if self.verdict == "slower" else -cell.log_shift
        return max(half + shift, -shift) > math.log1p(self.more_than)  # of the ratio itself: see `goes_along`


def parse_gate(text: str) -> Gate:
    """`slower > 5%` -> a gate; ScalingError where it is none."""
    match = _GATE.fullmatch(text)
    if match is None:
        raise ScalingError(
            f"--fail-if is {text!r}; allowed: 'slower > P%' and 'faster > P%' with a number P, or without it"
        )
    return Gate(match[1], float(match[2] or 0) / 100)


def changed_times(shift: Shift) -> Finding:
    values = {"kind": shift.kind, "num_cells": shift.num_cells, "world_size": shift.world_size}
    return Finding("changed_times", (), {**values, "ratio": shift.difference.ratio})


def changed_time(cell: CellComparison) -> Finding:
    a, b = cell.match.a, cell.match.b
    values = {"kind": cell.kind, "name": cell.name, "world_size": a["world_size"], "given": cell.given}
    values |= {"ratio": cell.difference.ratio}
    return Finding("changed_time", (a["cell_id"], b["cell_id"]), values)


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
    return {name: rows[0] for name, rows in by_key(rows, key).items() if len(rows) == 1}


def _differing(a: Row, b: Row) -> dict[str, tuple[Any, Any]]:
    names = [name for name in column_types() if name != "study"]
    return {name: (a[name], b[name]) for name in names if a[name] != b[name]}
