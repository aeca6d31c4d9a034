"""Turns a folder's runs from one form into the other; nothing is removed before both were compared."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scaling.errors import StoreError
from scaling.files.documents import DocumentError, decoded, from_json, gunzipped, read_bytes
from scaling.store.archive import (
    MEND_ARCHIVE,
    OWN_COLUMNS,
    RUNS,
    SAMPLES,
    Archive,
    RankFile,
    archive_of,
    is_archived,
    runs_file,
)
from scaling.store.files import damaged, inside, rank_of, sample_files, write_whole, writing
from scaling.store.records import MEND

_ATTEMPT = re.compile(r"attempt-[1-9]\d*", re.ASCII)


def plain_files(folder: Path) -> Iterator[Path]:
    """Records and samples, compressed or not; a run's record is its last file."""
    for record in sorted(folder.glob("runs/*/*/run.json")):
        if record.parent.name.isdecimal():
            attempts = sorted(one for one in record.parent.glob("attempt-*") if _ATTEMPT.fullmatch(one.name))
            for run in (record.parent, *attempts):
                yield from sample_files(run)
            yield record


def content_of(path: Path) -> bytes:
    """A record's or a rank's content, unpacked. Raises StoreError: it cannot be read."""
    try:
        content = read_bytes(path)
        if path.name == "run.json":
            return record_text(from_json(decoded(content))).encode()
        return gunzipped(content) if path.suffix == ".gz" else content
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; {MEND}") from None
    except DocumentError as error:
        raise damaged(path, error, MEND) from None


def record_text(record: Any) -> str:
    return json.dumps(record, indent=1) + "\n"


def _rank_file(path: Path, folder: Path) -> RankFile:
    _, cell_id, repeat, *attempt, _ = path.relative_to(folder).parts
    number = int(attempt[0].removeprefix("attempt-")) if attempt else 0
    return RankFile(cell_id, int(repeat), number, rank_of(path))


def _archived_files(archive: Archive) -> Iterator[tuple[str, bytes]]:
    """What an archive holds: names, relative to the folder, and contents."""
    for (cell_id, repeat), record in archive.records.items():
        yield f"runs/{cell_id}/{repeat}/run.json", record_text(record).encode()
    for file in archive.files:
        yield file.name, file_content(archive, file)


def file_content(archive: Archive, file: RankFile) -> bytes:
    """What a rank's file held. Raises StoreError: the table is damaged."""
    try:
        return "".join(archive.lines(file)).encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise StoreError(f"{archive.path} is damaged: {file.name}: {error}; {MEND_ARCHIVE}") from None


def samples_of(folder: Path) -> Iterator[tuple[RankFile, bytes]]:
    if is_archived(folder):
        archive = archive_of(folder)
        return ((file, file_content(archive, file)) for file in archive.files)
    files = (path for path in plain_files(folder) if path.name != "run.json")
    return ((_rank_file(path, folder), content_of(path)) for path in files)


# -- from one form to the other ------------------------------------------------------------------------------


def write_archive(folder: Path) -> None:
    """Writes both files; what they hold, read back, is then removed. Raises StoreError: it cannot be done."""
    files = list(plain_files(folder))
    for path in files:  # before anything is written
        inside(folder, path.relative_to(folder).as_posix())
    if not is_archived(folder):
        _write_checked(folder, files)
    require_held(folder, files, archive_of(folder))
    remove(folder, files)


def _write_checked(folder: Path, files: Sequence[Path]) -> None:
    records = [path for path in files if path.name == "run.json"]
    samples = {_rank_file(path, folder): path for path in files if path.name != "run.json"}
    unchecked = folder / f".{RUNS}"
    try:
        write_whole(folder / SAMPLES, table(samples))
        lines = (json.dumps(json.loads(content_of(path))) + "\n" for path in records)
        write_whole(unchecked, gzip.compress("".join(lines).encode(), mtime=0))
        require_held(folder, files, Archive(folder / SAMPLES, unchecked))
        write_whole(folder / RUNS, unchecked.read_bytes())
    except BaseException:
        (folder / SAMPLES).unlink(missing_ok=True)
        raise
    finally:
        unchecked.unlink(missing_ok=True)


