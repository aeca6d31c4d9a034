"""`scaling run --against`: a study in two environments, launch by launch, and what differs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from scaling.cli.compare import show_comparison
from scaling.cli.options import note
from scaling.files.texts import folded

if TYPE_CHECKING:
    from launchers.zygote import Zygotes
    from scaling.store import ResultsFolder
    from scaling.study.campaign import OtherEnvironment
    from scaling.study.cell import ResolvedStudy
    from scaling.study.launches import CommandTimes
    from scaling.study.scope import Scope


def run_against(
    study: str,
    overrides: Sequence[str],
    out: Path | None,
    against: str,
    scope: Scope,
    zygotes: Zygotes,
    *,
    retry_failed: bool,
) -> None:
    """Runs both environments' launches in turns, in the folders `a` and `b` of `out`, and compares them."""
    from launchers.zygote import Zygotes
    from scaling.errors import StoreError
    from scaling.store import ResultsFolder
    from scaling.store.files import part_of
    from scaling.study.campaign import SIDES, other_environment, require_same_cells
    from scaling.study.launches import CommandTimes
    from scaling.study.overrides import load_study, study_file
    from scaling.study.prepare import check_settings, prepare
    from scaling.study.run import retry_failed as reset_failed
    from scaling.study.scope import runnable
    from scaling.study.trial import sized_study
    from scaling.study.worker_modules import IMPORTED_BEFORE_FORKS

    loaded = load_study(study, overrides)
    out = out or Path("results") / f"{loaded.name}-campaign"
    if ResultsFolder(out).exists():
        raise StoreError(f"{out} holds a study of one environment; --against needs an --out of its own")
    other = other_environment(against, out)
    folders = [ResultsFolder(part_of(out, side)) for side in SIDES]
    with closing(Zygotes(IMPORTED_BEFORE_FORKS, other.workers)) as zygotes_of_other:
        if scope.launcher.forks_workers:
            zygotes_of_other.begin()
        file = str(study_file(study))
        loaded, overrides, resolved = sized_study(
            file, loaded, list(overrides), scope.launcher.num_nodes, folders[0], note, zygotes
        )
        check_settings(resolved, other.workers.variables_from(os.environ))
        require_same_cells(other, file, overrides, folders[1].path, resolved)
        can_run = runnable(resolved, by_mpi=scope.launcher.is_mpi, world_size=None)
        with ExitStack() as locks:
            for folder in folders:
                locks.enter_context(scope.lock(folder))
            # The other environment's first workers prepare its folder.
            prepare(folders[0], loaded, resolved)
            for line in can_run.record_missing_libraries(folders[0]):
                note(line)
            if retry_failed:
                num_reset = sum(reset_failed(folder, scope) for folder in folders)
                note(f"{num_reset} failed runs are tried again")
            times = CommandTimes(ResultsFolder(out), folders)
            try:
                _run(folders, can_run.study, [file, *overrides], other, scope, (zygotes, zygotes_of_other))
            finally:
                times.reporting()
                times.write()
    _end(folders, out, times)


def _run(
    folders: Sequence[ResultsFolder],
    resolved: ResolvedStudy,
    words: Sequence[str],
    other: OtherEnvironment,
    scope: Scope,
    zygotes: Sequence[Zygotes],
) -> None:
    from launchers.base import THIS_ENVIRONMENT
    from scaling.study.campaign import Campaign, SideProgress, run_campaign
    from scaling.study.progress import progress_for
    from scaling.study.run import RunCommand, StudyRun

    a, b = folders
    campaign = Campaign.of(a, b, other.name)
    note(f"A is this environment, B is {other.name}; their launches take turns")
    if again := campaign.measure_halves_again():
        note(f"{again} runs were done in one environment alone and are measured again in both")
    try:
        with progress_for(sys.stderr) as progress:
            runs = [
                StudyRun(
                    folder=folder,
                    study=resolved,
                    command=RunCommand(words[0], words[1:], folder.path.absolute()),
                    progress=SideProgress(progress, name, partner),
                    zygotes=forks,
                    scope=scope,
                    environment=environment,
                )
                for folder, partner, name, forks, environment in (
                    (a, b, "A", zygotes[0], THIS_ENVIRONMENT),
                    (b, a, "B", zygotes[1], other.workers),
                )
            ]
            run_campaign(runs[0], runs[1], campaign)
    except KeyboardInterrupt:
        note("stopped; the same command goes on from here")
        raise typer.Exit(130) from None


def _end(folders: Sequence[ResultsFolder], out: Path, times: CommandTimes) -> None:
    from scaling.analysis.progress import wall_time
    from scaling.report.text import text_of
    from scaling.store import ResultsFolder
    from scaling.study.kinds import label_of

    a, b = folders
    done = [{record.cell_id for record in folder.runs() if record.state == "done"} for folder in folders]
    if done[0] & done[1]:
        show_comparison(a, b)
        times.write()
        launches = [launch for folder in folders for launch in folder.launch_times()]
        divided = wall_time(launches, ResultsFolder(out).launch_times("command-"))
        if divided is not None:
            typer.echo(folded("", text_of(divided.finding), indent=2))
        note(f"again: `scaling compare {a.path} {b.path}`; pages: `scaling report {a.path}`, or of {b.path}")
    failed = [(folder, record) for folder in folders for record in folder.runs() if record.state == "failed"]
    for folder, record in failed:
        where = f"{folder.path}: {label_of(record.cell)}, {record.cell['world_size']} workers"
        note(f"failed: {where}, repeat {record.repeat}: {record.reason}")
    if failed:
        note(f"`--retry-failed --out {out}` runs them again, with their partners")
        raise typer.Exit(1)
