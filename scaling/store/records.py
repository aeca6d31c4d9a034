"""What is written of a run, beside its samples."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from scaling.errors import StoreError

SCHEMA_VERSION = 1

State = Literal["planned", "running", "done", "failed"]
MAX_DEATHS = 2
"""A run is tried again after a worker's death, and fails at this many."""


@dataclass
class RunRecord:
    """What run.json holds: one execution of a cell.

    Attributes:
        cell_id: hash of all that decides the result.
        repeat: 0, 1, ...: which of the study's repeats.
        cell: the cell's independent variables, by name.
        state: planned, running, done or failed.
        reason: why it failed, or why the last launch left it planned, for people.
        deaths: how often a worker's death has cut it off.
        launch: launcher, host, job id, position in the launch, times.
        notes: warnings that belong beside the numbers.
        summary: per-run facts that are not samples (bytes per rank, counts, checksums).
    """

    cell_id: str
    repeat: int
    cell: dict[str, Any]
    state: State = "planned"
    reason: str | None = None
    deaths: int = 0
    launch: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


def now() -> str:
    """The time, UTC, ISO 8601 to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def read_run(path: Path) -> RunRecord:
    """A record from its file.

    Raises:
        StoreError: it cannot be read, is damaged, or of another version.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        version = values.get("schema_version")
        if version != SCHEMA_VERSION:
            raise StoreError(f"{path}: schema version {version}; this program reads {SCHEMA_VERSION}")
        return RunRecord(**values)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{path} is damaged ({error}); delete its folder to run this cell again") from error
