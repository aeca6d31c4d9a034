"""`scaling report`: tables, figures and the page of a results folder."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from scaling.cli.options import AsJson, Folder
from scaling.errors import StudyError
from scaling.files.texts import folded

if TYPE_CHECKING:
    from scaling.report.write import WrittenReport


def report(
    directory: Folder,
    all_tables: Annotated[
        bool, Option("--all", help="Print all tables; of a study of very many cells draw all figures.")
    ] = False,
    as_json: AsJson = False,
    markdown: Annotated[
        bool, Option("--markdown", help="Print the report as Markdown, for a pull request.")
    ] = False,
    png: Annotated[bool, Option("--png", help="Save the figures as PNG too.")] = False,
    paper: Annotated[
        bool, Option("--paper", help="Save them for a paper too: figures/paper/*.svg, 3.3 inches wide.")
    ] = False,
    titles: Annotated[bool, Option("--titles", help="With --paper: figures with titles.")] = False,
) -> None:
    """Make the tables, figures and report.html from the raw samples; print the answer on one screen."""
    if as_json + markdown + all_tables > 1:
        raise StudyError("--json, --markdown and --all each print the report; give one of them")
    if titles and not paper:
        raise StudyError("--titles is for the figures of --paper; give both, or neither")
    made = written_report(directory, png=png, paper=paper, titles=titles, everything=all_tables)
    if markdown:
        typer.echo(made.markdown(), nl=False)
    elif as_json:
        typer.echo(json.dumps(made.as_dict(), indent=1))
    elif all_tables:
        typer.echo(made.page)
        _show_all(made)
    else:
        show(made)


def show(made: WrittenReport) -> None:
    from scaling.report.terminal import screen

    command = shlex.join(["scaling", "report", str(made.page.parent), "--all"])
    for line in screen(made.content.answer, command=command, page=str(made.page)):
        typer.echo(line)


def _show_all(made: WrittenReport) -> None:
    from rich.console import Console

    from scaling.report.terminal import folded_answer, render_tables
    from scaling.report.transfer_tables import render_transfers

    console = Console(soft_wrap=True)
    for table in [*render_tables(made.table, made.chosen), *render_transfers(made.transfers)]:
        console.print(table)
        console.print()
    for text in [*folded_answer(made.content.answer), "", *(one.text for one in made.content.findings)]:
        typer.echo(folded("", text, indent=2))


def written_report(path: Path, **how: Any) -> WrittenReport:
    """Makes the report of a results folder anew; `how`: as of `scaling.report.write_report`."""
    from scaling.report import write_report
    from scaling.store import ResultsFolder

    return write_report(ResultsFolder(path), **how)
