"""`scaling compare`: two results folders, cell by cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A results folder: what was before.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one: ratios are B / A.")],
    fail_if: Annotated[
        str | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="End with exit code 3 if a cell is called so: 'slower > 5%', 'slower', 'faster > 10%'.",
        ),
    ] = None,
    level: Annotated[
        float,
        typer.Option(help="Probability that any cell at all is called different where none is."),
    ] = 0.02,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two studies: differences of the environments, then faster, slower or indistinguishable.

    Cells are tested by Welch's t test of their launches' medians with Holm's correction for many comparisons;
    `repeats: 3` or more on both sides is what that needs. With one launch a verdict speaks of it alone.
    """
    from scaling.analysis.compare import compare as compare_folders
    from scaling.analysis.gates import changed_time, parse_gate
    from scaling.report.compare_text import comparison_as_dict, render_comparison
    from scaling.report.text import text_of
    from scaling.store import ResultsFolder

    gate = None if fail_if is None else parse_gate(fail_if)
    comparison = compare_folders(ResultsFolder(a), ResultsFolder(b), level)
    if as_json:
        typer.echo(json.dumps(comparison_as_dict(comparison), indent=1))
    else:
        from rich.console import Console

        console = Console(soft_wrap=True, highlight=False)
        for part in render_comparison(comparison):
            console.print(part)
    if gate is None:
        return
    if blind := gate.blind(comparison):
        typer.echo(
            f"in {len(blind)} of {len(comparison.cells)} cells a difference of {gate.more_than:.0%} could "
            "not have been found: more repeats on both sides would",
            err=True,
        )
    if failing := gate.failing(comparison):
        for cell in failing:
            typer.echo(f"{gate.verdict}: {text_of(changed_time(cell))}", err=True)
        raise typer.Exit(3)
