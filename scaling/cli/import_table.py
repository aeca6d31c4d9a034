"""`scaling import-table`: a table of throughput against GPUs as a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from scaling.cli.options import note


def import_table(
    file: Annotated[Path, Argument(metavar="FILE", help="CSV: GPUs,images_per_sec[,seed].")],
    out: Annotated[Path | None, Option(help="New results folder (results/<name>).")] = None,
    name: Annotated[str | None, Option(help="Of the model (default: the file's).")] = None,
    batch: Annotated[
        int, Option(min=0, max=2**30, help="Batch of a GPU; with strong scaling of all GPUs.")
    ] = 0,
    scaling: Annotated[str, Option(help="weak or strong.")] = "weak",
    parameters: Annotated[
        int, Option(min=0, max=10**13, help="Of the model, to predict from the table.")
    ] = 0,
) -> None:
    """Make a results folder of throughputs that something else measured, for report and predict."""
    from scaling.errors import StudyError
    from scaling.study.throughput_table import TableFacts
    from scaling.study.throughput_table import import_table as imported

    if scaling not in ("weak", "strong"):
        raise StudyError(f"--scaling {scaling!r}; allowed: weak, strong")
    label = name or file.stem
    folder = out or Path("results") / label
    facts = TableFacts(label, batch, "strong" if scaling == "strong" else "weak", parameters)
    for line in imported(file, facts, folder):
        note(line)
    typer.echo(str(folder))
