"""Why a cell takes as long as it does, in sentences, each with the next experiment.

The rules and their thresholds are a table (`scaling.analysis.explain_rules`). What takes the time comes
first, the largest part of the step before smaller ones; then what makes the numbers doubtful.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scaling.analysis.accuracy import lossy_ids
from scaling.analysis.columns import Row, is_twin, to_rows
from scaling.analysis.explain_look import Look
from scaling.analysis.explain_rules import DOUBTS, LIMITS, Rule
from scaling.analysis.samples import CellResult

ALIKE = 0.05
"""Shares that differ by less are as large: their findings keep the table's order."""

EXPLAINED_KINDS = ("iteration", "convergence")


@dataclass(frozen=True)
class Finding:
    """One rule that holds for a cell.

    Attributes:
        rule: its name in `RULES`.
        sentence: for people, without a full stop.
        next_experiment: what would tell more or mend it; None where there is nothing to try.
        share: part of the step that it is about, 0 to 1.
        values: the numbers behind it, SI units.
        columns: of summary.csv that it rests on.
        is_limit: whether it tells what takes the time; else what makes the numbers doubtful.
    """

    rule: str
    sentence: str
    next_experiment: str | None
    share: float
    values: dict[str, float]
    columns: tuple[str, ...]
    is_limit: bool

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rule": self.rule,
            "is_limit": self.is_limit,
            "sentence": self.sentence,
            "next_experiment": self.next_experiment,
            "share": self.share,
            "values": self.values,
            "columns": list(self.columns),
        }

    def line(self) -> str:
        """The sentence with what to do next: `...; try step=captured`."""
        return f"{self.sentence}; {self.next_experiment}" if self.next_experiment else self.sentence


def explain(
    table: pd.DataFrame, cells: Sequence[CellResult], num_cores: int | None = None
) -> dict[str, list[Finding]]:
    """What the rules find in every cell of a study.

    Args:
        table: what `build_table` made.
        cells: the samples it was made of.
        num_cores: CPU cores of a node; None where they are unknown.

    Returns:
        Cell id -> its findings, the most important first. Twins of A/A pairs and cells without a model have
        no entry; one without anything to say has an empty list.
    """
    rows, by_id = to_rows(table), {cell.cell_id: cell for cell in cells}
    lossy = lossy_ids(cells)
    return {
        row["cell_id"]: explain_cell(row, by_id.get(row["cell_id"]), rows, num_cores, lossy)
        for row in rows
        if row["kind"] in EXPLAINED_KINDS and not is_twin(row)
    }


def explain_cell(
    row: Row,
    cell: CellResult | None,
    rows: Sequence[Row],
    num_cores: int | None = None,
    lossy: Collection[str] = (),
) -> list[Finding]:
    """The same for one cell, among the rows of its study, of which those with the ids `lossy` are lossy."""
    look = Look(row, cell, rows, num_cores, lossy)
    limits = sorted(_found(look, LIMITS), key=lambda finding: -round(_weight(finding) / ALIKE))
    return [*limits, *_found(look, DOUBTS)]


def _weight(finding: Finding) -> float:
    """Computation is what the time is there for: it counts half against what could be saved."""
    return finding.share / 2 if finding.rule == "computation" else finding.share


def limit_of(findings: Sequence[Finding]) -> Finding | None:
    """What takes most of the time; None where no rule of that sort holds."""
    return next((finding for finding in findings if finding.is_limit and finding.share > 0), None)


def _found(look: Look, rules: Sequence[Rule]) -> list[Finding]:
    findings = []
    for rule in rules:
        told = rule.look(look)
        if told is not None:
            look.fired.add(rule.name)
            findings.append(
                Finding(
                    rule.name,
                    told.sentence,
                    told.next_experiment,
                    told.share,
                    told.values,
                    rule.columns,
                    rule.is_limit,
                )
            )
    return findings
