"""How a launch's wall time divides: start-up, and of each cell set-up, warm-up and measuring."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scaling.store import ResultsFolder
from scaling.study.launches import Launch

STARTED_VARIABLE = "SCALING_LAUNCH_STARTED_AT"
"""Set by what starts the launcher: seconds since the epoch."""

PARTS = ("setup", "warmup", "unsplit", "split")


class LaunchTimes:
    """Writes launches/<number>.json, anew after each cell. For rank 0.

    Args:
        folder: of the study.
        launch: under way.
        environ: the environment's variables.
    """

    def __init__(
        self, folder: ResultsFolder, launch: Launch, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._folder = folder
        self._started = float(environ.get(STARTED_VARIABLE) or _process_started())
        self._last = time.time()
        self._number: int | None = None
        self._times: dict[str, Any] = {
            "world_size": launch.settings.world_size,
            "repeat": launch.repeat,
            "settings": asdict(launch.settings),
            "start_up_s": self._last - self._started,
            "cells": [],
        }

    def add(self, cell_id: str, seconds: Mapping[str, float]) -> None:
        """A cell has ended.

        Args:
            cell_id: of the cell.
            seconds: of its parts (`PARTS`), as far as it came.
        """
        now = time.time()
        parts = {f"{part}_s": seconds.get(part, 0.0) for part in PARTS}
        other_s = max(now - self._last - sum(parts.values()), 0.0)
        self._times["cells"].append({"cell_id": cell_id, **parts, "other_s": other_s})
        self._last = now
        path = self._folder.write_launch_times({**self._times, "total_s": now - self._started}, self._number)
        self._number = int(path.stem)


def _process_started() -> float:
    """When this process began, in seconds since the epoch; now, where the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        uptime_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - (uptime_s - ticks / os.sysconf("SC_CLK_TCK"))
