"""The run loop: starts launch after launch until every cell of a study is done or failed.

Workers keep the state in the results folder; this loop only reads it, starts the next launch for what is
left, and judges runs that a dead launch left behind. A run that was cut off twice by a worker's death is
failed.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Protocol

from launchers import processes
from launchers.base import MEETING_TOKEN_VARIABLE, THIS_ENVIRONMENT, LaunchSpec, WorkerEnvironment
from launchers.watch.judgement import verdict
from launchers.zygote import ForkedLaunch, ZygoteError, Zygotes, killed_text
from scaling.errors import DiskFullError, LaunchError
from scaling.files.redaction import redacted
from scaling.import_path import safe_path
from scaling.store import ResultsFolder
from scaling.store.files import MARK, REASONS, redact_file, writing
from scaling.store.records import now
from scaling.study.cell import ResolvedStudy
from scaling.study.kinds import label_of
from scaling.study.launches import COMMAND_VARIABLE, Launch, hand_over, launch_started
from scaling.study.scope import EVERYTHING_HERE, Scope
from scaling.study.worker_modules import IMPORTED_BEFORE_FORKS, WORKER

PRINT_EVERY_S = 3.0  # between reads of the folder for the progress, which take time from workers on a CPU
MOST_RATIO = 50  # of that pause over the time that a read takes

LOG_LINES_SHOWN = 15


class ProgressListener(Protocol):
    def update(self, num_over: int, num_runs: int, current: str) -> None:
        """`num_over` of `num_runs` runs are done or failed; `current` says what is under way."""

    def say(self, message: str) -> None:
        """Something that a person should read."""


@dataclass(frozen=True)
class RunCommand:
    """What a worker is started with: the words of `scaling run`; a stall timeout where it is told more."""

    study: str
    overrides: Sequence[str]
    out: Path
    stall_timeout_s: float | None = None

    def arguments(self) -> list[str]:
        return [self.study, *self.overrides, "--out", os.path.join(".", self.out)]  # it may begin with a dash


@dataclass
class StudyRun:
    """A results folder that is prepared, and what its launches are started with."""

    folder: ResultsFolder
    study: ResolvedStudy
    command: RunCommand
    progress: ProgressListener
    zygotes: Zygotes
    scope: Scope = EVERYTHING_HERE
    before_launch: Callable[[Launch], None] = lambda _: None
    environment: WorkerEnvironment = THIS_ENVIRONMENT
    began: str = field(default_factory=now)  # the time at which it was made
    _failed_starts: dict[tuple[object, int], int] = field(default_factory=dict)

    def begin(self) -> None:
        """To be called before the first launch."""
        _reset_left_over(self.folder, self.scope)
        if self.scope.launcher.forks_workers:
            self.zygotes.begin(len({launch.repeat for launch in self.launches()}))

    def launches(self) -> list[Launch]:
        return self.scope.launches(self.folder, self.study)

    def run(self, launch: Launch) -> None:
        """Runs a launch to its end, and judges what it left. Raises KeyboardInterrupt: the user stopped it,
        and the rest is planned; LaunchError: workers cannot be started, and trying again would not help."""
        folder, scope = self.folder, self.scope
        before = _num_over(folder, scope)
        self.before_launch(launch)
        log = folder.next_log_path()
        with alone_on_this_host(folder, scope, self.progress):
            try:
                code, rank_codes, killed = _start_and_watch(launch, self, log)
            finally:
                redact_file(log)
        text = log.read_text(encoding="utf-8", errors="replace")
        lines = [killed] if killed else verdict(text, rank_codes)
        why = lines[0] if lines else f"launch ended with exit code {code}"
        _require_room(folder, scope, log, code)
        died = _reset_left_over(folder, scope, died=f"{why}, see {log}")
        if died:
            what = "a run was cut off" if killed else "a worker died in its cell"
            self.progress.say("\n".join([f"{what}: {why}, see {log}", *lines[1:]]))
        if _num_over(folder, scope) > before or died:
            return
        reason = scope.launcher.why_not_started(text)
        if reason is not None:
            raise LaunchError(f"{reason} (exit code {code} of the launch, see {log})")
        self._not_begun(launch, code, log)

    def _not_begun(self, launch: Launch, code: int, log: Path) -> None:
        """The workers could not start. The second time, their runs are failed."""
        key = (launch.settings, launch.repeat)
        self._failed_starts[key] = self._failed_starts.get(key, 0) + 1
        text = log.read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^error: (.+)$", text, re.MULTILINE)
        error = found and found[1]
        self.progress.say(
            f"launch of {launch.settings.world_size} workers ended with exit code {code}:"
            + (f" {error}, see {log}" if error else "\n" + "\n".join(text.splitlines()[-LOG_LINES_SHOWN:]))
        )
        if self._failed_starts[key] > 1:
            for cell in launch.cells:
                reason = f"the workers did not start ({error or f'exit code {code}'}), see {log}"
                self.folder.fail_run(self.folder.run(cell.id, launch.repeat), reason)


def run_study(
    folder: ResultsFolder,
    study: ResolvedStudy,
    command: RunCommand,
    progress: ProgressListener,
    scope: Scope = EVERYTHING_HERE,
    before_launch: Callable[[Launch], None] = lambda _: None,
    zygotes: Zygotes | None = None,
) -> None:
    """Runs what is left of a study in its prepared folder; raises as `StudyRun.run` does."""
    with closing(zygotes or Zygotes(IMPORTED_BEFORE_FORKS)) as started:
        run = StudyRun(folder, study, command, progress, started, scope, before_launch)
        run.begin()
        while launches := run.launches():
            run.run(launches[0])


@contextmanager
def alone_on_this_host(folder: ResultsFolder, scope: Scope, progress: ProgressListener) -> Iterator[None]:
    """Waits while a command for another world size of the study measures here: never two at once."""
    if scope.world_size is None:  # this command has the folder to itself
        yield
        return
    part = f".host-{platform.node()}"
    if folder.is_locked(part):
        progress.say("another world size of this study is measured on this host: waiting for its launch")
    with folder.lock(part, wait=True):
        yield


def _require_room(folder: ResultsFolder, scope: Scope, log: Path, code: int) -> None:
    """Ends the study with DiskFullError where a launch found the disk full: that is no death of its run."""
    if code == 0:
        return
    try:
        folder.require_room()
    except DiskFullError:
        _reset_left_over(folder, scope)
        raise
    text = log.read_text(encoding="utf-8", errors="replace")
    if full := re.search(
        rf"\berror: (.*{MARK}(?:{'|'.join(map(re.escape, REASONS.values()))}).*)$", text, re.M
    ):
        _reset_left_over(folder, scope)
        raise DiskFullError(full[1])


def retry_failed(folder: ResultsFolder, scope: Scope = EVERYTHING_HERE) -> int:
    """Puts failed runs back to planned, their deaths forgotten; returns how many."""
    failed = [record for record in scope.records(folder) if record.state == "failed"]
    for record in failed:
        record.deaths, record.reason = 0, None
        folder.reset_run(record)
    return len(failed)


def _num_over(folder: ResultsFolder, scope: Scope) -> int:
    return sum(record.state in ("done", "failed") for record in scope.records(folder))


def _reset_left_over(folder: ResultsFolder, scope: Scope, died: str | None = None) -> int:
    """Puts running runs back to planned; returns how many there were."""
    running = [record for record in scope.records(folder) if record.state == "running"]
    for record in running:
        folder.reset_run(record, died=died)
    return len(running)


def _start_and_watch(launch: Launch, run: StudyRun, log: Path) -> tuple[int, dict[int, int], str | None]:
    """Runs one launch; its exit code, those of its ranks if told, and what was killed that is no rank."""
    with log.open("wb") as file, _ended_on_signals():
        process = _start(launch, run, file)
        try:
            _tell(run.folder, launch, run.progress)
            pause_s = PRINT_EVERY_S
            while (code := _code_within(pause_s, process)) is None:
                began_s = time.monotonic()
                _tell(run.folder, launch, run.progress)
                pause_s = max(PRINT_EVERY_S, MOST_RATIO * (time.monotonic() - began_s))
        except BaseException:
            with processes.interrupts_hurry(process):
                run.progress.say("stopping the workers; what is finished is kept")
                processes.end(process)
                _reset_left_over(run.folder, run.scope)
            raise
    _tell(run.folder, launch, run.progress)
    if isinstance(process, ForkedLaunch):
        return code, process.rank_codes, process.killed
    return code, {}, killed_text("the launcher", process.pid, -code) if code < 0 else None


def _code_within(limit_s: float, process: processes.Running) -> int | None:
    """The exit code as soon as the launch is over; None if it is not by then."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None


