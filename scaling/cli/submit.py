"""`scaling submit`: a Slurm job for a study. Neither torch nor, to print the script, Slurm is needed."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from launchers.base import JOIN_TIMEOUT_S
from launchers.slurm import SIGNAL_S
from launchers.slurm import submit as submit_script
from scaling.cli.options import OverridesAsInRun, StudyArgument
from scaling.errors import LaunchError

CPUS_PER_WORKER = 4  # what a job asks for by default


def submit(
    study: StudyArgument,
    overrides: OverridesAsInRun = None,
    out: Annotated[
        Path | None, Option(help="Results folder, seen by all nodes (default: results/<name>).")
    ] = None,
    partition: Annotated[str | None, Option(help="Slurm's partition (default: Slurm's).")] = None,
    account: Annotated[str | None, Option(help="Slurm's account (default: Slurm's).")] = None,
    time: Annotated[str, Option(help="Time limit in Slurm's format.")] = "01:00:00",
    nodes: Annotated[
        int | None,
        Option(min=1, max=65536, help="Number of nodes (default: enough for the largest world size)."),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        Option(
            min=0, max=1024, help="GPUs and workers per node (default: what the largest world size needs)."
        ),
    ] = None,
    cpus_per_task: Annotated[
        int | None,
        Option(
            min=1,
            max=4096,
            help=f"CPUs per worker (srun) or per node (torchrun); default: {CPUS_PER_WORKER} per worker.",
        ),
    ] = None,
    style: Annotated[
        str, Option(help="torchrun: one task per node; srun: one task per worker.")
    ] = "torchrun",
    array: Annotated[
        bool, Option("--array", help="One task per world size, and a report job after them.")
    ] = False,
    job_name: Annotated[str | None, Option(help="Name of the job (default: scaling-<name>).")] = None,
    python: Annotated[
        str, Option(help="Python program that runs the workers on every node.")
    ] = sys.executable,
    setup: Annotated[
        list[str] | None,
        Option(metavar="LINE", help="Bash line to run first, such as 'module load cuda'. Repeatable."),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        Option(metavar="OPTION", help="Extra option for sbatch: --sbatch=--exclusive. Repeatable."),
    ] = None,
    signal_s: Annotated[
        int,
        Option(
            "--signal",
            min=1,
            max=65535,
            help="Seconds before the time limit at which the job stops and requeues.",
        ),
    ] = SIGNAL_S,
    join_timeout_s: Annotated[
        int,
        Option(
            "--join-timeout",
            min=1,
            max=1_000_000,
            help="Seconds that workers wait for each other at the start of a launch.",
        ),
    ] = int(JOIN_TIMEOUT_S),
    dry_run: Annotated[bool, Option("--dry-run", help="Print the batch script; submit nothing.")] = False,
) -> None:
    """Submit or resume a study on Slurm; prints the job's id.

    A job that reaches its time limit requeues itself once.
    """
    from launchers.slurm import JobOptions, script
    from scaling.study.overrides import load_study
    from scaling.study.resolve import job_shape

    loaded = load_study(study, overrides or [])
    folder = out or Path("results") / loaded.name
    try:
        shape = job_shape(loaded, nodes, gpus_per_node)
        per_task = 1 if style == "srun" else shape.workers_per_node
        options = JobOptions(
            study=study,
            out=str(folder),
            overrides=overrides or [],
            **vars(shape),
            cpus_per_task=cpus_per_task or CPUS_PER_WORKER * per_task,
            style=style,
            array=array,
            time=time,
            partition=partition,
            account=account,
            job_name=job_name or "scaling-" + re.sub(r"[^\w.-]+", "-", loaded.name),
            python=python,
            setup=setup or [],
            directives=sbatch or [],
            signal_s=signal_s,
            join_timeout_s=join_timeout_s,
        )
        text = script(options)
        typer.echo(text if dry_run else submit_script(text), nl=not dry_run)
    except ValueError as error:
        raise LaunchError(str(error)) from error
    if not dry_run:
        seen = (
            f"`squeue` shows the job, `scaling status {shlex.quote(options.out)}` what is left of the study"
        )
        typer.echo(seen, err=True)
