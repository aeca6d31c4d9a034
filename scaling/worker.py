"""A worker: `python -m scaling.worker STUDY [--out DIR] [key=value ...]`, started by any launcher.

It runs the cells whose world size is its own, one repeat a launch, and leaves the rest planned. Exit codes: 0
when its cells were worked through, 1 when one of them failed, 2 for bad input or if no cell matches, 75 when
the launch was given up because a rank did not leave a failed cell in order: start it again for what is left,
and 130 when SIGTERM or SIGUSR1 stopped it: the run that was cut off is planned again.
"""

from __future__ import annotations

if __name__ == "__main__":
    from scaling.import_path import working_folder_last

    working_folder_last()

import argparse
import gc
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from scaling.start_up import allow_open_files, missing_named, open_standard_streams

with missing_named():
    import torch  # noqa: F401 (all below needs it)

from launchers.mpi import started_by_mpi
from launchers.processes import die_with_parent, end_this, say_line
from launchers.rank_info import LAUNCHER_VARIABLE, RankError, RankInfo
from launchers.watch.heartbeat import DEFAULT_STALL_TIMEOUT_S, Heartbeat
from scaling.errors import LaunchError, ScalingError, StoreError
from scaling.registry import trust
from scaling.runtime import LaunchLibraries
from scaling.runtime.meeting import Watched, own_address
from scaling.runtime.workers import Workers, close_runs, closing_on_signals
from scaling.store import ResultsFolder
from scaling.study.launches import Launch, handed_over
from scaling.study.overrides import load_study, texts
from scaling.study.prepare import prepare, this_machine
from scaling.study.rank.launch import EXIT_GIVEN_UP, num_nodes, run_launch, say, usage_error
from scaling.study.resolve import resolve
from scaling.study.same_start import require_same_start, start_facts
from scaling.study.schema import Study
from scaling.study.scope import Scope, runnable


def main(arguments: list[str] | None = None) -> int:
    """Runs this process's part of a study; returns the exit code."""
    options = _parse(arguments)
    if too_few := allow_open_files():
        return usage_error(too_few)
    gc.freeze()  # what was imported is not searched after each cell
    try:
        info = RankInfo.from_env(os.environ)
        if info.table == "torchrun" and _led_by_scaling_run():
            die_with_parent(EXIT_GIVEN_UP)  # killing torchrun alone would leave its workers behind
        _require_world_size(info, options.world_size)
        os.environ.update(info.meeting_variables(os.environ))
        libraries = LaunchLibraries(info)
    except (RankError, LaunchError) as error:
        return usage_error(str(error))
    watch = Watched()
    heartbeat = watch.heartbeat
    try:
        workers = Workers(info, libraries.share(), own_address(info, os.environ), watch)
    except LaunchError as error:
        heartbeat.leave()
        libraries.end_all(2)
        return usage_error(str(error))
    words = sys.argv[1:] if arguments is None else arguments
    if problem := _different_start(workers, options.study, words):
        watch.close()
        return problem
    libraries.offer(workers)
    say(info, info.describe())
    with ExitStack() as locks:
        try:
            code = _lead(options, workers, locks, libraries, heartbeat)
        except StoreError as error:  # outside of a cell: the others wait for this rank in vain
            usage_error(str(error))
            heartbeat.leave()
            os._exit(2)
        heartbeat.leave()  # whatever is wrong has been said
    if workers.closed:
        watch.close()
    else:
        libraries.end_all(code)
    return code


