"""`scaling export`: results in the formats of other tools, to stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A results folder.")],
    cell: Annotated[
        str | None,
        typer.Argument(metavar="[CELL]", help="One cell: its id, or aggregator@workers (ring@4)."),
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="chrome (trace of all ranks on one clock), mllog (MLPerf's log lines), csv (all samples, "
            "one value a row) or extra-p.",
        ),
    ] = "csv",
) -> None:
    """Print raw samples in another tool's format.

    chrome: open the file in chrome://tracing or ui.perfetto.dev. Phases stand in split iterations alone.
    """
    from scaling.errors import ScalingError
    from scaling.report.columns import to_rows
    from scaling.report.explain_text import choose
    from scaling.report.exports import FORMATS
    from scaling.report.reading import read_study
    from scaling.store import ResultsFolder

    if format_ not in FORMATS:
        raise ScalingError(f"no format {format_!r}; allowed: {', '.join(FORMATS)}")
    folder = ResultsFolder(directory)
    study = read_study(folder)
    cells = study.cells
    if cell is not None:
        wanted = {row["cell_id"] for row in choose(to_rows(study.table), cell)}
        cells = [one for one in cells if one.cell_id in wanted]
    end = "\r\n" if format_ == "csv" else "\n"
    try:
        for line in FORMATS[format_](folder, cells):
            sys.stdout.write(line + end)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`: nobody reads on
        sys.stderr.close()
