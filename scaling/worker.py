"""A worker: `python -m scaling.worker STUDY [--out DIR] [key=value ...]`, started by any launcher.

It runs the cells whose world size is its own, one repeat a launch, and leaves the rest planned. Exit codes: 0
when its cells were worked through, 1 when one of them failed, 2 for bad input or if no cell matches, 75 when
the launch was given up because a rank did not leave a failed cell in order: start it again for what is left,
and 130 when SIGTERM or SIGUSR1 stopped it: the run that was cut off is planned again.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import traceback
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from launchers.mpi import started_by_mpi
from launchers.processes import die_with_parent, end_this
from launchers.rank_info import LAUNCHER_VARIABLE, RankError, RankInfo
from launchers.watch.heartbeat import DEFAULT_STALL_TIMEOUT_S, Heartbeat
from scaling.errors import LaunchError, ScalingError, StoreError
from scaling.registry import trust
from scaling.runtime import LaunchLibraries
from scaling.runtime.address import own_address
from scaling.runtime.failures import failure_kind
from scaling.runtime.graceful_shutdown import RECORDING, close_runs, closing_on_signals
from scaling.runtime.watching import Watched
from scaling.runtime.workers import CellOutcome, Workers
from scaling.store import ResultsFolder, RunRecord
from scaling.store.upgrades import DISK_FULL, OUT_OF_MEMORY
from scaling.study.cells import AnyCell, Cell, resolve
from scaling.study.kinds import KINDS
from scaling.study.launch_times import LaunchTimes, checked_by_command
from scaling.study.launches import Launch, handed_over, remaining_launches
from scaling.study.libraries import libraries_of, runnable
from scaling.study.overrides import load_study, texts
from scaling.study.prepare import prepare, this_machine
from scaling.study.rank_summary import RankSummary, notes_of
from scaling.study.recorded_plan import plan_record
from scaling.study.run_cell import CellRunner
from scaling.study.same_start import require_same_start, start_facts
from scaling.study.schema import Study
from scaling.study.sharing import gpu_of, sharing_note
from topologies.detect import num_usable_cores
from topologies.detect_host import boot_id

EXIT_GIVEN_UP = 75  # EX_TEMPFAIL of sysexits.h: try again


def main(arguments: list[str] | None = None) -> int:
    """Runs this process's part of a study; returns the exit code."""
    options = _parse(arguments)
    gc.freeze()  # what was imported is not searched after each cell
    try:
        info = RankInfo.from_env(os.environ)
        if info.table == "torchrun" and _led_by_scaling_run():
            die_with_parent(EXIT_GIVEN_UP)  # killing torchrun alone would leave its workers behind
        _require_world_size(info, options.world_size)
        os.environ.update(info.meeting_variables(os.environ))
        libraries = LaunchLibraries(info)
    except (RankError, LaunchError) as error:
        return _usage_error(str(error))
    watch = Watched()
    heartbeat = watch.heartbeat
    try:
        workers = Workers(info, libraries.share(), own_address(info, os.environ), watch)
    except LaunchError as error:
        heartbeat.leave()
        libraries.end_all(2)
        return _usage_error(str(error))
    words = sys.argv[1:] if arguments is None else arguments
    if problem := _different_start(workers, options.study, words):
        watch.close()
        return problem
    libraries.offer(workers)
    _say(info, info.describe())
    with ExitStack() as locks:
        try:
            code = _lead(options, workers, locks, libraries, heartbeat)
        except StoreError as error:  # outside of a cell: the others wait for this rank in vain
            _usage_error(str(error))
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
                _require_same_nodes(folder, launch, _num_nodes(info))
            else:
                study = load_study(options.study, options.overrides)
                stall_timeout_s = max(part.stall_timeout for part in study.parts)
                folder, launch = _choose_launch(study, options, info, locks)
        except ScalingError as error:
            problem = str(error)
            _usage_error(problem)  # before the others hear of it: the first to exit has the rest killed
    path, launch, problem, stall_timeout_s = workers.share(
        (folder.path.absolute() if folder else None, launch, problem, stall_timeout_s)
    )
    heartbeat.allow(stall_timeout_s)
    if problem:
        workers.close()
        return 2
    if launch is None:
        workers.close()
        _say(info, f"every cell of world size {info.world_size} that this launch can run is done or failed")
        return 0
    assert path is not None
    # Rank 0 has read the user's own study; the others take its word.
    trust(name for cell in launch.cells for name in texts(cell.to_dict()))
    results = ResultsFolder(path)
    if _led_by_scaling_run():
        return _work(workers, results, launch, libraries, heartbeat)

    def close() -> None:
        heartbeat.leave()
        close_runs(results, info.rank, info.world_size)

    with closing_on_signals(close):
        return _work(workers, results, launch, libraries, heartbeat)


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
            _usage_error(str(error))
        workers.close()
        return 2
    return 0


