"""Two studies, cell by cell: what became faster or slower, and how sure that is.

1. Cells are paired (`scaling.analysis.matching`); of each pair the ratio b / a of the times is taken, with
   its 95% interval (`scaling.measure.ratios`): iterations of timed cells, seconds of training of others.
2. With two launches or more on both sides, all pairs are tested together: Holm's correction of Welch's t test
   at a family-wise level. A pair is called faster or slower if its corrected p value is below the level, its
   interval leaves 1 out and the ratio is further from 1 than the noise floor of either study.
3. With one launch on a side nobody knows how much launches scatter. Such a pair is called faster or slower
   "within this launch only", if its interval leaves 1 out and the ratio is further from 1 than the noise
   floor that an A/A pair measured, and than ONE_LAUNCH_MARGIN; no level is kept there. Without an A/A pair,
   or between the floor and the margin, it stays undecided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from scaling.analysis.columns import Row, to_rows
from scaling.analysis.environments import Difference, environment_differences
from scaling.analysis.findings import Finding
from scaling.analysis.groups import group_rows
from scaling.analysis.matching import COMPARED_KINDS, Match, has_time, match_cells, nearest_differences
from scaling.analysis.samples import CellResult, read_cells
from scaling.analysis.summary import build_table, study_name
from scaling.errors import ScalingError
from scaling.measure.ratios import Ratio, adjusted, estimate_ratio
from scaling.store import ResultsFolder

FAMILY_LEVEL = 0.02
"""The probability that any of the cells is called different where none is."""

ONE_LAUNCH_MARGIN = 0.05
"""What launches of the same cell may well differ by, on processors that others use too. It is no measurement:
an A/A pair tells the noise within a launch, and with one launch nothing tells that between launches."""

Verdict = Literal["faster", "slower", "indistinguishable", "undecided"]

Reason = Literal["below_noise_floor", "no_interval", "one_launch_no_pair", "one_launch_margin"]

Samples = list[list[float]]


@dataclass(frozen=True)
class CellComparison:
    """A pair of cells.

    Attributes:
        group: what it has in common with others, for people.
        name: what sets it apart from them: aggregator and the like.
        match: both rows of the summaries.
        quantity: the column that is compared: iteration_s, or train_s of a training.
        ratio: b / a.
        p_adjusted: corrected for all pairs; None with one launch on a side.
        noise_floor: the larger one of both studies, as a ratio; None where none was measured.
        verdict: of b against a.
        reason: why it is undecided, or indistinguishable although the test finds a difference: a short name;
            else None.
    """

    group: str
    name: str
    match: Match
    quantity: str
    ratio: Ratio
    p_adjusted: float | None
    noise_floor: float | None
    verdict: Verdict
    reason: Reason | None

    @property
    def kind(self) -> str:
        """iteration or convergence: times of different kinds are never in one table."""
        return str(self.match.a["kind"])

    @property
    def within_one_launch(self) -> bool:
        """Whether nothing is known of the scatter between launches."""
        return self.ratio.p_value is None

    @property
    def reason_finding(self) -> Finding | None:
        """The reason, to be said in words."""
        if self.reason is None:
            return None
        cells = (self.match.a["cell_id"], self.match.b["cell_id"])
        return Finding(self.reason, cells, {"margin_ratio": ONE_LAUNCH_MARGIN})

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        a, b, ratio = self.match.a, self.match.b, self.ratio
        return {
            "kind": self.kind,
            "group": self.group,
            "name": self.name,
            "world_size": a["world_size"],
            "cell_id_a": a["cell_id"],
            "cell_id_b": b["cell_id"],
            "quantity": self.quantity,
            "a": a[self.quantity],
            "b": b[self.quantity],
            "ratio": ratio.ratio,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "interval_method": ratio.method,
            "launches_a": a["repeats"],
            "launches_b": b["repeats"],
            "p_value": ratio.p_value,
            "p_adjusted": self.p_adjusted,
            "noise_floor": self.noise_floor,
            "verdict": self.verdict,
            "within_one_launch": self.within_one_launch,
            "reason": self.reason,
            "final_test_accuracy_a": a["final_test_accuracy"],
            "final_test_accuracy_b": b["final_test_accuracy"],
            "differing": {name: list(values) for name, values in self.match.differing.items()},
        }


@dataclass(frozen=True)
class Comparison:
    """Two folders.

    Attributes:
        environment: fields that differ.
        cells: the pairs, in the first folder's order.
        only_in_a, only_in_b: rows without a partner, or whose partner has no samples.
        level: the family-wise one.
        num_left_out: cells of kinds that are not compared, and trainings whose workers shared GPUs, in both.
    """

    environment: list[Difference]
    cells: list[CellComparison]
    only_in_a: list[Row]
    only_in_b: list[Row]
    level: float
    num_left_out: int

    @property
    def num_tests(self) -> int:
        """Pairs that were tested together."""
        return sum(not cell.within_one_launch for cell in self.cells)

    def detectable(self, cell: CellComparison) -> float | None:
        """The smallest ratio that would have been found in this pair, whatever the others were; None with
        one launch."""
        return cell.ratio.detectable(self.level / max(1, self.num_tests))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        kept = ("kind", "model", "aggregator", "step", "world_size", "state", "reason", "cell_id")
        return {
            "method": "Welch's t test of the launches' medians (logarithms), Holm's correction",
            "family_wise_level": self.level,
            "num_tests": self.num_tests,
            "environment": [one.as_dict() for one in self.environment],
            "cells": [{**cell.as_dict(), "detectable_ratio": self.detectable(cell)} for cell in self.cells],
            "only_in_a": [{name: row[name] for name in kept} for row in self.only_in_a],
            "only_in_b": [{name: row[name] for name in kept} for row in self.only_in_b],
            "num_left_out": self.num_left_out,
        }


def compare(a: ResultsFolder, b: ResultsFolder, level: float = FAMILY_LEVEL) -> Comparison:
    """Compares two folders; ratios are b / a.

    Raises:
        StoreError: a folder is none, or samples are missing or damaged.
        ScalingError: they have no measured cell in common.
    """
    sides = [(study_name(folder.require()), read_cells(folder)) for folder in (a, b)]
    tables = [build_table(name, cells) for name, cells in sides]
    found = compare_tables(tables[0], sides[0][1], tables[1], sides[1][1], level)
    return replace(found, environment=environment_differences(a, b))


def compare_tables(
    table_a: pd.DataFrame,
    cells_a: Sequence[CellResult],
    table_b: pd.DataFrame,
    cells_b: Sequence[CellResult],
    level: float = FAMILY_LEVEL,
) -> Comparison:
    """The same of summaries and samples that were read already; it knows of no environment."""
    if not 0 < level < 1:
        raise ScalingError(f"the level is {level:g}; it is a probability between 0 and 1, such as 0.02")
    rows_a, rows_b = to_rows(table_a), to_rows(table_b)
    samples = _samples(cells_a), _samples(cells_b)
    matches, alone_a, alone_b = match_cells(rows_a, rows_b)
    measured = [
        one
        for one in matches
        if one.a["cell_id"] in samples[0] and one.b["cell_id"] in samples[1] and _as_long(one)
    ]
    if not measured:
        raise ScalingError(_nothing_in_common(rows_a, rows_b, matched=bool(matches)))
    left = [one for one in matches if one not in measured]
    pairs = [
        _compared(one, samples[0][one.a["cell_id"]], samples[1][one.b["cell_id"]], _names(rows_a))
        for one in measured
    ]
    return Comparison(
        environment=[],
        cells=_judged(pairs, level),
        only_in_a=[*alone_a, *(one.a for one in left if one.a["cell_id"] in samples[0])],
        only_in_b=[*alone_b, *(one.b for one in left if one.b["cell_id"] in samples[1])],
        level=level,
        num_left_out=sum(not has_time(row) for row in (*rows_a, *rows_b)),
    )


def _samples(cells: Sequence[CellResult]) -> dict[str, Samples]:
    """Cell id -> the samples of each launch; trainings give one value each."""
    timed = {cell.cell_id: [one.step_s.tolist() for one in cell.launches] for cell in cells if cell.launches}
    trained = {
        cell.cell_id: [[float(one.train_s[-1])] for one in cell.trainings] for cell in cells if cell.trainings
    }
    return {**timed, **trained}


def _as_long(match: Match) -> bool:
    """Whether two trainings have equally many epochs, or are none."""
    return bool(match.a["epochs"] == match.b["epochs"])


def _names(rows: Sequence[Row]) -> Mapping[str, tuple[str, str]]:
    """Cell id -> its group's title, its name in it, with the seed where trainings differ in it."""
    return {
        row["cell_id"]: (group.title, f"{group.name(row)}, seed {row['seed']}" if seeds else group.name(row))
        for group in group_rows(rows)
        for seeds in [group.kind == "convergence" and group.differs("seed")]
        for row in group.rows
    }


