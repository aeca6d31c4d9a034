"""`scaling submit`: a Slurm job for a study. Neither torch nor, to print the script, Slurm is needed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from launchers.joining import JOIN_TIMEOUT_S
from launchers.sbatch import submit as submit_script
from launchers.slurm import SIGNAL_S, JobOptions, script
from launchers.slurm_steps import parse_style
from scaling.errors import LaunchError

CPUS_PER_WORKER = 4
"""What a job asks for unless it is told."""


def submit(
    study: Annotated[str, typer.Argument(help="A study file, or the name of a shipped study.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Replace keys of the study, as in `run`."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder, seen by all nodes (default: results/<name>).")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm's partition (default: Slurm's).")] = None,
    account: Annotated[str | None, typer.Option(help="Whom Slurm charges (default: Slurm's).")] = None,
    time: Annotated[str, typer.Option(help="Time limit, as Slurm writes it.")] = "01:00:00",
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes (default: as few as hold the largest world size).")
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(min=0, help="GPUs, and workers, a node (default: the largest world size's share)."),
    ] = None,
    cpus_per_task: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"CPUs of a worker (srun) or of a node (torchrun); default: {CPUS_PER_WORKER} a worker.",
        ),
    ] = None,
    style: Annotated[
        str, typer.Option(help="torchrun: one task a node, which starts its workers; srun: a task a worker.")
    ] = "torchrun",
    array: Annotated[
        bool, typer.Option("--array", help="One task a world size, side by side; a report job after them.")
    ] = False,
    job_name: Annotated[str | None, typer.Option(help="Default: scaling-<name>.")] = None,
    python: Annotated[str, typer.Option(help="Runs the workers, on every node.")] = sys.executable,
    setup: Annotated[
        list[str] | None, typer.Option(metavar="LINE", help="Bash to be run first, as 'module load cuda'.")
    ] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="One more for sbatch: --sbatch=--exclusive.")
    ] = None,
    signal_s: Annotated[
        int, typer.Option("--signal", min=1, help="Seconds before the limit at which the job begins to end.")
    ] = SIGNAL_S,
    join_timeout_s: Annotated[
        int,
        typer.Option("--join-timeout", min=1, help="Seconds that workers wait for each other at a start."),
    ] = int(JOIN_TIMEOUT_S),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the batch script, submit nothing.")
    ] = False,
) -> None:
    """Submit a study to Slurm, or go on with one; prints the job's id.

    A job that reaches its time limit goes back to the queue by itself, once.
    """
    from scaling.study.job_shape import job_shape
    from scaling.study.overrides import load_study

    loaded = load_study(study, overrides or [])
    shape = job_shape(loaded, nodes, gpus_per_node)
    folder = out or Path("results") / loaded.name
    per_task = 1 if style == "srun" else shape.workers_per_node
    try:
        options = JobOptions(
            study=study,
            out=str(folder),
            world_sizes=shape.world_sizes,
            overrides=overrides or [],
            workers_per_node=shape.workers_per_node,
            gpus_per_node=shape.gpus_per_node,
            nodes=shape.nodes,
            cpus_per_task=cpus_per_task or CPUS_PER_WORKER * per_task,
            style=parse_style(style),
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
        if dry_run:
            typer.echo(script(options), nl=False)
            return
        typer.echo(submit_script(script(options)))
    except ValueError as error:
        raise LaunchError(str(error)) from error
    typer.echo(f"`squeue` shows the job, `scaling status {folder}` what is left of the study", err=True)
