"""What is written of a run, besides its samples."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, get_args

from scaling.errors import StoreError
from scaling.store.upgrades import upgraded

SCHEMA_VERSION = 3  # what the ones before had: `scaling.store.upgrades`

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
        notes: warnings that belong to the numbers.
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


TYPES: dict[str, tuple[type, ...]] = {
    "cell_id": (str,),
    "repeat": (int,),
    "cell": (dict,),
    "state": (str,),
    "reason": (str, type(None)),
    "deaths": (int,),
    "launch": (dict,),
    "notes": (list,),
    "summary": (dict,),
}
"""What the values of a record are in JSON."""


def now() -> str:
    """The time, UTC, ISO 8601 to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def read_run(path: Path) -> RunRecord:
    """A record from its file, `<cell_id>/<repeat>/run.json`.

    Raises:
        StoreError: it cannot be read, is damaged, of another version, or of another run.
    """
    again = "delete its folder to run this cell again"
    try:
        record = record_from(json.loads(path.read_text(encoding="utf-8")), path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{path} is damaged ({error}); {again}") from error
    if (record.cell_id, str(record.repeat)) != path.parts[-3:-1]:
        raise StoreError(f"{path} is of run {record.cell_id}/{record.repeat}, not of its folder; {again}")
    return record


def record_from(values: Any, where: object) -> RunRecord:
    """A record from what was written of it; its id and repeat name files, so they are checked.

    Args:
        values: as JSON has them.
        where: the file, for messages.

    Raises:
        StoreError: it is of another version, a key is missing or unknown, or a value is of the wrong type.
    """
    if not isinstance(values, dict):
        raise StoreError(f"{where} is damaged: it should be a mapping; delete it to run its cell again")
    version = values.get("schema_version")
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise StoreError(f"{where}: schema version {version}; this program reads 1 to {SCHEMA_VERSION}")
    try:
        record = RunRecord(**upgraded(values, version))
        for name, kinds in TYPES.items():
            if type(value := getattr(record, name)) not in kinds:
                raise TypeError(f"{name} is {value!r:.40}; allowed: {' or '.join(k.__name__ for k in kinds)}")
        if not re.fullmatch(r"\w[\w.-]*", record.cell_id, re.ASCII) or record.repeat < 0:
            raise TypeError(f"cell_id {record.cell_id!r:.40}, repeat {record.repeat} name no run")
        if record.state not in get_args(State):
            raise TypeError(f"state is {record.state!r:.40}; allowed: {', '.join(get_args(State))}")
    except (TypeError, AttributeError) as error:
        raise StoreError(
            f"{where} is damaged ({error}); delete what is stored of this run to run its cell again"
        ) from error
    return record
