"""The run loop: starts launch after launch until every cell of a study is done or failed.

Workers keep the state in the results folder; this loop only reads it, starts the next launch for what is
left, and judges runs that a dead launch left behind. A run that was cut off twice by a worker's death is
failed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launchers import local, processes
from scaling.store import ResultsFolder
from scaling.study.cells import ResolvedStudy
from scaling.study.launches import Launch, remaining_launches

POLL_S = 0.25
TELL_EVERY_S = 3.0
"""How often the folder is read for the progress: seldom, since on a CPU that takes time from the workers."""

LOG_LINES_SHOWN = 15


class Progress(Protocol):
    """Hears how far the study is."""

    def update(self, num_over: int, num_runs: int, current: str) -> None:
        """`num_over` of `num_runs` runs are done or failed; `current` says what is under way."""

    def say(self, message: str) -> None:
        """Something that a person should read."""


@dataclass(frozen=True)
class RunCommand:
    """What a worker is started with: the same words as `scaling run`."""

    study: str
    overrides: Sequence[str]
    out: Path

    def arguments(self) -> list[str]:
        """The worker's command line."""
        return [self.study, *self.overrides, "--out", str(self.out)]


def run_study(folder: ResultsFolder, study: ResolvedStudy, command: RunCommand, progress: Progress) -> None:
    """Runs what is left of a study whose folder is prepared.

    Raises:
        KeyboardInterrupt: the user stopped it; what is finished is kept, the rest is planned again.
    """
    _reset_left_over(folder)
    failed_starts: dict[tuple[object, int], int] = {}
    while launches := remaining_launches(folder, study):
        launch = launches[0]
        before = _num_over(folder)
        log = folder.next_log_path()
        code = _start_and_watch(launch, folder, command, log, progress)
        died = _reset_left_over(folder, died=f"launch ended with exit code {code}, see {log}")
        if _num_over(folder) > before or died:
            continue
        # Nothing was even begun: the workers could not start. The second time, their runs are failed.
        key = (launch.settings, launch.repeat)
        failed_starts[key] = failed_starts.get(key, 0) + 1
        progress.say(
            f"launch of {launch.settings.world_size} workers ended with exit code {code}:\n{_tail(log)}"
        )
        if failed_starts[key] > 1:
            for cell in launch.cells:
                reason = f"the workers did not start (exit code {code}), see {log}"
                folder.fail_run(folder.run(cell.id, launch.repeat), reason)


def retry_failed(folder: ResultsFolder) -> int:
    """Puts failed runs back to planned, their deaths forgotten; returns how many."""
    failed = [record for record in folder.runs() if record.state == "failed"]
    for record in failed:
        record.deaths, record.reason = 0, None
        folder.reset_run(record)
    return len(failed)


def _num_over(folder: ResultsFolder) -> int:
    return sum(record.state in ("done", "failed") for record in folder.runs())


def _reset_left_over(folder: ResultsFolder, died: str | None = None) -> int:
    """Puts running runs back to planned; returns how many there were."""
    running = [record for record in folder.runs() if record.state == "running"]
    for record in running:
        folder.reset_run(record, died=died)
    return len(running)


def _start_and_watch(
    launch: Launch, folder: ResultsFolder, command: RunCommand, log: Path, progress: Progress
) -> int:
    """Runs one launch to its end; returns torchrun's exit code."""
    spec = local.LaunchSpec(
        launch.settings.world_size, launch.settings.threads, "scaling.worker", command.arguments()
    )
    with log.open("wb") as file, _ended_on_signals():
        process = processes.start(local.command(spec), {**os.environ, **local.environment(spec)}, file)
        try:
            told = 0.0
            while (code := process.poll()) is None:
                if time.monotonic() - told > TELL_EVERY_S:
                    _tell(folder, launch, progress)
                    told = time.monotonic()
                time.sleep(POLL_S)
        except BaseException:
            progress.say("stopping the workers; what is finished is kept")
            processes.end(process)
            _reset_left_over(folder)
            raise
    _tell(folder, launch, progress)
    return code


def _tell(folder: ResultsFolder, launch: Launch, progress: Progress) -> None:
    records = folder.runs()
    running = [record for record in records if record.state == "running"]
    size = launch.settings.world_size
    current = f"{size} worker{'s' if size > 1 else ''}"
    if running:
        cell = running[0].cell
        current += f": {cell['kind']} {cell['model_label']}, {cell['aggregator_label']}"
    progress.update(sum(record.state in ("done", "failed") for record in records), len(records), current)


@contextmanager
def _ended_on_signals() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into the same orderly end as Ctrl-C."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    heard = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES_SHOWN:])