def _require_world_size(info: RankInfo, wanted: int | None) -> None:
    """On every rank: a launcher that starts fewer workers than it was asked for may say nothing of it."""
    if wanted is not None and info.world_size != wanted:
        raise LaunchError(f"{wanted} workers were asked for, but the launcher says {info.describe()}")


def _usage_error(message: str) -> int:
    with suppress(OSError):  # the log may be on a full disk
        print(f"error: {message}", file=sys.stderr, flush=True)
    return 2


def _say(info: RankInfo, message: str) -> None:
    if info.rank == 0:
        with suppress(OSError):
            print(message, file=sys.stderr, flush=True)


def _choose_launch(
    study: Study, options: argparse.Namespace, info: RankInfo, locks: ExitStack
) -> tuple[ResultsFolder, Launch | None]:
    """The folder, ready and locked, and the first launch left for this world size."""
    # A batch job may have more nodes than this launch: its larger sizes are part of the study all the same.
    num_nodes = max(_num_nodes(info), int(os.environ.get("SLURM_JOB_NUM_NODES") or 1))
    resolved = resolve(study, this_machine(num_nodes))
    sizes = sorted({cell.world_size for cell in resolved.cells.values()})
    if info.world_size not in sizes:
        raise LaunchError(f"study {study.name!r} has no cell of world size {info.world_size}; it has {sizes}")
    can_run = runnable(resolved, by_mpi=started_by_mpi(info, os.environ), world_size=info.world_size)
    folder = ResultsFolder(options.out or Path("results") / study.name)
    if not _led_by_scaling_run():  # else it holds the lock
        locks.enter_context(folder.lock(shared=True))
        locks.enter_context(folder.lock(f".{info.world_size}"))
    prepare(folder, study, resolved)
    for line in can_run.record_missing_libraries(folder):
        print(line, file=sys.stderr, flush=True)
    launches = [
        launch
        for launch in remaining_launches(folder, can_run.study)
        if launch.settings.world_size == info.world_size
    ]
    if not launches:
        return folder, None
    _require_same_nodes(folder, launches[0], _num_nodes(info))
    if len(launches) > 1:
        print(
            f"{len(launches) - 1} more launches of this size are left after this one",
            file=sys.stderr,
            flush=True,
        )
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


def _work(
    workers: Workers,
    folder: ResultsFolder,
    launch: Launch,
    libraries: LaunchLibraries,
    heartbeat: Heartbeat,
) -> int:
    info = workers.info
    try:
        device = _device(launch, info)
        _set_variables(launch, folder)
        libraries.bring(libraries_of(launch.cells))
    except LaunchError as error:
        return _usage_error(str(error))
    runner, any_failed = CellRunner(device, heartbeat), False
    times = LaunchTimes(folder, launch) if info.rank == 0 else None
    for position, cell in enumerate(launch.cells):
        _say(info, f"[{position + 1}/{len(launch.cells)}] {cell.describe()}")
        heartbeat.cell(cell.describe())
        heartbeat.phase("the start")
        record = folder.run(cell.id, launch.repeat)
        if info.rank == 0:
            folder.start_run(record, {**_started_by(info, launch, libraries), "position": position})
        # No rank may write samples before rank 0 has moved aside what an earlier attempt left.
        is_checked = info.rank == 0 and checked_by_command(folder, record, os.environ)
        record, is_checked = workers.share((record, is_checked))
        outcome = _outcome(workers, runner, folder, launch, cell, is_checked=is_checked)
        if outcome.failure_kind == DISK_FULL and outcome.can_go_on:
            if info.rank == 0:
                with RECORDING, suppress(StoreError):
                    folder.reset_run(record)
                _usage_error((outcome.reason or "").partition("DiskFullError: ")[2])
            workers.close()
            return 2
        if info.rank == 0 or not outcome.can_go_on:
            with RECORDING:
                _record(folder, record, cell, info, outcome)
        if times is not None:
            times.add(cell.id, runner.seconds)
        if outcome.reason:
            any_failed = True
            _say(info, f"    failed: {outcome.reason}")
        if not outcome.can_go_on:
            message = "a rank did not leave the failed cell in order; the launch is given up"
            print(message, file=sys.stderr, flush=True)
            heartbeat.leave()
            os._exit(EXIT_GIVEN_UP)  # pending operations would keep an orderly exit waiting
    workers.close()
    return 1 if any_failed else 0


def _started_by(info: RankInfo, launch: Launch, libraries: LaunchLibraries) -> dict[str, Any]:
    """What is recorded of a run with its cell: by what and where it was started."""
    workers_per_gpu = launch.settings.workers_per_gpu
    return {
        "launcher": info.launcher,
        "host": platform.node(),
        "boot": boot_id(),
        "job_id": info.job_id,
        **libraries.record(),
        **({} if workers_per_gpu is None else {"workers_per_gpu": workers_per_gpu}),
        "num_nodes": _num_nodes(info),
    }