def _compared(match: Match, a: Samples, b: Samples, names: Mapping[str, tuple[str, str]]) -> CellComparison:
    """A pair before all are judged together."""
    floors = [row["noise_floor"] for row in (match.a, match.b) if row["noise_floor"] is not None]
    group, name = names[match.a["cell_id"]]
    quantity = "train_s" if match.a["kind"] == "convergence" else "iteration_s"
    ratio = estimate_ratio(a, b)
    return CellComparison(
        group, name, match, quantity, ratio, None, max(floors, default=None), "undecided", None
    )


def _judged(pairs: Sequence[CellComparison], level: float) -> list[CellComparison]:
    corrected = iter(adjusted([one.ratio.p_value for one in pairs if one.ratio.p_value is not None]))
    return [
        _judge_within_launch(one) if one.ratio.p_value is None else _judge(one, next(corrected), level)
        for one in pairs
    ]


def _judge(pair: CellComparison, p_adjusted: float, level: float) -> CellComparison:
    if p_adjusted >= level or _holds_1(pair.ratio):
        return replace(pair, p_adjusted=p_adjusted, verdict="indistinguishable")
    if _within_floor(pair):
        return replace(pair, p_adjusted=p_adjusted, verdict="indistinguishable", reason="below_noise_floor")
    return replace(pair, p_adjusted=p_adjusted, verdict=_direction(pair.ratio))


