"""`scaling compare`: two results folders, cell by cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from scaling.cli.options import AsJson
from scaling.errors import ScalingError

if TYPE_CHECKING:
    from scaling.analysis.comparison import Comparison, Gate
    from scaling.store import ResultsFolder


class AgainstCommand(TyperCommand):
    """`--against B1 B2`: all folders that follow it, up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Names the option before each of its folders, as click knows one value each."""
        words: list[str] = []
        follows = False
        for word in args:
            if word.startswith("-"):
                follows = word == "--against"
                words += [] if follows else [word]
            else:
                words += ["--against", word] if follows else [word]
        return super().parse_args(ctx, words)


def compare(
    folders: Annotated[
        list[Path],
        Argument(metavar="A B", help="Two results folders; ratios are B / A. With --against: folders of A."),
    ],
    against: Annotated[
        list[Path] | None, Option(metavar="B...", help="Folders of B, if a side has several.")
    ] = None,
    fail_if: Annotated[
        str | None,
        Option(
            metavar="CONDITION",
            help="Exit code 3 if a cell is certainly 'slower > 5%', 'slower' or 'faster > 10%'; one launch "
            "is never enough.",
        ),
    ] = None,
    level: Annotated[float, Option(help="Probability of any false alarm over all cells.")] = 0.02,
    as_json: AsJson = False,
) -> None:
    """Compare two studies: differences of the environments, then faster, slower or the same.

    All cells are tested together, relative to their common shift. Several folders per side show how much
    campaigns differ (`compare a1 a2 --against b1 b2`); the two that `run --against` leaves are one campaign.
    A verdict needs `repeats: 3` or more on both sides.
    """
    from scaling.analysis.compare import compare as compare_folders
    from scaling.analysis.comparison import parse_gate
    from scaling.report.compare_text import comparison_as_dict
    from scaling.store import ResultsFolder

    gate = None if fail_if is None else parse_gate(fail_if)
    if not against and len(folders) != 2:
        raise ScalingError(
            f"{len(folders)} folders are given; allowed: two, A and B, or several a side: "
            "A1 A2 --against B1 B2"
        )
    sides = (folders, against) if against else (folders[:1], folders[1:])
    a, b = ([ResultsFolder(path) for path in side] for side in sides)
    comparison = compare_folders(a, b, level)
    if as_json:
        typer.echo(json.dumps(comparison_as_dict(comparison), indent=1))
    else:
        _print(comparison)
    if gate is not None:
        _apply(gate, comparison)


def _apply(gate: Gate, comparison: Comparison) -> None:
    from scaling.analysis.comparison import changed_time, changed_times
    from scaling.report.text import text_of

    if gate.more_than and (blind := gate.blind(comparison)):
        typer.echo(
            f"in {len(blind)} of {len(comparison.cells)} cells a difference of {gate.more_than:.0%} could "
            "not have been found: more repeats on both sides find smaller ones",
            err=True,
        )
    failing = [
        *(changed_time(cell) for cell in gate.failing(comparison)),
        *(changed_times(shift) for shift in gate.failing_shifts(comparison)),
    ]
    for finding in failing:
        typer.echo(f"{gate.verdict}: {text_of(finding)}", err=True)
    if failing:
        raise typer.Exit(3)


def show_comparison(a: ResultsFolder, b: ResultsFolder) -> None:
    from scaling.analysis.compare import compare as compare_folders

    _print(compare_folders([a], [b]))


def _print(comparison: Comparison) -> None:
    from rich.console import Console

    from scaling.report.compare_text import render_comparison

    console = Console(soft_wrap=True, highlight=False)
    for part in render_comparison(comparison):
        console.print(part)
