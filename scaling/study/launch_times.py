"""How wall time divides: of a launch start-up, and of each cell its parts; of a command what is outside."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scaling.store import ResultsFolder, RunRecord
from scaling.study.launches import Launch
from topologies.detect_host import boot_id

STARTED_VARIABLE = "SCALING_LAUNCH_STARTED_AT"
"""Set by what starts the launcher: which start of the host it is, and seconds of its monotonic clock."""

COMMAND_VARIABLE = "SCALING_COMMAND_STARTED_AT"
"""Set by `scaling run`: when it began with its launches, as run records have times."""

PARTS = ("setup", "warmup", "unprofiled", "profiled", "training")


def launch_started() -> dict[str, str]:
    return {STARTED_VARIABLE: f"{boot_id()} {time.monotonic()!r}"}


def checked_by_command(folder: ResultsFolder, record: RunRecord, environ: Mapping[str, str]) -> bool:
    """Whether the command that started this launch has measured another repeat of the cell before."""
    if (began := environ.get(COMMAND_VARIABLE)) is None:
        return False
    before = [folder.run(record.cell_id, repeat) for repeat in range(record.repeat)]
    return any(record.state == "done" and str(record.launch.get("started_at")) >= began for record in before)


class LaunchTimes:
    """Writes launches/<number>.json, anew after each cell. For rank 0."""

    def __init__(
        self, folder: ResultsFolder, launch: Launch, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._folder = folder
        self._started = _launch_started(environ)
        self._last = time.monotonic()
        self._number: int | None = None
        self._times: dict[str, Any] = {
            "world_size": launch.settings.world_size,
            "repeat": launch.repeat,
            "settings": asdict(launch.settings),
            "start_up_s": self._last - self._started,
            "cells": [],
        }

    def add(self, cell_id: str, seconds: Mapping[str, float]) -> None:
        """A cell has ended. `seconds`: of its parts (`PARTS`), as far as it came."""
        now = time.monotonic()
        parts = {f"{part}_s": seconds.get(part, 0.0) for part in PARTS}
        other_s = max(now - self._last - sum(parts.values()), 0.0)
        self._times["cells"].append({"cell_id": cell_id, **parts, "other_s": other_s})
        self._last = now
        path = self._folder.write_launch_times({**self._times, "total_s": now - self._started}, self._number)
        self._number = int(path.stem)


class CommandTimes:
    """Where the wall time of one `scaling run` went outside of its launches, from the start of its process.
    `folder`: of the study, which is prepared; of a campaign, the one that holds those of its environments;
    `sides`: of a campaign, the folders of its environments, where the launches are."""

    def __init__(self, folder: ResultsFolder, sides: Sequence[ResultsFolder] = ()) -> None:
        self._folder = folder
        self._launched = sides or [folder]
        self._started = _process_started()
        self._number = len(folder.launch_times("command-")) + 1
        self._before_s = _launched_s(self._launched)
        self._parts = {"command_s": time.monotonic() - self._started, "predictions_s": 0.0, "report_s": 0.0}
        self._report_began: float | None = None

    def predicting(self, predict: Callable[[Launch], None]) -> Callable[[Launch], None]:
        """The same function; its time is counted."""

        def counted(launch: Launch) -> None:
            began = time.monotonic()
            try:
                predict(launch)
            finally:
                self._parts["predictions_s"] += time.monotonic() - began

        return counted

    def reporting(self) -> None:
        """The launches are over, and the report begins."""
        self._report_began = time.monotonic()
        known_s = sum(self._parts.values()) + _launched_s(self._launched) - self._before_s
        gaps_s = max(0.0, self._report_began - self._started - known_s)
        self._parts["gaps_s"] = gaps_s

    def write(self) -> None:
        """Writes launches/command-<number>.json, with the report's time as far as it has come."""
        if self._report_began is not None:
            self._parts["report_s"] = time.monotonic() - self._report_began
        text = json.dumps(self._parts, indent=1) + "\n"
        self._folder.write_text(f"launches/command-{self._number:03d}.json", text)


def _launched_s(folders: Sequence[ResultsFolder]) -> float:
    launches = (launch for folder in folders for launch in folder.launch_times())
    return sum(float(launch.get("total_s") or 0.0) for launch in launches)


def _launch_started(environ: Mapping[str, str]) -> float:
    host, _, started = environ.get(STARTED_VARIABLE, "").partition(" ")
    # Another host has another clock: there it is the start of the worker.
    return min(float(started), time.monotonic()) if host == str(boot_id()) else _process_started()


def _process_started() -> float:
    """When this process began, by the monotonic clock; now, where the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        uptime_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return time.monotonic()
    return time.monotonic() - (uptime_s - ticks / os.sysconf("SC_CLK_TCK"))