def _judge_within_launch(pair: CellComparison) -> CellComparison:
    if pair.ratio.low is None:
        return replace(pair, verdict="undecided", reason="no_interval")
    if _holds_1(pair.ratio):
        return replace(pair, verdict="indistinguishable")
    if pair.noise_floor is None:
        return replace(pair, verdict="undecided", reason="one_launch_no_pair")
    if _within_floor(pair):
        return replace(pair, verdict="indistinguishable", reason="below_noise_floor")
    if abs(math.log(pair.ratio.ratio)) <= math.log1p(ONE_LAUNCH_MARGIN):
        return replace(pair, verdict="undecided", reason="one_launch_margin")
    return replace(pair, verdict=_direction(pair.ratio))


def _holds_1(ratio: Ratio) -> bool:
    return ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high


def _within_floor(pair: CellComparison) -> bool:
    return pair.noise_floor is not None and abs(math.log(pair.ratio.ratio)) <= math.log1p(pair.noise_floor)


def _direction(ratio: Ratio) -> Verdict:
    return "slower" if ratio.ratio > 1 else "faster"


def _nothing_in_common(a: Sequence[Row], b: Sequence[Row], *, matched: bool) -> str:
    if matched:
        return (
            "the studies share cells, but none that is done in both; finish them with the same `run`, "
            "`scaling status DIR` shows what is left"
        )
    for name, rows in (("first", a), ("second", b)):
        if not any(has_time(row) for row in rows):
            return (
                f"the {name} folder has no cell that `compare` reads; allowed: "
                f"{' and '.join(COMPARED_KINDS)} with a GPU a worker; `scaling report DIR` shows what it has"
            )
    different = nearest_differences(a, b)
    nearest = f"; the most alike ones differ in {', '.join(different)}" if different else ""
    return (
        f"the studies have no cell in common that `compare` reads ({' or '.join(COMPARED_KINDS)}){nearest}; "
        "name two folders of one study"
    )
