"""`scaling run`: starts or resumes a study and ends with its report."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli.options import Out, Overrides, StudyArgument, note
from scaling.cli.report import written_report
from scaling.errors import ScalingError
from scaling.files.texts import folded

if TYPE_CHECKING:
    from launchers.zygote import Zygotes
    from scaling.report.write import Report
    from scaling.store import ResultsFolder, RunRecord
    from scaling.study.cell import ResolvedStudy
    from scaling.study.libraries import RunnableStudy
    from scaling.study.schema import Study
    from scaling.study.scope import Scope


_Launcher = Annotated[
    str,
    typer.Option(
        help="Starts the workers: local (forked, fast), torchrun, mpirun or horovodrun on this host; "
        "inside a Slurm job slurm-torchrun or slurm-srun; or module:Class of your own."
    ),
]
_WorkersPerNode = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="In a Slurm job: most workers per node (default: its GPUs)."),
]
_WorldSize = Annotated[
    int | None,
    typer.Option(min=1, max=65536, help="Run only this number of workers; make no report."),
]
_Against = Annotated[
    str | None,
    typer.Option(
        metavar="ENVIRONMENT",
        help="Compare with another environment, launch by launch, in results/<name>-campaign/a and b: "
        "env:NAME=VALUE (or several, in quotes; NAME= removes one), venv:FOLDER, checkout:FOLDER, or "
        "commit:REVISION of this folder's repository. Ends with the comparison.",
    ),
]


def run(
    study: StudyArgument,
    overrides: Overrides = None,
    out: Out = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")] = False,
    launcher: _Launcher = "local",
    workers_per_node: _WorkersPerNode = None,
    world_size: _WorldSize = None,
    against: _Against = None,
) -> None:
    """Run or resume a study; finished cells are skipped. Ends with the report and the verdict."""
    from launchers.local import LocalLauncher
    from launchers.zygote import Zygotes
    from scaling.study.worker_modules import IMPORTED_BEFORE_FORKS

    with closing(Zygotes(IMPORTED_BEFORE_FORKS)) as zygotes:
        if launcher == "local" and LocalLauncher.forks_workers:
            zygotes.begin()  # imports while the study is read
        if against is None:
            _run(study, overrides or [], out, retry_failed, launcher, workers_per_node, world_size, zygotes)
            return
        from scaling.cli.run_against import run_against
        from scaling.errors import LaunchError
        from scaling.study.scope import scope_for

        if world_size is not None:
            raise LaunchError("--against runs all world sizes; leave --world-size out or set world_sizes=[N]")
        scope = scope_for(launcher, workers_per_node, None, os.environ)
        words = overrides or []
        run_against(study, words, out, against, scope, zygotes, retry_failed=retry_failed)


def _run(
    study: str,
    overrides: list[str],
    out: Path | None,
    retry_failed: bool,
    launcher: str,
    workers_per_node: int | None,
    world_size: int | None,
    zygotes: Zygotes,
) -> None:
    from scaling.study.scope import scope_for

    scope = scope_for(launcher, workers_per_node, world_size, os.environ)
    folder, made, left_out = measured(study, overrides, out, scope, zygotes, retry_failed=retry_failed)
    failed = [record for record in scope.records(folder) if record.state == "failed"]
    say_rest(failed, left_out)  # the answer comes last
    if made is None:
        note(f"world size {world_size} is over; `scaling report {folder.path}` when the others are")
    else:
        _show(made)
    if is_failure(failed, left_out, is_fault=not scope.launcher.leaves_the_rest):
        raise typer.Exit(1)


def measured(
    study: str,
    overrides: list[str],
    out: Path | None,
    scope: Scope,
    zygotes: Zygotes,
    *,
    retry_failed: bool = False,
) -> tuple[ResultsFolder, Report | None, list[str]]:
    """Runs or resumes a study.

    Returns:
        Its folder, its report (None where one world size alone was run), and a line for each reason why some
        cells stay planned.
    """
    asked = _asked(study, overrides, out, scope, zygotes)

    from scaling.study.launch_times import CommandTimes
    from scaling.study.pre_launch_prediction import PreLaunchPrediction
    from scaling.study.prepare import prepare
    from scaling.study.progress import progress_for
    from scaling.study.run import RunCommand, run_study
    from scaling.study.run import retry_failed as reset_failed

    folder, can_run, is_whole = asked.folder, asked.can_run, scope.world_size is None
    with scope.lock(folder):
        prepare(folder, asked.study, asked.resolved)
        for line in can_run.record_missing_libraries(folder):
            note(line)
        if retry_failed:
            note(f"{reset_failed(folder, scope)} failed runs are tried again")
        times = CommandTimes(folder)
        try:
            with _stopping(folder, with_report=is_whole), progress_for(sys.stderr) as progress:
                stall_timeout_s = max(part.stall_timeout for part in asked.study.parts)
                command = RunCommand(study, asked.overrides, folder.path, stall_timeout_s)
                predict = times.predicting(PreLaunchPrediction(folder, progress.say))
                run_study(folder, can_run.study, command, progress, scope, predict, zygotes)
        finally:
            times.reporting()
            times.write()
        made = _reported(folder, times.write) if is_whole else None
    return folder, made, [*can_run.record_missing_libraries(folder), *scope.left_out(folder, can_run.study)]


@dataclass(frozen=True)
class _Asked:
    """What is to be run.

    Attributes:
        folder: of the results.
        study: with the batches of trials, if it has any.
        overrides: with those too.
        resolved: its cells.
        can_run: those of which the libraries are installed.
    """

    folder: ResultsFolder
    study: Study
    overrides: list[str]
    resolved: ResolvedStudy
    can_run: RunnableStudy


def _asked(study: str, overrides: list[str], out: Path | None, scope: Scope, zygotes: Zygotes) -> _Asked:
    from scaling.study.overrides import load_study

    loaded = load_study(study, overrides)
    zygotes.begin_more(max(part.repeats for part in loaded.parts))  # import while this process does

    from scaling.store import ResultsFolder
    from scaling.study.libraries import runnable
    from scaling.study.prepare import this_machine
    from scaling.study.resolve import resolve
    from scaling.study.trial import trial_overrides

    machine = this_machine(scope.launcher.num_nodes)
    folder = ResultsFolder(out or Path("results") / loaded.name)
    if sized := trial_overrides(loaded, machine, folder, note, zygotes):
        overrides = [*overrides, *sized]
        loaded = load_study(study, overrides)
    resolved = resolve(loaded, machine)
    scope.require_cells(resolved)
    can_run = runnable(resolved, by_mpi=scope.launcher.is_mpi, world_size=scope.world_size)
    for text in resolved.notes:
        note(text)
    return _Asked(folder, loaded, overrides, resolved, can_run)


def _reported(folder: ResultsFolder, before_page: Callable[[], None]) -> Report:
    """The report; where it cannot be made, nothing of what was measured is lost by that."""
    try:
        return written_report(folder.path, before_page=before_page)
    except (ImportError, OSError, ScalingError):
        note(f"what was measured is in {folder.path}; `scaling report {folder.path}` makes the report later")
        raise


@contextmanager
def _stopping(folder: ResultsFolder, *, with_report: bool) -> Iterator[None]:
    """Ends with exit code 130 after Ctrl-C, and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"stopped; the same command goes on from here, `scaling status {folder.path}` shows where")
        if with_report:
            note(f"report of what is done: {written_report(folder.path).page}")
        raise typer.Exit(130) from None


