"""`scaling submit`: a Slurm job for a study. Neither torch nor, to print the script, Slurm is needed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer
from typer import Argument, Option

from launchers.base import JOIN_TIMEOUT_S
from launchers.slurm import SIGNAL_S
from launchers.slurm import submit as submit_script
from scaling.errors import LaunchError

if TYPE_CHECKING:
    from launchers.slurm import JobOptions
    from scaling.study.resolve import JobShape

CPUS_PER_WORKER = 4  # what a job asks for by default
StudyName = Annotated[str, Argument(help="A study file, or the name of a shipped study.")]
Overrides = Annotated[
    list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Replace keys of the study, as in `run`.")
]
Out = Annotated[Path | None, Option(help="Results folder, seen by all nodes (default: results/<name>).")]
Partition = Annotated[str | None, Option(help="Slurm's partition (default: Slurm's).")]
Account = Annotated[str | None, Option(help="Slurm's account (default: Slurm's).")]
TimeLimit = Annotated[str, Option(help="Time limit in Slurm's format.")]
Nodes = Annotated[
    int | None, Option(min=1, max=65536, help="Number of nodes (default: enough for the largest world size).")
]
GpusPerNode = Annotated[
    int | None,
    Option(min=0, max=1024, help="GPUs and workers per node (default: what the largest world size needs)."),
]
CpusPerTask = Annotated[
    int | None,
    Option(
        min=1,
        max=4096,
        help=f"CPUs per worker (srun) or per node (torchrun); default: {CPUS_PER_WORKER} per worker.",
    ),
]
StyleName = Annotated[str, Option(help="torchrun: one task per node; srun: one task per worker.")]
AsArray = Annotated[bool, Option("--array", help="One task per world size, and a report job after them.")]
JobName = Annotated[str | None, Option(help="Name of the job (default: scaling-<name>).")]
PythonProgram = Annotated[str, Option(help="Python program that runs the workers on every node.")]
Setup = Annotated[
    list[str] | None,
    Option(metavar="LINE", help="Bash line to run first, such as 'module load cuda'. Repeatable."),
]
Sbatch = Annotated[
    list[str] | None,
    Option(metavar="OPTION", help="Extra option for sbatch: --sbatch=--exclusive. Repeatable."),
]
SignalSeconds = Annotated[
    int,
    Option(
        "--signal",
        min=1,
        max=65535,
        help="Seconds before the time limit at which the job stops and requeues.",
    ),
]
JoinTimeoutSeconds = Annotated[
    int,
    Option(
        "--join-timeout",
        min=1,
        max=1_000_000,
        help="Seconds that workers wait for each other at the start of a launch.",
    ),
]
DryRun = Annotated[bool, Option("--dry-run", help="Print the batch script; submit nothing.")]


def submit(
    study: StudyName,
    overrides: Overrides = None,
    out: Out = None,
    partition: Partition = None,
    account: Account = None,
    time: TimeLimit = "01:00:00",
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    cpus_per_task: CpusPerTask = None,
    style: StyleName = "torchrun",
    array: AsArray = False,
    job_name: JobName = None,
    python: PythonProgram = sys.executable,
    setup: Setup = None,
    sbatch: Sbatch = None,
    signal_s: SignalSeconds = SIGNAL_S,
    join_timeout_s: JoinTimeoutSeconds = int(JOIN_TIMEOUT_S),
    dry_run: DryRun = False,
) -> None:
    """Submit or resume a study on Slurm; prints the job's id.

    A job that reaches its time limit requeues itself once.
    """
    from launchers.slurm import JobOptions
    from scaling.study.overrides import load_study
    from scaling.study.resolve import job_shape

    loaded = load_study(study, overrides or [])
    folder = out or Path("results") / loaded.name
    try:
        options = JobOptions(
            study=study,
            out=str(folder),
            overrides=overrides or [],
            **_tasks(job_shape(loaded, nodes, gpus_per_node), cpus_per_task, style),
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
        _send(options, dry_run=dry_run)
    except ValueError as error:
        raise LaunchError(str(error)) from error


def _send(options: JobOptions, *, dry_run: bool) -> None:
    """Submits the job, or prints its batch script."""
    from launchers.slurm import script

    if dry_run:
        typer.echo(script(options), nl=False)
        return
    typer.echo(submit_script(script(options)))
    typer.echo(
        f"`squeue` shows the job, `scaling status {shlex.quote(options.out)}` what is left of the study",
        err=True,
    )


class _Tasks(TypedDict):
    """The part of `JobOptions` that follows from a job's shape."""

    world_sizes: Sequence[int]
    workers_per_node: int
    gpus_per_node: int
    nodes: int
    cpus_per_task: int
    style: str


def _tasks(shape: JobShape, cpus_per_task: int | None, style: str) -> _Tasks:
    per_task = 1 if style == "srun" else shape.workers_per_node
    return {
        "world_sizes": shape.world_sizes,
        "workers_per_node": shape.workers_per_node,
        "gpus_per_node": shape.gpus_per_node,
        "nodes": shape.nodes,
        "cpus_per_task": cpus_per_task or CPUS_PER_WORKER * per_task,
        "style": style,
    }
