"""The archived form of a folder's runs: one compressed table of samples, one file of records.

    samples.csv.gz   cell_id, repeat, attempt, rank, keys, line; then a column for each key of a sample
    runs.jsonl.gz    the content of every run.json, one a line (runs.jsonl in older archives)

A row of the table is a line of `runs/<cell_id>/<repeat>/rank<rank>.jsonl`, in the same order. A value is its
JSON text, so that numbers, texts, null and lists come back as they were; it is empty where a sample has no
such key. Samples of an attempt that was cut off have its number as `attempt`. `keys` lists the keys of a
sample that has them in another order than the columns. A line that is no sample as the store writes it (cut
off, damaged) is kept whole, as a JSON string, in `line`. A row without any of these says that the file has no
lines.

A folder is archived as soon as it has the records, which are written last and removed first.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scaling.errors import StoreError
from scaling.files.documents import DocumentError, gunzipped, json_samples, read_bytes
from scaling.store.files import damaged, parsed_lines, text_of
from scaling.store.records import checked

SAMPLES, RUNS, RUNS_OLD = "samples.csv.gz", "runs.jsonl.gz", "runs.jsonl"
OWN_COLUMNS = ("cell_id", "repeat", "attempt", "rank", "keys", "line")
MEND_ARCHIVE = "restore both files of the archive from a copy; one of them alone holds no study"
NUM_IDS = 4  # columns that say which file a row belongs to


@dataclass(frozen=True, order=True)
class RankFile:
    """One rank's samples. `attempt`: number of an attempt that was cut off; 0 for the run itself."""

    cell_id: str
    repeat: int
    attempt: int
    rank: int

    @property
    def name(self) -> str:
        attempt = f"attempt-{self.attempt}/" if self.attempt else ""
        return f"runs/{self.cell_id}/{self.repeat}/{attempt}rank{self.rank}.jsonl"

    @property
    def ids(self) -> list[str]:
        return [self.cell_id, str(self.repeat), str(self.attempt or ""), str(self.rank)]


def runs_file(folder: Path) -> Path:
    """The archive's records; where they would be, if there are none. Raises StoreError: there are two."""
    there = [path for path in (folder / RUNS, folder / RUNS_OLD) if os.path.lexists(path)]
    if len(there) > 1:
        raise StoreError(f"{folder} has {RUNS} and {RUNS_OLD}: move the one that is not its own elsewhere")
    return there[0] if there else folder / RUNS


def is_archived(folder: Path) -> bool:
    return os.path.lexists(runs_file(folder))


def archive_of(folder: Path, state: tuple[int, int] = (0, 0)) -> Archive:
    return Archive(folder / SAMPLES, runs_file(folder), state)


def opened(folder: Path, before: Archive | None) -> Archive | None:
    """The archive of a folder, which is `before` where it is still the same; None where it has none."""
    try:
        status = runs_file(folder).stat()
    except OSError as error:
        if is_archived(folder):
            raise StoreError(f"{runs_file(folder)}: cannot be read: {error.strerror}; restore it") from None
        return None
    state = (status.st_mtime_ns, status.st_size)
    return before if before and before.state == state else archive_of(folder, state)


