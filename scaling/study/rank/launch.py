"""Runs the cells of a launch on this rank, one after the other, and records what came of each."""

from __future__ import annotations

import gc
import os
import platform
import traceback
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import torch

from launchers.processes import say_line
from launchers.rank_info import RankInfo
from launchers.watch.heartbeat import SILENT, UNLIMITED, Heartbeat
from scaling.collectives.plan import exchanges_of
from scaling.collectives.plan_record import plan_of
from scaling.errors import LaunchError, ScalingError, StoreError, StudyError
from scaling.files.redaction import redacted
from scaling.process_group import TorchGroup
from scaling.runtime import LaunchLibraries
from scaling.runtime.workers import RECORDING, CellOutcome, Workers, failure_kind
from scaling.store import ResultsFolder, RunRecord
from scaling.store.failures import DISK_FULL, OUT_OF_MEMORY
from scaling.store.run_samples import Appender, CheckpointFiles
from scaling.study.cell import AnyCell, Cell
from scaling.study.kinds import KINDS
from scaling.study.launches import Launch, LaunchTimes, checked_by_command
from scaling.study.places import gpu_of, sharing_note
from scaling.study.predicting import own_errors, strategy_of
from scaling.study.rank.context import RankSummary, RunContext, notes_of
from scaling.study.rank.loaded import Loaded
from scaling.study.rank.process_state import CLOCK, ProcessState
from scaling.study.scope import libraries_of
from topologies.detect import num_usable_cores
from topologies.detect_host import boot_id
from topologies.errors import TopologyError


class CellRunner:
    """Runs cells on one rank; keeps what it has loaded. `seconds`: part of the last cell -> wall time."""

    def __init__(self, device: torch.device, heartbeat: Heartbeat = SILENT) -> None:
        self._device, self.heartbeat = device, heartbeat
        self._loaded = Loaded(device)
        self.seconds: dict[str, float] = {}

    def run(
        self,
        cell: AnyCell,
        group: TorchGroup,
        write: Appender,
        saved: CheckpointFiles | None = None,
        *,
        is_checked: bool = False,
    ) -> RankSummary:
        """Measures or trains `cell` on this rank. Collective. `saved`: where checkpoints are, if any."""
        configure_torch(cell, self._device)
        self.seconds = {}
        self._loaded.begin_cell()
        context = RunContext(
            group, self._device, write, saved, self._loaded, self.seconds, is_checked, self.heartbeat
        )
        self.heartbeat.phase("the cell", UNLIMITED)  # a kind that says nothing of its steps has any time
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            context.kept_bytes = torch.cuda.memory_allocated(self._device) - self._loaded.device_bytes()
        state, changed = ProcessState(), []
        try:
            summary = KINDS[cell.kind].run(cell, context)
        finally:
            if changed := state.put_back():
                self._say_changed(cell, changed)
            group.release_host_buffers()
            gc.collect()
            if self._device.type == "cuda":
                torch._C._cuda_clearCublasWorkspaces()  # one a stream, which the next cell's peak would have
                torch.cuda.empty_cache()
        if CLOCK in changed:
            raise StudyError(f"code of this cell replaced {CLOCK}: its times are not measured")
        return replace(summary, changed_state=changed)

    def _say_changed(self, cell: AnyCell, changed: list[str]) -> None:
        """Cells after this one run as if it had not been."""
        if "signal handlers" in changed:
            self.heartbeat.listen()
        self._loaded.forget(cell)  # what its model set when it was built, it sets again
        with suppress(OSError):
            what = f"{cell.describe()} changed {', '.join(changed)} of its process; put back"
            say_line(f"warning: {what}")


def configure_torch(cell: AnyCell, device: torch.device) -> None:
    """Threads and precision of this process, as the cell has them; float32 means float32 everywhere."""
    torch.set_num_threads(cell.threads)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = bool(cell.tf32)
        torch.backends.cudnn.allow_tf32 = bool(cell.tf32)


EXIT_GIVEN_UP = 75  # EX_TEMPFAIL of sysexits.h: try again


def usage_error(message: str) -> int:
    with suppress(OSError):  # the log may be on a full disk
        say_line(f"error: {redacted(message)}")
    return 2


def say(info: RankInfo, message: str) -> None:
    if info.rank == 0:
        with suppress(OSError):
            say_line(message)