def _num_nodes(info: RankInfo) -> int:
    return info.world_size // info.local_world_size


def _device(launch: Launch, info: RankInfo) -> torch.device:
    """This rank's device; start-up settings are put in force before the first group is made."""
    if launch.settings.device == "cpu":
        return torch.device("cpu")
    shared, visible = launch.settings.workers_per_gpu, torch.cuda.device_count()
    gpu = gpu_of(info.local_rank, shared)
    if gpu >= visible:
        needed = "its own GPU" if shared is None else f"GPU {gpu}, with {shared} workers a GPU"
        raise LaunchError(
            f"local rank {info.local_rank} needs {needed}; {visible} are visible (kind: convergence may let "
            "workers share GPUs: workers_per_gpu)"
        )
    if launch.settings.peer_access is False:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    torch.cuda.set_device(gpu)
    return torch.device("cuda", gpu)


def _set_variables(launch: Launch, folder: ResultsFolder) -> None:
    """What libraries read when they start, which none of these has yet."""
    size, repeat = launch.settings.world_size, launch.repeat
    for name, value in launch.settings.variables:
        has_places = "{launches}" in value
        os.environ[name] = (
            value.format(launches=folder.launches(), world_size=size, repeat=repeat) if has_places else value
        )


def _outcome(
    workers: Workers,
    runner: CellRunner,
    folder: ResultsFolder,
    launch: Launch,
    cell: AnyCell,
    *,
    is_checked: bool,
) -> CellOutcome:
    """Runs the cell; what came of it on all ranks, which have left its group if it failed on one."""
    failure, kind, summary = _attempt(workers, runner, folder, launch, cell, is_checked=is_checked)
    runner.heartbeat.phase("the end")
    key = f"{launch.repeat}/{cell.id}"
    failure_order = workers.first_failure(key) if failure else 0
    if failure:
        workers.leave_group()
    values = summary and asdict(summary)
    outcome = workers.outcome(key, failure, values, failure_order=failure_order, failure_kind=kind)
    if outcome.reason and not failure:
        workers.leave_group()
    return outcome


def _attempt(
    workers: Workers,
    runner: CellRunner,
    folder: ResultsFolder,
    launch: Launch,
    cell: AnyCell,
    *,
    is_checked: bool,
) -> tuple[str | None, str | None, RankSummary | None]:
    """Runs the cell on this rank: (reason of failure, its kind, None) or (None, None, summary)."""
    runner.seconds = {}  # not those of the cell before, if this one cannot even begin
    try:
        peer_access = launch.settings.peer_access is not False
        group = workers.group(
            torch.device(launch.settings.device),
            peer_access=peer_access,
            through_host=launch.settings.workers_per_gpu is not None,
        )
        write = folder.sample_writer(cell.id, launch.repeat, workers.info.rank)
        saved = folder.checkpoints(cell.id, launch.repeat, workers.info.rank)
        return None, None, runner.run(cell, group, write, saved, is_checked=is_checked)
    except Exception as error:  # noqa: BLE001 (of the cell, which fails by it)
        with suppress(OSError):  # the log may be on a full disk
            traceback.print_exc()
        kind = failure_kind(error, torch.device(launch.settings.device))
        name = "out of memory" if kind == OUT_OF_MEMORY else type(error).__name__
        first_line = (str(error).splitlines() or [""])[0]
        return f"rank {workers.info.rank}: {name}: {first_line}", kind, None


def _record(
    folder: ResultsFolder, record: RunRecord, cell: AnyCell, info: RankInfo, outcome: CellOutcome
) -> None:
    if outcome.reason:
        folder.fail_run(record, outcome.reason, outcome.failure_kind)
        return
    ranks = [RankSummary(**summary) for summary in outcome.summaries]
    notes = notes_of(ranks)
    num_cores = num_usable_cores()
    if cell.device == "cpu" and info.local_world_size * cell.threads > num_cores:
        notes.append(f"{info.local_world_size} workers x {cell.threads} threads share {num_cores} cores")
    if cell.workers_per_gpu is not None:
        notes.append(sharing_note(cell.to_dict()))
    if ranks[0].diverged:
        notes.append("training diverged: the loss is not finite")
    summary = KINDS[cell.kind].summary(ranks)
    if isinstance(cell, Cell):
        summary |= plan_record(cell, ranks[0].tensor_shapes)
    folder.finish_run(record, summary, notes)
    if not (isinstance(cell, Cell) and cell.keep_checkpoints):
        folder.remove_checkpoints(record.cell_id, record.repeat)


if __name__ == "__main__":
    end_this(main())
