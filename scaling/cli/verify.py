"""`scaling verify`: proves schedules and checks aggregators against the contract."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from scaling.cli.options import AsJson, note
from scaling.errors import StudyError
from scaling.files.texts import folded

if TYPE_CHECKING:
    from scaling.conformance.fidelity import Sheet
    from scaling.conformance.verify import Subject, SubjectResult


def verify(
    name: Annotated[
        str | None,
        Argument(
            metavar="NAME",
            help="A collective, an aggregator, FILE.yaml of a schedule, or module:attribute: a class of "
            "aggregators, or a function from a world size to a schedule. The current folder is searched too.",
        ),
    ] = None,
    everything: Annotated[
        bool, Option("--all", help="Every collective and every registered aggregator, on all cores.")
    ] = False,
    world_sizes: Annotated[
        str | None,
        Option(
            metavar="SIZES",
            help="Numbers of ranks, such as 1-8,16; aggregators run with 1 to 8 (default: 1-64; of an "
            "aggregator alone and with --all 1-4,8-64).",
        ),
    ] = None,
    examples: Annotated[
        int | None,
        Option(
            min=1,
            max=10_000,
            metavar="N",
            help="Random cases per aggregator and number of ranks (default: 2; 25 search longer).",
        ),
    ] = None,
    seed: Annotated[int, Option(min=0, metavar="SEED", help="Seed of the random cases.")] = 0,
    save_to: Annotated[
        Path | None,
        Option(metavar="DIR", help="Save the fidelity sheet in this results folder, for its report."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that schedules deliver the sum; check aggregators against the contract. Starts no ranks.

    For a schedule it prints what the busiest rank sends; S is the size of the buffer. For a lossy aggregator
    it prints a fidelity sheet: error, bytes, speed, and the link speed below which compression pays.
    """
    from rich.console import Console

    from scaling.conformance import NUM_EXAMPLES_OF_COMMANDS
    from scaling.conformance.cases import parse_world_sizes
    from scaling.conformance.fidelity import sheet_of
    from scaling.conformance.verify import all_subjects, subjects_of
    from scaling.store import ResultsFolder

    if (name is None) != everything:
        raise StudyError("name a collective or an aggregator, or give --all")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # modules of the current folder are found too, as with `python -m`
    folder = ResultsFolder(save_to).require() if save_to else None
    named = [] if name is None else subjects_of(name)
    is_short = all(subject.kind == "aggregator" for subject in named)
    sizes = parse_world_sizes(world_sizes or ("1-4,8-64" if is_short else "1-64"))
    subjects = named or all_subjects(sizes)
    width = max(len(subject.name) for subject in subjects)
    findings: list[SubjectResult] = []
    sheets: list[Sheet | None] = []
    examples = examples or NUM_EXAMPLES_OF_COMMANDS
    for subject, result in zip(subjects, _checked(subjects, sizes, examples, seed, everything), strict=True):
        findings.append(result)
        wanted = not everything and subject.kind == "aggregator" and result.failure is None
        if not as_json:
            typer.echo(result.line(width))
            sys.stdout.flush()
        with Console(stderr=True).status(f"{subject.name}: what it loses, sends and takes"):
            sheets.append(sheet_of(subject.name) if wanted else None)
        for line in sheets[-1].lines() if sheets[-1] and not as_json else []:
            typer.echo(folded("  ", line, indent=13))
    if folder is not None:
        if name is None or sheets[0] is None:
            raise StudyError("--save-to needs the name of a lossy aggregator: others have no sheet")
        folder.write_sheet(name, sheets[0].as_dict())
        note(f"the sheet is in {folder.path}; `scaling report {folder.path}` shows it")
    if as_json:
        both = zip(findings, sheets, strict=True)
        values = [{**finding.as_dict(), "sheet": sheet and sheet.as_dict()} for finding, sheet in both]
        typer.echo(json.dumps(values, indent=1))
    if any(finding.failure is not None for finding in findings):
        raise typer.Exit(1)


def _checked(
    subjects: Sequence[Subject], sizes: Sequence[int], examples: int, seed: int, everything: bool
) -> Iterator[SubjectResult]:
    """The results in the order of the subjects; of everything on all cores."""
    from rich.console import Console

    from scaling.conformance.verify import examine, examine_all

    results = examine_all(subjects, sizes, examples, seed) if everything else None
    for index, subject in enumerate(subjects, 1):
        with Console(stderr=True).status(f"{index}/{len(subjects)} {subject.name}") as status:
            result = next(results) if results else examine(subject, sizes, status.update, examples, seed)
        yield result
