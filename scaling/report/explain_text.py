"""What `explain` found, in a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from scaling.analysis.columns import Row, is_control_arm
from scaling.analysis.explain import EXPLAINED_KINDS, Finding
from scaling.analysis.formats import milliseconds, percent, workers
from scaling.analysis.groups import Group, group_rows
from scaling.errors import ScalingError
from scaling.report.terminal import WIDTH

MOST_SHOWN = 2
"""Findings a cell in the overview."""

Findings = Mapping[str, Sequence[Finding]]


def overview(rows: Sequence[Row], findings: Findings) -> Iterator[str]:
    """Of every group the cells of its largest world size: what limits each most, and what to try."""
    for group in _groups(rows):
        told = [row for row in group.rows if row["iteration_s"] is not None or findings[row["cell_id"]]]
        if not told:
            continue
        largest = max(row["world_size"] for row in told)
        shown = [row for row in told if row["world_size"] == largest and not is_control_arm(row)]
        yield _wrapped(f"{group.title}, on {workers(largest)}", indent=0)
        for row in sorted(shown or told[-1:], key=lambda row: row["iteration_s"] or 0.0):
            yield _wrapped(f"{group.name(row)}{_time(row)}", indent=2)
            for finding in _foremost(findings[row["cell_id"]]):
                yield _wrapped(finding.line(), indent=4)
        yield ""


def _foremost(findings: Sequence[Finding]) -> Sequence[Finding]:
    """The first, and the second if it is about nearly as much of the step."""
    return [
        finding
        for finding in findings[:MOST_SHOWN]
        if finding is findings[0] or (finding.is_limit and finding.share >= findings[0].share / 2)
    ]


def details(rows: Sequence[Row], findings: Findings, chosen: Sequence[Row]) -> Iterator[str]:
    """All that was found in some cells."""
    groups = _groups(rows)
    for row in chosen:
        group = next(one for one in groups if row in one.rows)
        yield f"{group.name(row)} on {workers(row['world_size'])}{_time(row)}, cell {row['cell_id']}"
        yield _wrapped(group.title, indent=2)
        own = findings[row["cell_id"]]
        for finding in own:
            share = f"{percent(finding.share, 0)} of the step"
            told = finding.share <= 0 or not finding.is_limit or share in finding.sentence
            yield _wrapped(f"- {finding.sentence}{'' if told else f' [{share}]'}", indent=2)
            if finding.next_experiment:
                yield _wrapped(f"next: {finding.next_experiment}", indent=4)
        if not own:
            yield "  no rule holds"
        yield ""


def choose(rows: Sequence[Row], wanted: str) -> list[Row]:
    """The cells that a user means: by id or its beginning, by aggregator, or as `ring@4`.

    Raises:
        ScalingError: there is none.
    """
    named = {
        row["cell_id"]: (group.name(row), row["aggregator"]) for group in _groups(rows) for row in group.rows
    }
    label, _, size = wanted.rpartition("@") if "@" in wanted else (wanted, "", "")
    chosen = [row for row in rows if row["cell_id"] in named and row["cell_id"].startswith(wanted)]
    if not chosen:
        chosen = [
            row
            for row in rows
            if label in named.get(row["cell_id"], ()) and size in ("", str(row["world_size"]))
        ]
    if not chosen:
        known = dict.fromkeys(
            f"{row['aggregator']}@{row['world_size']}" for row in rows if row["cell_id"] in named
        )
        raise ScalingError(
            f"no cell {wanted!r}; name one by its id in summary.csv, or as one of {', '.join(known)}"
        )
    return chosen


def _groups(rows: Sequence[Row]) -> list[Group]:
    return [group for group in group_rows(rows) if group.kind in EXPLAINED_KINDS]


def _time(row: Row) -> str:
    if row["iteration_s"] is None:
        return "" if row["repeats"] else f" ({row['state']})"
    return f": {milliseconds(row['iteration_s'])} ms an iteration"


def _wrapped(text: str, indent: int) -> str:
    margin = " " * indent
    return textwrap.fill(text, WIDTH, initial_indent=margin, subsequent_indent=f"{margin}  ")
