"""Why a cell takes as long as it does: the rules that apply to it.

The largest avoidable part of the step comes first; "computation" is said only where nothing avoidable
takes over 10%. Then comes what makes the numbers doubtful. The rules are a table
(`scaling.analysis.explain_rules`); what is said of each, and the next experiment, are templates.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from scaling.analysis.columns import Row, is_aa_replicate, to_rows
from scaling.analysis.explain_rules import DOUBTS, LIMITS, Rule
from scaling.analysis.explain_view import Known, View
from scaling.analysis.findings import Finding
from scaling.analysis.samples import CellResult

EQUAL_SHARES = 0.05
"""Shares that differ by less are as large: their findings keep the table's order."""

EXPLAINED_KINDS = ("iteration", "convergence")

_IS_LIMIT = {rule.name for rule in LIMITS}


def explain(
    table: pd.DataFrame, cells: Sequence[CellResult], num_cores: int | None = None
) -> dict[str, list[Finding]]:
    """What the rules find in every cell of a study.

    Args:
        table: what `build_table` made.
        cells: the samples it was made of.
        num_cores: CPU cores of a node; None where they are unknown.

    Returns:
        Cell id -> its findings, the most important first: the kind is the rule's name, and the value `share`
        the part of the step that it is about. A/A replicates and cells without a model have no entry; one
        without anything to say has an empty list.
    """
    return explained(Known.of(to_rows(table), cells, num_cores))


def explained(known: Known) -> dict[str, list[Finding]]:
    """What the rules find in every cell of a study that is known; see `explain`."""
    return {
        row["cell_id"]: explain_cell(row, known)
        for row in known.rows
        if row["kind"] in EXPLAINED_KINDS and not is_aa_replicate(row)
    }


def explain_cell(row: Row, known: Known) -> list[Finding]:
    """The findings for one cell, given what is known of its study."""
    cell_id = row["cell_id"]
    if cell_id not in known.findings:
        known.findings[cell_id] = _findings(View(row, known))
    return known.findings[cell_id]


def _findings(view: View) -> list[Finding]:
    limits = sorted(_found(view, LIMITS), key=lambda finding: -round(finding.values["share"] / EQUAL_SHARES))
    return [*limits, *_found(view, DOUBTS)]


def is_limit(finding: Finding) -> bool:
    """Whether the finding names what takes the time; otherwise it names a doubt about the numbers."""
    return finding.kind in _IS_LIMIT


def limit_of(findings: Sequence[Finding]) -> Finding | None:
    """The finding that takes most of the time; None if no such rule applies."""
    return next((finding for finding in findings if is_limit(finding) and finding.values["share"] > 0), None)


def _found(view: View, rules: Sequence[Rule]) -> list[Finding]:
    findings = []
    for rule in rules:
        values = rule.holds(view)
        if values is not None:
            view.fired[rule.name] = values
            values = {**values, "measured": view.measured}
            findings.append(Finding(rule.name, (view.row["cell_id"],), values))
    return findings