def run_launch(
    workers: Workers, folder: ResultsFolder, launch: Launch, libraries: LaunchLibraries, heartbeat: Heartbeat
) -> int:
    info = workers.info
    try:
        device = _device(launch, info)
        _set_variables(launch, folder)
        libraries.bring(libraries_of(launch.cells))
    except LaunchError as error:
        return usage_error(str(error))
    runner, any_failed = CellRunner(device, heartbeat), False
    times = LaunchTimes(folder, launch) if info.rank == 0 else None
    started_by = _started_by(workers, launch, libraries)
    for position, cell in enumerate(launch.cells):
        say(info, f"[{position + 1}/{len(launch.cells)}] {cell.describe()}")
        heartbeat.cell(cell.describe())
        heartbeat.phase("the start")
        record = folder.run(cell.id, launch.repeat)
        if info.rank == 0:
            folder.start_run(record, {**started_by, "position": position})
        # No rank may write samples before rank 0 has moved aside what an earlier attempt left.
        is_checked = info.rank == 0 and checked_by_command(folder, record, os.environ)
        values, is_checked = workers.share((asdict(record), is_checked))
        record = RunRecord(**values) if info.rank else record
        outcome = _outcome(workers, runner, folder, launch, cell, is_checked=is_checked)
        if outcome.failure_kind == DISK_FULL and outcome.can_go_on:
            if info.rank == 0:
                with RECORDING, suppress(StoreError):
                    folder.reset_run(record)
                usage_error((outcome.reason or "").partition("DiskFullError: ")[2])
            workers.close()
            return 2
        if info.rank == 0 or not outcome.can_go_on:
            with RECORDING:
                _record(folder, record, cell, info, outcome)
        if times is not None:
            times.add(cell.id, runner.seconds)
        if outcome.reason:
            any_failed = True
            say(info, f"    failed: {outcome.reason}")
        if not outcome.can_go_on:
            say_line("a rank did not leave the failed cell in order; the launch is given up")
            heartbeat.leave()
            os._exit(EXIT_GIVEN_UP)  # pending operations would keep an orderly exit waiting
    workers.close()
    return 1 if any_failed else 0


def _started_by(workers: Workers, launch: Launch, libraries: LaunchLibraries) -> dict[str, Any]:
    """What is recorded of a run with its cell: by what and where it was started. Collective."""
    workers_per_gpu, info = launch.settings.workers_per_gpu, workers.info
    of_ranks = workers.gather(platform.node()) if num_nodes(info) > 1 else None
    return {
        "launcher": info.launcher,
        "host": platform.node(),
        "boot": boot_id(),
        "job_id": info.job_id,
        **libraries.record(),
        **({} if workers_per_gpu is None else {"workers_per_gpu": workers_per_gpu}),
        "num_nodes": num_nodes(info),
        **({} if of_ranks is None else {"nodes": sorted(set(of_ranks)), "rank_nodes": of_ranks}),
    }


def num_nodes(info: RankInfo) -> int:
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
    """Runs the cell on this rank: (reason of failure, its kind, None) or (None, None, summary). Over when the
    rank leaves the group, since a name that holds it would keep other ranks waiting in it."""
    runner.seconds = {}  # not those of the cell before, if this one cannot even begin
    try:
        peer_access = launch.settings.peer_access is not False
        group = workers.group(
            torch.device(launch.settings.device),
            peer_access=peer_access,
            through_host=launch.settings.workers_per_gpu is not None,
        )
        write = folder.sample_writer(cell.id, launch.repeat, workers.info.rank, cell.kind)
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


def plan_record(cell: Cell, tensor_shapes: str) -> dict[str, Any]:
    """`plan`, as the aggregator's own stages have it, or `plan_unknown` with the reason."""
    try:
        with own_errors(f"the plan of aggregator {cell.aggregator!r}"):
            buckets = strategy_of(cell.to_dict(), tensor_shapes).buckets
            stages = [stage for bucket in buckets for stage in bucket]
            exchanges = exchanges_of(stages, with_gpus=cell.device == "cuda")
            return {"plan": plan_of(exchanges, cell.world_size).to_record()}
    except (ScalingError, TopologyError) as error:
        return {"plan_unknown": str(error)}
