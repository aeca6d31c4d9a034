"""What several verbs take and do: arguments, notes on stderr, the study that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from scaling.files.redaction import redacted

if TYPE_CHECKING:
    from scaling.study.cell import ResolvedStudy

StudyArgument = Annotated[str, Argument(help="A study file, or the name of a shipped study.")]
Overrides = Annotated[
    list[str] | None,
    Argument(
        metavar="[KEY=VALUE]...",
        help="Replace keys of the study: repeats=5 parts.0.iterations=20. "
        "kind=iteration runs the parts of that kind.",
    ),
]
OverridesAsInRun = Annotated[
    list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Replace keys of the study, as in `run`.")
]
Out = Annotated[Path | None, Option("--out", help="Results folder (default: results/<name of the study>).")]
Folder = Annotated[Path, Argument(metavar="DIR", help="A results folder.")]
CellArgument = Annotated[
    str | None, Argument(metavar="[CELL]", help="One cell: its id, or aggregator@workers (ring@4).")
]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]


class CommandGroup(TyperGroup):
    """Commands of which the help shows no type of a flag: `--json`, not `--json <bool>`."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_types(command.get_params(ctx))
        return command


def _without_types(options: Any) -> Any:
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return options


def note(message: str) -> None:
    typer.echo(redacted(message), err=True)


def resolved_study(study_name: str, overrides: list[str] | None) -> ResolvedStudy:
    """A study with its overrides, as this machine would run it."""
    from scaling.study.overrides import load_study
    from scaling.study.prepare import this_machine
    from scaling.study.resolve import resolve

    return resolve(load_study(study_name, overrides or []), this_machine())