def say_rest(failed: list[RunRecord], left_out: list[str]) -> None:
    """Says what has failed and what is left to other launches.

    Args:
        failed: records of runs.
        left_out: a line for each reason why some stay planned.
    """
    from scaling.study.kinds import label_of

    for record in failed:
        cell = record.cell
        note(
            f"failed: {label_of(cell)}, {cell['world_size']} workers, repeat {record.repeat}: {record.reason}"
        )
    if failed:
        note("`--retry-failed` runs them again")
    for line in left_out:
        note(line)


def is_failure(failed: list[RunRecord], left_out: list[str], *, is_fault: bool) -> bool:
    """Whether the command ends with exit code 1.

    Args:
        failed, left_out: as of `say_rest`.
        is_fault: what is left out counts as well; not in a batch job, on whose success other jobs may wait.
    """
    return bool(failed or (left_out and is_fault))


def _show(made: Report) -> None:
    """Prints the first rows of tables, how the wall time divided, and last the answer."""
    from rich.console import Console

    from scaling.report.device import device_sentences
    from scaling.report.terminal import first_lines, render_answer
    from scaling.report.text import text_of
    from scaling.report.transfer_tables import render_transfers
    from scaling.report.verdict_text import folded_answer

    console = Console(soft_wrap=True)
    parts: list[list[str]] = []
    for table in (*render_answer(made.table, made.chosen), *render_transfers(made.transfers)):
        with console.capture() as printed:
            console.print(table)
        parts.append(printed.get().splitlines())
    parts.append([folded("", sentence, indent=2) for sentence in device_sentences(made.experiments)])
    for text in first_lines(parts):
        console.out(text, highlight=False)  # `typer.echo` writes UTF-8 to a terminal of ASCII
    typer.echo(f"all rows: {shlex.join(['scaling', 'report', str(made.page.parent)])}")
    if made.times is not None:
        typer.echo(folded("", text_of(made.times.finding), indent=2))
    note(f"report: {made.page}")
    typer.echo(f"\n{folded_answer(made.answer, made.content.command)}")
