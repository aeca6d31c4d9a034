"""`scaling status`: the state of every cell."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import typer

from scaling.cli.options import AsJson, Folder


def status(directory: Folder, as_json: AsJson = False) -> None:
    """Show the state of every cell (planned, running, done or failed) and what is left to run."""
    from scaling.analysis.progress import progress
    from scaling.report.progress import progress_lines
    from scaling.report.status import describe_status, status_table
    from scaling.store import ResultsFolder, Snapshot

    folder = Snapshot.of(ResultsFolder(directory).require())
    rows = status_table(folder)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    typer.echo(describe_status(rows))
    for line in progress_lines(progress(folder, datetime.now(timezone.utc)))[1:]:
        typer.echo(line)