def _lead(
    options: argparse.Namespace,
    workers: Workers,
    locks: ExitStack,
    libraries: LaunchLibraries,
    heartbeat: Heartbeat,
) -> int:
    """Rank 0 chooses the launch and locks the folder; all work through it."""
    info = workers.info
    folder, launch, problem = None, None, None
    stall_timeout_s = DEFAULT_STALL_TIMEOUT_S
    if info.rank == 0:
        try:
            if handed := handed_over(os.environ):
                (launch, stall_timeout_s), folder = handed, ResultsFolder(options.out)
                _require_same_nodes(folder, launch, num_nodes(info))
            else:
                study = load_study(options.study, options.overrides)
                stall_timeout_s = max(part.stall_timeout for part in study.parts)
                folder, launch = _choose_launch(study, options, info, locks)
        except ScalingError as error:
            problem = str(error)
            usage_error(problem)  # before the others hear of it: the first to exit has the rest killed
    path, values = str(folder.path.absolute()) if folder else None, launch.to_json() if launch else None
    path, values, problem, stall_timeout_s = workers.share((path, values, problem, stall_timeout_s))
    launch = Launch.from_json(values) if values else None
    heartbeat.allow(stall_timeout_s)
    if problem:
        workers.close()
        return 2
    if launch is None:
        workers.close()
        say(info, f"every cell of world size {info.world_size} that this launch can run is done or failed")
        return 0
    assert path is not None
    # Rank 0 has read the user's own study; the others take its word.
    trust(name for cell in launch.cells for name in texts(cell.to_dict()))
    results = ResultsFolder(Path(path))
    if _led_by_scaling_run():
        return run_launch(workers, results, launch, libraries, heartbeat)

    def close() -> None:
        heartbeat.leave()
        close_runs(results, info.rank, info.world_size)

    with closing_on_signals(close):
        return run_launch(workers, results, launch, libraries, heartbeat)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m scaling.worker", description="One worker of a study.")
    parser.add_argument("study", help="a study file or the name of a shipped study")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as in `scaling run`")
    parser.add_argument("--out", type=Path, help="results folder (default: results/<name>)")
    parser.add_argument("--world-size", type=int, help="number of workers there must be (default: any)")
    return parser.parse_intermixed_args(arguments)


def _different_start(workers: Workers, study: str, words: list[str]) -> int:
    """0, or the exit code where ranks were not started with the same. Collective."""
    if workers.info.world_size == 1:
        return 0
    try:
        require_same_start(workers.gather(start_facts(study, words)))
    except LaunchError as error:
        if workers.info.rank == 0:
            usage_error(str(error))
        workers.close()
        return 2
    return 0


def _require_world_size(info: RankInfo, wanted: int | None) -> None:
    """On every rank: a launcher that starts fewer workers than it was asked for may say nothing of it."""
    if wanted is not None and info.world_size != wanted:
        raise LaunchError(f"{wanted} workers were asked for, but the launcher says {info.describe()}")


def _choose_launch(
    study: Study, options: argparse.Namespace, info: RankInfo, locks: ExitStack
) -> tuple[ResultsFolder, Launch | None]:
    """The folder, ready and locked, and the first launch left for this world size."""
    # A batch job may have more nodes than this launch: its larger sizes are part of the study all the same.
    job_nodes = max(num_nodes(info), int(os.environ.get("SLURM_JOB_NUM_NODES") or 1))
    resolved = resolve(study, this_machine(job_nodes))
    scope = Scope(world_size=info.world_size)
    scope.require_cells(resolved)
    can_run = runnable(resolved, by_mpi=started_by_mpi(info, os.environ), world_size=info.world_size)
    folder = ResultsFolder(options.out or Path("results") / study.name)
    if not _led_by_scaling_run():  # else it holds the lock
        locks.enter_context(scope.lock(folder))
    prepare(folder, study, resolved)
    for line in can_run.record_missing_libraries(folder):
        say_line(line)
    if not (launches := scope.launches(folder, can_run.study)):
        return folder, None
    _require_same_nodes(folder, launches[0], num_nodes(info))
    if len(launches) > 1:
        say_line(f"{len(launches) - 1} more launches of this size are left after this one")
    return folder, launches[0]


def _led_by_scaling_run() -> bool:
    """Whether `scaling run` started this worker: it holds the lock then, and judges what is cut off."""
    return LAUNCHER_VARIABLE in os.environ


def _require_same_nodes(folder: ResultsFolder, launch: Launch, num_nodes: int) -> None:
    """Repeats of a cell on different numbers of nodes are never pooled."""
    wanted = {cell.id for cell in launch.cells}
    for record in folder.runs():
        before = record.launch.get("num_nodes")
        if record.cell_id in wanted and record.state == "done" and before != num_nodes:
            raise LaunchError(
                f"{folder.path}: other repeats of these cells ran on {before} nodes, these workers are on "
                f"{num_nodes}; use another --out"
            )


if __name__ == "__main__":
    open_standard_streams()
    end_this(main())
