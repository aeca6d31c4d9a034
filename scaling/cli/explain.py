"""`scaling explain`: what limits a cell, and the next experiment."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from typer import Argument

from scaling.cli.options import AsJson, Folder


def explain(
    directory: Folder,
    cell: Annotated[
        str | None,
        Argument(metavar="[CELL]", help="One cell in full: its id, or aggregator@workers (ring@4)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what limits the cells of a study, each with an experiment to try.

    Rules and thresholds: docs/how-to/read-a-report.md. --json adds the numbers behind each sentence and the
    columns of summary.csv that it uses.
    """
    from scaling.analysis.columns import to_rows
    from scaling.analysis.explain import explained
    from scaling.analysis.explain_view import Known
    from scaling.analysis.summary import notes_of, read_study
    from scaling.errors import ScalingError
    from scaling.report.content import study_answer
    from scaling.report.explain_text import as_dict, choose, details, overview
    from scaling.report.screen import folded_answer
    from scaling.store import Snapshot

    folder = Snapshot(directory)
    study = read_study(folder)
    rows = to_rows(study.table)
    known = Known.of(rows, study.cells, study.num_cores)
    findings = explained(known)
    if not findings:
        raise ScalingError(
            f"{directory} has no timing and no training to explain; `scaling report {directory}` shows it"
        )
    chosen = rows if cell is None else choose(rows, cell)
    if as_json:
        entries = [
            {
                "cell_id": row["cell_id"],
                "aggregator": row["aggregator"],
                "world_size": row["world_size"],
                "findings": [as_dict(finding) for finding in findings[row["cell_id"]]],
            }
            for row in chosen
            if row["cell_id"] in findings
        ]
        typer.echo(json.dumps(entries, indent=1, default=asdict))
        return
    _, of_script = notes_of(folder.study())
    if cell is None and not of_script and (answer := study_answer(folder, study, known)):
        typer.echo("\n".join([*folded_answer(answer), "", "What limits each setting:"]))
    lines = overview(rows, findings, of_script) if cell is None else details(rows, findings, chosen)
    typer.echo("\n".join(lines).rstrip())
    if cell is None:
        typer.echo(f"all of a cell: `scaling explain {directory} AGGREGATOR@WORKERS`", err=True)