def write_plain(folder: Path) -> None:
    """Writes the runs' own files, then removes the archive. Raises StoreError: it is none, or they differ."""
    if not is_archived(folder):
        raise StoreError(f"{folder} is not archived: it has no {RUNS}")
    archive = archive_of(folder)
    require_held(folder, list(plain_files(folder)), archive)
    contents = list(_archived_files(archive))
    for name, content in contents:
        write_whole(inside(folder, name), content)
    files = list(plain_files(folder))
    require_held(folder, files, archive)
    if len(files) != len(contents):
        raise StoreError(f"{folder}: {len(files)} files were written of the archive's {len(contents)}")
    for path in (runs_file(folder), folder / SAMPLES):
        with writing(path):
            path.unlink()


def require_held(folder: Path, files: Iterable[Path], archive: Archive) -> None:
    """Compares the runs' own files with an archive, text by text. Raises StoreError: one is not the same."""
    contents = dict(_archived_files(archive))
    for path in files:
        if contents.pop(path.relative_to(folder).as_posix().removesuffix(".gz"), None) != content_of(path):
            raise StoreError(f"{path} is not what {archive.path} holds; move one of the two elsewhere")


def remove(folder: Path, files: Iterable[Path]) -> None:
    """Removes them, and the folders that are empty then; anything else in a run's folder stays."""
    for path in files:
        with writing(path):
            inside(folder, path.relative_to(folder).as_posix()).unlink()
        for parent in path.parents[:4]:
            if parent.is_symlink() or any(parent.iterdir()):
                break
            with writing(parent):
                parent.rmdir()


def table(files: dict[RankFile, Path]) -> bytes:
    """The compressed table of these samples; the same bytes whenever it is made of the same files."""
    columns = columns_in_order(keys for path in files.values() for keys in _keys(path))
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as compressed,
        io.TextIOWrapper(compressed, encoding="utf-8", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*OWN_COLUMNS, *columns])
        for file, path in files.items():
            lines = _lines(path)
            writer.writerows([*file.ids, *_row(line, columns)] for line in lines)
            if not lines:
                writer.writerow([*file.ids, *[""] * (len(columns) + 2)])
    return packed.getvalue()


def columns_in_order(orders: Iterable[tuple[str, ...]]) -> list[str]:
    """All keys of samples, each behind the one that it follows where it is first seen."""
    columns: list[str] = []
    for keys in dict.fromkeys(orders):
        position = 0
        for key in keys:
            if key in columns:
                position = columns.index(key)
            else:
                columns.insert(position, key)
            position += 1
    return columns


def _keys(path: Path) -> Iterator[tuple[str, ...]]:
    return (tuple(sample) for line in _lines(path) if (sample := _sample(line)))


def _lines(path: Path) -> list[str]:
    """With their ends; bytes that are no text are kept as surrogates."""
    return list(io.StringIO(content_of(path).decode(errors="surrogateescape"), newline="\n"))


def _sample(line: str) -> dict[str, Any] | None:
    """What a line says; None where its text does not follow from that, or a key is a column's own."""
    try:
        sample = json.loads(line)
        if not isinstance(sample, dict) or not sample or json.dumps(sample) + "\n" != line:
            return None
    except (ValueError, RecursionError):  # of deep nesting
        return None
    return sample if all(key.isprintable() and key not in OWN_COLUMNS for key in sample) else None


def _row(line: str, columns: Sequence[str]) -> list[str]:
    sample = _sample(line)
    if sample is None:
        return ["", json.dumps(line), *[""] * len(columns)]
    cells = [json.dumps(sample[name]) if name in sample else "" for name in columns]
    in_order = [name for name in columns if name in sample] == list(sample)
    return ["" if in_order else json.dumps(list(sample)), "", *cells]
