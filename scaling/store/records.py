"""What is written of a run, besides its samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from scaling.errors import StoreError
from scaling.files.documents import DocumentError, from_json
from scaling.store.files import as_json, damaged, overwrite, text_of
from scaling.store.schemas import RunModel, validate
from scaling.store.upgrades import upgraded

SCHEMA_VERSION = 7  # what the ones before had: `scaling.store.upgrades`

State = Literal["planned", "running", "done", "failed"]
MAX_DEATHS = 2  # a run is tried again after a worker's death, and fails at this many


@dataclass
class RunRecord:
    """What run.json holds: one execution of a cell."""

    cell_id: str  # hash of all that decides the result
    repeat: int  # 0, 1, ...: which of the study's repeats
    cell: dict[str, Any]  # the cell's independent variables, by name
    state: State = "planned"  # planned, running, done or failed
    reason: str | None = None  # why it failed, or why the last launch left it planned, for people
    deaths: int = 0  # how often a worker's death has cut it off
    launch: dict[str, Any] = field(default_factory=dict)  # launcher, host, job, times; `campaign` if in turns
    notes: list[str] = field(default_factory=list)  # warnings that belong to the numbers
    summary: dict[str, Any] = field(default_factory=dict)  # per-run facts: bytes, counts, checksums
    schema_version: int = SCHEMA_VERSION


def now() -> str:
    """The time, UTC, ISO 8601 to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def read_run(path: Path) -> RunRecord:
    """A record from `<cell_id>/<repeat>/run.json`. Raises StoreError: it is damaged, or of another run."""
    record = record_from(checked(text_of(path, MEND), path, numbered=True))
    if (record.cell_id, str(record.repeat)) != path.parts[-3:-1]:
        raise StoreError(f"{path} is of run {record.cell_id}/{record.repeat}, not of its folder; {MEND}")
    return record


MEND = "delete its run's folder, and `scaling run` measures it again"


def checked(text: str, where: object, mend: str = MEND, *, numbered: bool = False) -> dict[str, Any]:
    """What was written of a run; `numbered`: messages name lines. StoreError: it is damaged, or too new."""
    try:
        values = from_json(text)
    except DocumentError as error:
        raise damaged(where, error, mend) from None
    if not isinstance(values, dict):
        raise StoreError(f"{where} is damaged: it should be a mapping; {mend}")
    version = values.get("schema_version")
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise StoreError(
            f"{where}: schema_version is {version!r:.40}; this program reads 1 to {SCHEMA_VERSION}; read it "
            f"with the program that wrote it, or {mend}"
        )
    validate(RunModel, values, where, mend, text if numbered else None)
    return values


def record_from(values: dict[str, Any]) -> RunRecord:
    """The record that such values are; a cell without a label has the plain name."""
    record = RunRecord(**upgraded(values, values["schema_version"]))
    for name in ("model", "dataset", "aggregator"):
        if isinstance(record.cell.get(name), str):
            record.cell.setdefault(f"{name}_label", record.cell[name])
    return record


def planned_in_place(path: Path, deaths: int) -> bool:
    """Puts a running run back to planned without any space for it; False where it was not running."""
    if not path.exists() or (record := read_run(path)).state != "running":
        return False
    record.state, record.deaths = "planned", deaths
    return overwrite(path, as_json(asdict(record)))
