"""Which launches a study still needs (of runs with one world size, start-up, repeat), and their times."""

from __future__ import annotations

import base64
import json
import os
import random
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import LaunchError
from scaling.files import messages
from scaling.store import ResultsFolder, RunRecord
from scaling.study.cell import AnyCell, Cell, ResolvedStudy
from scaling.study.kinds import KINDS
from scaling.study.kinds.base import START_UP_S, ModelSize
from topologies.detect_host import boot_id

HANDED_OVER = "SCALING_LAUNCH"  # set by `scaling run`: launch and stall_timeout; workers resolve nothing
MOST_CHARACTERS = 100_000  # of a variable; Linux takes 131,072. Workers of a longer one resolve the study.


@dataclass(frozen=True)
class Settings:
    """What must be the same for all cells of a launch, since it is fixed when its processes start."""

    world_size: int
    device: str
    threads: int
    peer_access: bool | None
    variables: tuple[tuple[str, str], ...] = ()  # of the environment (`Aggregator.start_up`)
    workers_per_gpu: int | None = field(default=None, repr=False)  # cells' order is drawn by what is shown

    @classmethod
    def of(cls, cell: AnyCell) -> Settings:
        # Experiments vary the threads within a launch, so that they are compared under the same conditions.
        threads = int(getattr(cell, "launch_threads", cell.threads))
        variables: tuple[tuple[str, str], ...] = ()
        if isinstance(cell, Cell):
            variables = _start_up(cell.aggregator, json.dumps(cell.aggregator_parameters))
        size, peer_access = cell.world_size, cell.peer_access
        return cls(size, cell.device, threads, peer_access, variables, cell.workers_per_gpu)


@cache  # asked for every cell whenever the launches that are left are counted
def _start_up(name: str, parameters: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(create_aggregator(name, json.loads(parameters)).start_up().items()))


@dataclass(frozen=True)
class Launch:
    """One start of worker processes, and the cells they work through, once each."""

    settings: Settings
    repeat: int  # which of the study's repeats its runs are
    cells: list[AnyCell]

    def to_json(self) -> dict[str, Any]:
        cells = [(cell.kind, asdict(cast("Cell", cell))) for cell in self.cells]
        return {"settings": asdict(self.settings), "repeat": self.repeat, "cells": cells}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Launch:
        cells = [KINDS[kind].cell(**fields) for kind, fields in values["cells"]]
        return cls(Settings(**values["settings"]), values["repeat"], cells)


def remaining_launches(folder: ResultsFolder, study: ResolvedStudy) -> list[Launch]:
    """The launches that are left, first repeats first; their cells stand in a random order of their own."""
    over = {(record.cell_id, record.repeat) for record in folder.runs() if record.state in ("done", "failed")}
    grouped: dict[tuple[int, Settings], list[AnyCell]] = {}
    for repeat in range(max(study.repeats.values(), default=0)):
        for cell_id, cell in study.cells.items():
            if repeat < study.repeats[cell_id] and (cell_id, repeat) not in over:
                grouped.setdefault((repeat, Settings.of(cell)), []).append(cell)
    launches = []
    for (repeat, settings), cells in grouped.items():
        random.Random(f"{study.name} {repeat} {settings}").shuffle(cells)
        launches.append(Launch(settings, repeat, cells))
    return sorted(launches, key=lambda launch: launch.repeat)


def hand_over(launch: Launch, stall_timeout_s: float) -> dict[str, str]:
    """The variable that tells workers of the same code what to run; none where it would be too long."""
    values = messages.written([launch.to_json(), stall_timeout_s])
    text = base64.b64encode(zlib.compress(values.encode())).decode()
    return {HANDED_OVER: text} if len(text) < MOST_CHARACTERS else {}


def handed_over(environ: Mapping[str, str]) -> tuple[Launch, float] | None:
    """The launch and its stall_timeout, as `hand_over` wrote them, or None; LaunchError: it is damaged."""
    if (text := environ.get(HANDED_OVER)) is None:
        return None
    try:
        values, stall_timeout_s = messages.read(zlib.decompress(base64.b64decode(text)))
        launch = Launch.from_json(values)
    except (ValueError, zlib.error, KeyError, TypeError, AttributeError) as error:
        raise LaunchError(f"{HANDED_OVER}, which `scaling run` sets, is damaged: {error}; unset it") from None
    return launch, stall_timeout_s


def estimate_seconds(launch: Launch, sizes: Mapping[str, ModelSize], num_cores: int) -> float:
    """A rough time for a launch: its start-up, and its cells, by their models' sizes on `num_cores`."""
    device, kinds = launch.settings.device, {cell.kind for cell in launch.cells}
    start_up_s = KINDS[kinds.pop()].start_up_s(device) if len(kinds) == 1 else START_UP_S[device]
    return start_up_s + sum(
        KINDS[cell.kind].seconds(cell, num_cores, sizes.get(cell.id)) for cell in launch.cells
    )


STARTED_VARIABLE = "SCALING_LAUNCH_STARTED_AT"  # by the launcher's start: its host's boot, monotonic seconds
COMMAND_VARIABLE = "SCALING_COMMAND_STARTED_AT"  # by `scaling run`: when its launches began, as in records

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
        host, _, started = environ.get(STARTED_VARIABLE, "").partition(" ")
        # Another host has another clock: there it is the start of the worker.
        is_here = host == str(boot_id())
        self._started = min(float(started), time.monotonic()) if is_here else _process_started()
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
    """Where the time of one `scaling run` went outside of launches. `sides`: of a campaign, with launches."""

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
        self._parts["gaps_s"] = max(0.0, self._report_began - self._started - known_s)

    def write(self) -> None:
        """Writes launches/command-<number>.json, with the report's time as far as it has come."""
        if self._report_began is not None:
            self._parts["report_s"] = time.monotonic() - self._report_began
        text = json.dumps(self._parts, indent=1) + "\n"
        self._folder.write_text(f"launches/command-{self._number:03d}.json", text)


def _launched_s(folders: Sequence[ResultsFolder]) -> float:
    launches = (launch for folder in folders for launch in folder.launch_times())
    return sum(float(launch.get("total_s") or 0.0) for launch in launches)


def _process_started() -> float:
    """When this process began, by the monotonic clock; now, where the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        uptime_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return time.monotonic()
    return time.monotonic() - (uptime_s - ticks / os.sysconf("SC_CLK_TCK"))
