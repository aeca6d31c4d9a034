"""What several verbs take and do: arguments, notes on stderr, the study that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.files.redaction import redacted

if TYPE_CHECKING:
    from scaling.study.cell import ResolvedStudy

StudyArgument = Annotated[str, typer.Argument(help="A study file, or the name of a shipped study.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Replace keys of the study: repeats=5 parts.0.iterations=20. "
        "kind=iteration runs the parts of that kind.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Results folder (default: results/<name of the study>).")
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A results folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def note(message: str) -> None:
    """Prints a message on stderr; stdout is for data."""
    typer.echo(redacted(message), err=True)


def resolved_study(study_name: str, overrides: list[str] | None) -> ResolvedStudy:
    """A study with its overrides, as this machine would run it."""
    from scaling.study.overrides import load_study
    from scaling.study.prepare import this_machine
    from scaling.study.resolve import resolve

    return resolve(load_study(study_name, overrides or []), this_machine())
