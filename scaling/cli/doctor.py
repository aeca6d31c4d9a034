"""`scaling doctor`: this machine as a study would find it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import typer

from scaling.cli.options import AsJson


def doctor(as_json: AsJson = False) -> None:
    """Check this machine; exit code 1 if something would make a study fail."""
    from scaling.doctor import examine

    lines = examine(os.environ, Path.cwd())
    typer.echo(
        json.dumps([vars(line) for line in lines], indent=1)
        if as_json
        else "\n".join(line.describe() for line in lines)
    )
    if any(line.state == "error" for line in lines):
        raise typer.Exit(1)