def _start(launch: Launch, run: StudyRun, log: BinaryIO) -> processes.Running:
    """The workers of a launch, which print to the log; its first line says how they are started by hand."""
    size, launcher, environment = launch.settings.world_size, run.scope.launcher, run.environment
    arguments = [*run.command.arguments(), f"--world-size={size}"]
    spec = LaunchSpec(size, launch.settings.threads, WORKER, arguments)
    started = {**launch_started(), COMMAND_VARIABLE: run.began, MEETING_TOKEN_VARIABLE: token_hex(16)}
    if run.command.stall_timeout_s is not None:
        started |= hand_over(launch, run.command.stall_timeout_s)
    try:
        launcher.before_start()
        words = launcher.command(spec, environment.python)
        with writing(Path(log.name)):
            log.write(redacted(f"$ {environment.shown(words)}\n").encode())
            log.flush()
        variables = {**environment.variables_from(os.environ), **launcher.environment(spec), **started}
        if launcher.forks_workers:
            return run.zygotes.launch(launch.repeat, spec, variables, Path(log.name))
        if environment.folder is None:  # another one's folder is imported from first
            variables |= safe_path()
        return processes.start(words, variables, log, environment.folder)
    except (ValueError, ZygoteError) as error:
        raise LaunchError(str(error)) from error


def _tell(folder: ResultsFolder, launch: Launch, progress: ProgressListener) -> None:
    records = folder.runs()
    running = [record for record in records if record.state == "running"]
    size = launch.settings.world_size
    current = f"{size} worker{'s' if size > 1 else ''}"
    if running:
        current += f": {label_of(running[0].cell)}"
    progress.update(sum(record.state in ("done", "failed") for record in records), len(records), current)


@contextmanager
def _ended_on_signals() -> Iterator[None]:
    """Turns SIGTERM, SIGHUP, and SIGUSR1 (a batch system's warning) into the same orderly end as Ctrl-C."""

    def interrupt(number: int, _: object) -> None:
        for other in heard:  # a batch system and the script that it runs may both send one: no end of the end
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    heard = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
