"""`scaling status`: the state of every cell, once or while the study runs; it only reads the folder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from scaling.cli.options import AsJson, Folder

if TYPE_CHECKING:
    from scaling.analysis.progress import Progress


def status(
    directory: Folder,
    follow: Annotated[
        bool, Option("--watch", help="Follow a running study until it is over; with --json a line a change.")
    ] = False,
    every: Annotated[
        float, Option(min=0.1, max=86_400, metavar="SECONDS", help="With --watch: between two reads.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show the state of every cell (planned, running, done or failed), and what is left to run.

    Only reads the folder, so it works from any machine that sees it. With --watch: exit code 1 if a run
    failed.
    """
    from scaling.analysis.progress import progress
    from scaling.report.status import describe_status, progress_lines, status_table
    from scaling.store import ResultsFolder, Snapshot

    if follow:
        _follow(directory, every, as_json=as_json)
        return
    folder = Snapshot.of(ResultsFolder(directory).require())
    rows = status_table(folder)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    typer.echo(describe_status(rows))
    for line in progress_lines(progress(folder, datetime.now(timezone.utc)))[1:]:
        typer.echo(line)


def _follow(directory: Path, every_s: float, *, as_json: bool) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from scaling.report.status import progress_as_dict, progress_lines

    looks = _looks(directory, every_s)
    console = Console(soft_wrap=True)
    last = None
    try:
        if console.is_terminal and not as_json:
            with Live(console=console, auto_refresh=False) as live:
                for last in looks:
                    live.update(Text("\n".join(progress_lines(last))), refresh=True)
        else:
            for last in _changes(looks):
                typer.echo(json.dumps(progress_as_dict(last)) if as_json else "\n".join(progress_lines(last)))
                sys.stdout.flush()
    except KeyboardInterrupt:
        typer.echo("no longer watching; the study goes on by itself", err=True)
        raise typer.Exit(130) from None
    if last is not None and last.counts["failed"]:
        typer.echo("`scaling run STUDY --retry-failed` runs failed ones again", err=True)
        raise typer.Exit(1)


def _looks(directory: Path, every_s: float) -> Iterator[Progress]:
    from scaling.analysis.progress import progress
    from scaling.store import ResultsFolder

    folder = ResultsFolder(directory)
    while True:
        now = progress(folder, datetime.now(timezone.utc))
        yield now
        if now.is_over:
            return
        time.sleep(every_s)


def _changes(looks: Iterator[Progress]) -> Iterator[Progress]:
    """Those in which a state differs from the one before."""
    before = None
    for now in looks:
        state = (now.counts, [(run.cell_id, run.repeat) for run, _ in now.running], now.last_error)
        if state != before:
            yield now
        before = state
