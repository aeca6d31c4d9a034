"""`scaling watch`: follows a study from another terminal or a login node; it only reads the folder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli.options import Folder

if TYPE_CHECKING:
    from scaling.analysis.progress import Progress

EVERY_S = 2.0


def watch(
    directory: Folder,
    every: Annotated[
        float,
        typer.Option(min=0.1, max=86_400, metavar="SECONDS", help="Seconds between two reads of the folder."),
    ] = EVERY_S,
    once: Annotated[bool, typer.Option("--once", help="Print the state once and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON at each change.")] = False,
) -> None:
    """Follow a running study: states, rate, what is left, the last error.

    Only reads the folder, so it works from any machine that sees it. Exit code 1 if a run failed.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from scaling.report.progress import progress_as_dict, progress_lines

    looks = _looks(directory, every, once=once)
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


def _looks(directory: Path, every_s: float, *, once: bool) -> Iterator[Progress]:
    """What the folder says, until the study is over."""
    from scaling.analysis.progress import progress
    from scaling.store import ResultsFolder

    folder = ResultsFolder(directory)
    while True:
        now = progress(folder, datetime.now(timezone.utc))
        yield now
        if now.is_over or once:
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