class Archive:
    """The archived runs of a folder, read when asked for. `state`: tells it from one written later."""

    def __init__(self, samples: Path, runs: Path, state: tuple[int, int] = (0, 0)) -> None:
        self.path = samples
        self.state = state
        self._runs = runs

    @cached_property
    def records(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Cell id and repeat -> what run.json held, in this order. Raises StoreError: the file is damaged."""
        records: dict[tuple[str, int], dict[str, Any]] = {}
        lines = text_of(self._runs, MEND_ARCHIVE).rstrip("\n").split("\n")
        for number, line in enumerate(lines if lines != [""] else [], 1):
            values = checked(line, f"{self._runs}, line {number}", MEND_ARCHIVE)
            key = values["cell_id"], values["repeat"]
            if key in records:
                raise StoreError(
                    f"{self._runs}, line {number}: run {key[0]}/{key[1]} came before; {MEND_ARCHIVE}"
                )
            records[key] = values
        return dict(sorted(records.items()))

    def ranks(self, cell_id: str, repeat: int) -> list[RankFile]:
        """Those with samples of a run, by rank."""
        return self._ranks.get((cell_id, repeat), [])

    @cached_property
    def _ranks(self) -> dict[tuple[str, int], list[RankFile]]:
        files: dict[tuple[str, int], list[RankFile]] = {}
        for file in sorted(self.files):
            if not file.attempt:
                files.setdefault((file.cell_id, file.repeat), []).append(file)
        return files

    @property
    def files(self) -> dict[RankFile, tuple[int, int]]:
        """Every rank's samples -> where in the table."""
        return self._table[2]

    def lines(self, file: RankFile) -> list[str]:
        """The lines of a rank's file, as they were. Raises StoreError: the table is damaged."""
        return self._lines(file)[0]

    def samples(self, file: RankFile, *, unfinished: bool = False) -> list[dict[str, Any]]:
        """The samples of a rank: [line]. Raises StoreError: the table, or an archived line, is damaged."""
        lines, are_samples = self._lines(file)
        where = f"{self.path}, {file.name}"
        if not are_samples:
            # A byte that is no UTF-8 becomes \xff, which is no JSON either.
            texts = (
                line.encode(errors="surrogateescape").decode(errors="backslashreplace") for line in lines
            )
            return parsed_lines(list(texts), where, unfinished=unfinished)
        try:
            samples: list[dict[str, Any]] = json_samples(f"[{','.join(lines)}]")  # faster than one by one
        except DocumentError as error:
            raise damaged(where, error, MEND_ARCHIVE) from None
        if len(samples) != len(lines):
            raise StoreError(f"{where} is damaged: a value is no JSON; {MEND_ARCHIVE}")
        return samples

    def _lines(self, file: RankFile) -> tuple[list[str], bool]:
        """With whether each is a sample as the store writes it."""
        content, columns, places = self._table
        first, last = places[file]
        starts = [f"{json.dumps(name)}: " for name in columns]
        lines, are_samples = [], True
        try:
            for row in csv.reader(content[first:last].decode().split("\n")[:-1], strict=True):
                _, _, _, _, keys, line, *cells = row
                if line:
                    lines.append(json.loads(line))
                    are_samples = False
                    continue
                if keys:
                    values = dict(zip(columns, cells, strict=True))
                    parts = [f"{json.dumps(name)}: {values[name]}" for name in json.loads(keys)]
                else:
                    parts = [start + cell for start, cell in zip(starts, cells, strict=True) if cell]
                if parts:
                    lines.append(f"{{{', '.join(parts)}}}\n")
        except (ValueError, KeyError, TypeError, RecursionError, csv.Error) as error:
            raise StoreError(f"{self.path} is damaged: {file.name}: {error}; {MEND_ARCHIVE}") from error
        return lines, are_samples

    @cached_property
    def _table(self) -> tuple[bytes, list[str], dict[RankFile, tuple[int, int]]]:
        """The table's text, the keys of its samples, and where each file's rows begin and end."""
        csv.field_size_limit(2**31 - 1)  # the losses of an epoch's steps are long
        try:
            content = gunzipped(read_bytes(self.path))
            stream = io.BytesIO(content)
            header = next(csv.reader([stream.readline().decode()], strict=True))
            if tuple(header[: len(OWN_COLUMNS)]) != OWN_COLUMNS:
                raise ValueError(f"its columns should begin with {', '.join(OWN_COLUMNS)}")
            places = _places(stream)
            foreign = [file.name for file in places if (file.cell_id, file.repeat) not in self.records]
            if foreign:  # cell ids name files: those of records were checked
                raise ValueError(f"{foreign[0]} is of no run in {self._runs}")
            return content, header[len(OWN_COLUMNS) :], places
        except StoreError:
            raise
        except FileNotFoundError:
            raise StoreError(f"{self.path} is missing; {MEND_ARCHIVE}") from None
        except DocumentError as error:
            raise damaged(self.path, error, MEND_ARCHIVE) from None
        except (ValueError, StopIteration, csv.Error) as error:
            raise StoreError(f"{self.path} is damaged: {error}; {MEND_ARCHIVE}") from error


_NUMBER = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)


def _places(rows: io.BytesIO) -> dict[RankFile, tuple[int, int]]:
    """Each file's rows stand together: they are found by their beginning, without reading the values."""
    places: dict[RankFile, tuple[int, int]] = {}
    beginning, file, start = b"\n", None, rows.tell()
    position = start
    for row in rows:
        if not row.startswith(beginning):
            if file:
                places[file] = (start, position)
            ids = row.split(b",", NUM_IDS)[:NUM_IDS]
            cell_id, repeat, attempt, rank = (value.decode() for value in ids)
            if not all(map(_NUMBER.fullmatch, (repeat, attempt or "0", rank))):
                raise ValueError(f"it has repeat {repeat!r}, attempt {attempt!r}, rank {rank!r}: no numbers")
            file = RankFile(cell_id, int(repeat), int(attempt or 0), int(rank))
            if file in places:
                raise ValueError(f"the rows of {file.name} do not stand together")
            beginning, start = b",".join([*ids, b""]), position
        position += len(row)
    if file:
        places[file] = (start, position)
    return places
