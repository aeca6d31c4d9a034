"""`scaling report`: tables, figures and the page of a results folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli.options import AsJson, Folder
from scaling.errors import StudyError

if TYPE_CHECKING:
    from scaling.report.write import Report


def report(
    directory: Folder,
    as_json: AsJson = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the report as Markdown, for a pull request.")
    ] = False,
    png: Annotated[bool, typer.Option("--png", help="Save the figures as PNG too.")] = False,
) -> None:
    """Make summary.csv, budget.csv, the figures and report.html from the raw samples."""
    if as_json and markdown:
        raise StudyError("--json and --markdown both print the report; give one of them")
    made = written_report(directory, png=png)
    if markdown:
        typer.echo(made.markdown(), nl=False)
    else:
        typer.echo(json.dumps(made.as_dict(), indent=1) if as_json else made.page)


def written_report(
    path: Path, *, png: bool = False, before_page: Callable[[], None] = lambda: None
) -> Report:
    """Makes the report of a results folder anew."""
    from scaling.report import write_report
    from scaling.store import ResultsFolder

    return write_report(ResultsFolder(path).require(), png=png, before_page=before_page)
