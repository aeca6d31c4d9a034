"""`scaling run`: starts or resumes a study and ends with its report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from launchers.local import LocalLauncher
from launchers.zygote import Zygotes
from scaling.cli.options import Out, Overrides, StudyArgument, note
from scaling.cli.report import show, written_report
from scaling.cli.run_against import run_against
from scaling.errors import LaunchError, ScalingError
from scaling.files.texts import folded
from scaling.study.worker_modules import IMPORTED_BEFORE_FORKS
from topologies.detect import load_text

if TYPE_CHECKING:
    from scaling.report.write import WrittenReport
    from scaling.store import ResultsFolder
    from scaling.study.scope import Scope
    from scaling.study.session import RunResult

    Begun = tuple[Scope, Zygotes]


def run(
    study: StudyArgument,
    overrides: Overrides = None,
    out: Out = None,
    retry_failed: Annotated[bool, Option("--retry-failed", help="Run failed cells again.")] = False,
    launcher: Annotated[
        str,
        Option(
            help="Starts the workers: local (forked, fast), torchrun, mpirun or horovodrun on this host; "
            "inside a Slurm job slurm-torchrun or slurm-srun; or module:Class of your own."
        ),
    ] = "local",
    workers_per_node: Annotated[
        int | None, Option(min=1, max=1024, help="In a Slurm job: most workers per node (default: its GPUs).")
    ] = None,
    world_size: Annotated[
        int | None, Option(min=1, max=65536, help="Run only this number of workers; make no report.")
    ] = None,
    against: Annotated[
        str | None,
        Option(
            metavar="ENVIRONMENT",
            help="Compare with another environment, launch by launch, in results/<name>-campaign/a and b: "
            "env:NAME=VALUE (or several, in quotes; NAME= removes one), venv:FOLDER, checkout:FOLDER, or "
            "commit:REVISION of this folder's repository. Ends with the comparison.",
        ),
    ] = None,
    number: Annotated[
        int | None,
        Option(
            "--next",
            metavar="N",
            min=1,
            max=1000,
            help="Run the next experiment of a results folder, named in place of the study: that of the "
            "report's answer (1), or of its Nth workload.",
        ),
    ] = None,
) -> None:
    """Run or resume a study; finished cells are skipped. Ends with the report and the verdict."""
    words = overrides or []
    if number is not None:
        if against is not None:
            raise LaunchError("--next goes on from a folder of one environment; leave --against out")
        study, words, out, launcher = _next(study, number, words, out, launcher)
    if against is not None and world_size is not None:
        raise LaunchError("--against runs all world sizes; leave --world-size out or set world_sizes=[N]")
    with workers(launcher, workers_per_node, world_size) as begun:
        if against is not None:
            run_against(study, words, out, against, *begun, retry_failed=retry_failed)
            return
        outcome = measured(study, words, out, begun, retry_failed=retry_failed)
    for line in outcome.rest():  # the answer comes last
        note(line)
    if outcome.report is None:
        path = outcome.folder.path
        note(f"world size {world_size} is over; `scaling report {path}` when the others are")
    else:
        _show(outcome.report)
    if outcome.is_failure:
        raise typer.Exit(1)


@contextmanager
def workers(launcher: str, per_node: int | None = None, world_size: int | None = None) -> Iterator[Begun]:
    """What starts the workers; warns of a busy machine first."""
    if disturbed_by := load_text():  # before workers take them
        note(f"warning: {disturbed_by}: times will be too long and scatter; run it when the machine is idle")
    with closing(Zygotes(IMPORTED_BEFORE_FORKS)) as zygotes:
        if launcher == "local" and LocalLauncher.forks_workers:
            zygotes.begin()  # imports while the study is read
        from scaling.study.scope import scope_for

        yield scope_for(launcher, per_node, world_size, os.environ), zygotes


def _next(
    folder: str, number: int, words: list[str], out: Path | None, launcher: str
) -> tuple[str, list[str], Path, str]:
    """Study, overrides, folder and launcher of a results folder's next experiment; what was typed wins."""
    from scaling.report.verdict_text import next_of

    found = next_of(Path(folder), number)
    note(found.command)
    by = found.launcher if found.launcher and launcher == "local" else launcher
    return found.study, [*found.overrides, *words], out or Path(found.out), by


def measured(
    study: str, overrides: list[str], out: Path | None, begun: Begun, *, retry_failed: bool = False
) -> RunResult[WrittenReport]:
    from scaling.study.session import run_session

    how: dict[str, Any] = {"note": note, "interrupted": _interrupted, "report": _reported}
    return run_session(study, overrides, out, *begun, **how, retry_failed=retry_failed)


def _reported(folder: ResultsFolder, before_page: Callable[[], None]) -> WrittenReport:
    """The report; where it cannot be made, nothing of what was measured is lost by that."""
    try:
        return written_report(folder.path, before_page=before_page)
    except (ImportError, OSError, ScalingError):
        note(f"what was measured is in {folder.path}; `scaling report {folder.path}` makes the report later")
        raise


@contextmanager
def _interrupted(folder: ResultsFolder, with_report: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        note(f"stopped; the same command goes on from here, `scaling status {folder.path}` shows where")
        if with_report:
            note(f"report of what is done: {written_report(folder.path).page}")
        raise typer.Exit(130) from None


def _show(made: WrittenReport) -> None:
    from scaling.report.text import text_of

    if made.times is not None:
        typer.echo(folded("", text_of(made.times.finding), indent=2))
        typer.echo()
    show(made)
