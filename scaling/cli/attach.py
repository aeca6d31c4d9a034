"""`scaling attach`: what limits a training script of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from scaling.cli.options import note


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
    from scaling.attach.study import Plan, arms_of, attach, join

    if join_folder is not None:
        join(join_folder, command, note)
        return
    plan = Plan(command, arms_of(arms), warmup, steps, launches, deadline, seconds, until_epoch=until_epoch)
    lines, code = attach(plan, out, note)
    for line in lines:
        typer.echo(line)
    note(f"results: {out}; `scaling report {out}` makes its page")
    if code:
        raise typer.Exit(code)
