"""Verbs on what no study of ours measured: a user's script, claims of papers, a table from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from scaling.cli.options import AsJson, note


def attach(
    command: Annotated[list[str], Argument(metavar="-- COMMAND", help="The command that starts the script.")],
    out: Annotated[Path, Option(help="New results folder.")] = Path("results/attach"),
    arms: Annotated[str | None, Option(help="Run only these arms: no_exchange,aa")] = None,
    steps: Annotated[
        int, Option(min=5, max=100_000, help="Measured steps of an arm with its own process.")
    ] = 30,
    seconds: Annotated[float, Option(min=0.1, max=1_000_000, help="Of a launch that switches arms.")] = 10.0,
    warmup: Annotated[int, Option(min=1, max=100_000, help="Warm-up steps before them.")] = 10,
    launches: Annotated[
        int, Option(min=1, max=1000, help="Launches that switch arms; one more if they disagree.")
    ] = 2,
    until_epoch: Annotated[
        bool, Option("--until-epoch", help="Go on until an epoch of a loader has ended, or --deadline.")
    ] = False,
    deadline: Annotated[float, Option(min=1, max=1_000_000, help="Seconds that a run may take.")] = 120.0,
    join_folder: Annotated[
        Path | None, Option("--join", metavar="DIR", help="On each further node: join the runs in DIR.")
    ] = None,
) -> None:
    """Run a training script for some steps, change one thing after another meanwhile, say what limits it."""
    from scaling.attach.study import AttachPlan, arms_of, attach, join

    if join_folder is not None:
        join(join_folder, command, note)
        return
    plan = AttachPlan(
        command, arms_of(arms), warmup, steps, launches, deadline, seconds, until_epoch=until_epoch
    )
    lines, code = attach(plan, out, note)
    for line in lines:
        typer.echo(line)
    note(f"results: {out}; `scaling report {out}` makes its page")
    if code:
        raise typer.Exit(code)


def claims(
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Claims of a source, in YAML.")],
    out: Annotated[Path | None, Option(help="Write the page there too (Markdown).")] = None,
    as_json: AsJson = False,
) -> None:
    """Check what papers claim by results or a simulation, and say under which assumption it holds."""
    from scaling.store.files import write_whole
    from scaling.study.claims import check_all, markdown, read_claims

    read = {path: read_claims(path) for path in files}
    found = check_all(read)
    page = markdown(read, found)
    if out is not None:
        note(f"page: {write_whole(out, page.encode())}")
    if as_json:
        rows = [
            {
                "id": one.claim.id,
                "verdict": one.verdict,
                "assumption": one.assumption,
                "found": {name: [text for text, _ in values] for name, values in one.found.items()},
            }
            for claims in found.values()
            for one in claims
        ]
        typer.echo(json.dumps(rows, indent=2))
    else:
        typer.echo(page, nl=False)


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
