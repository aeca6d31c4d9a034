"""The samples of one run: of each rank a file of JSON lines, or a part of the archive."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from scaling.errors import StoreError
from scaling.files.redaction import redacted
from scaling.store.archive import Archive
from scaling.store.files import (
    MEND_SAMPLES,
    append_whole,
    json_lines,
    rank_of,
    sample_files,
    storable,
    writing,
)
from scaling.store.sample_schemas import validate_lines

MAX_TEXT = 4096
"""Bytes of an error or a note that a record and a table keep."""


def shortened(text: str) -> str:
    """A text for a record: a model's error may be of megabytes, and goes into tables and pages."""
    text = redacted(text)
    content = text.encode(errors="surrogatepass")
    if len(content) <= MAX_TEXT:
        return text
    pointer = " [%d more characters are in the log: launches/*.log]"
    kept = content[: MAX_TEXT - len(pointer % len(text))].decode(errors="ignore")
    return kept + pointer % (len(text) - len(kept))


Appender = Callable[[Iterable[Mapping[str, Any]]], None]


def appender(path: Path, line: Any = None) -> Appender:
    """A function that appends samples to a file; NaN and infinity become null. `line`: what is checked."""

    def append(rows: Iterable[Mapping[str, Any]]) -> None:
        values = [storable(row) for row in rows]
        if line is not None:
            validate_lines(line, values, f"what was to be written to {path}")
        append_whole(path, "".join(json.dumps(one, allow_nan=False) + "\n" for one in values).encode())

    return append


def move_aside(folder: Path) -> None:
    """Samples of an attempt that was cut off go to a folder of their own, attempt-1, attempt-2, ..."""
    files = sample_files(folder)
    if not files:
        return
    attempt = next(path for n in count(1) if not (path := folder / f"attempt-{n}").exists())
    with writing(attempt):
        attempt.mkdir()
        for path in files:
            path.rename(attempt / path.name)


def read_samples(
    folder: Path, archive: Archive | None, cell_id: str, repeat: int, *, unfinished: bool
) -> list[list[dict[str, Any]]]:
    """[rank][line], of files in the run's folder or of the archive that has taken them. Raises StoreError: a
    file is missing or damaged."""
    files = sample_files(folder)
    archived = archive.ranks(cell_id, repeat) if archive else []
    ranks = [file.rank for file in archived] if archive else [rank_of(path) for path in files]
    if ranks != list(range(len(ranks))):
        raise StoreError(
            f"{folder}: samples of ranks {ranks!s:.60} are there; some are missing; {MEND_SAMPLES}"
        )
    if archive:
        return [archive.samples(file, unfinished=unfinished) for file in archived]
    return [json_lines(path, unfinished=unfinished) for path in files]
