"""`scaling export`: results in the formats of other tools, to stdout."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

from typer import Option

from scaling.cli.options import CellArgument, Folder, note
from scaling.errors import ScalingError


def export(
    directory: Folder,
    cell: CellArgument = None,
    format_: Annotated[
        str,
        Option(
            "--format",
            help="chrome (trace of all ranks on one clock), mllog (MLPerf's log lines), csv (all samples, "
            "one value a row), extra-p, or tensorboard (event files; needs --out).",
        ),
    ] = "csv",
    archive: Annotated[
        bool, Option("--archive", help="Put all runs into samples.csv.gz and runs.jsonl.gz.")
    ] = False,
    unarchive: Annotated[bool, Option("--unarchive", help="Undo --archive.")] = False,
    unfinished: Annotated[
        bool, Option("--unfinished", help="With --archive: also if the study is not finished.")
    ] = False,
    out: Annotated[Path | None, Option(metavar="DIR", help="Log folder of --format tensorboard.")] = None,
) -> None:
    """Print raw samples in another tool's format, or archive the folder.

    Open a chrome file in chrome://tracing or ui.perfetto.dev; only profiled steps have phases.
    --archive packs the runs of a finished study into samples.csv.gz and runs.jsonl.gz; every command
    reads them.
    """
    from scaling.analysis.columns import to_rows
    from scaling.analysis.summary import read_study
    from scaling.report.advice_text import choose
    from scaling.report.exports import FILES, FORMATS
    from scaling.store import ResultsFolder
    from scaling.store.files import inside, write_whole

    if format_ not in (allowed := [*FORMATS, *FILES]):
        raise ScalingError(f"no format {format_!r}; allowed: {', '.join(allowed)}")
    if (out is not None) != (format_ in FILES):
        raise ScalingError("--format tensorboard and --out DIR belong together; other formats go to stdout")
    folder = ResultsFolder(directory)
    if archive or unarchive:
        if (archive and unarchive) or cell is not None:
            raise ScalingError("--archive and --unarchive stand alone, for a whole folder")
        if archive:
            folder.archive(unfinished=unfinished)
            states = Counter(run.state for run in folder.runs())
            counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
            done = f"is archived: runs {counts}; samples.csv.gz and runs.jsonl.gz hold what was in runs/"
            note(f"{folder.path} {done}")
        else:
            folder.unarchive()
            note(f"{folder.path}: every run has its own files in runs/ again")
        return
    study = read_study(folder)
    cells = study.cells
    if cell is not None:
        wanted = {row["cell_id"] for row in choose(to_rows(study.table), cell)}
        cells = [cell for cell in cells if cell.cell_id in wanted]
    if out is not None:
        files = dict(FILES[format_](cells))
        if not files:
            raise ScalingError(f"{directory} has no steps or epochs to export")
        for path, content in files.items():
            write_whole(inside(out, str(path)), content)
        note(f"{len(files)} runs: `tensorboard --logdir {out}` shows them")
        return
    end = "\r\n" if format_ == "csv" else "\n"
    for line in FORMATS[format_](folder, cells):
        sys.stdout.write(line + end)
    sys.stdout.flush()
