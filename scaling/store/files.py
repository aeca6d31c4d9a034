"""Files as the store keeps them: replaced in one piece; errors say what to do."""

from __future__ import annotations

import fcntl
import gzip
import json
import math
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import yaml

from scaling.errors import StoreError
from scaling.store.disk_full import disk_full

LOOK_S = 0.02
"""Longer than a look at a lock takes."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the system says of a path into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise disk_full(path, error) or StoreError(
            f"{path}: cannot be written: {error.strerror}; choose another --out"
        ) from error


def write_whole(path: Path, content: bytes) -> Path:
    """Replaces a file in one piece: written to a temporary file, synced, renamed; returns its path."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)  # on a full disk its part would take the last space
            raise
    return path


def append_whole(path: Path, content: bytes) -> None:
    """Adds to a file, which is made; nothing where not all of it can be written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            length = file.tell()
            try:
                left = memoryview(content)
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(length)
                raise


def inside(folder: Path, name: str) -> Path:
    """The path of what is made from results, which are another's where a folder was received.

    Raises:
        StoreError: a link in the folder, or a name in the results, leads out of it.
    """
    path = folder / name
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise StoreError(
            f"{path} is outside of the results folder: a link in the folder or a name in its results "
            "leads there, and nothing is written; remove the link or correct the name"
        )
    return path


def read_mapping(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """The mapping that `parse` makes of a file's text.

    Raises:
        StoreError: it cannot be read, or holds no mapping.
    """
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise StoreError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path} is damaged: it should be a mapping")
    return value


def take_number(folder: Path, suffix: str) -> int:
    """The first number of which the folder has no file `<number><suffix>`, which is made: others look too."""
    number = 1
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                (folder / f"{number:03d}{suffix}").touch(exist_ok=False)
            except FileExistsError:
                number += 1
            else:
                return number


@contextmanager
def locked(path: Path, held: str, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Holds the lock of a file, which is made; where the file system has none there is nothing to hold.

    Args:
        path: of the file.
        held: what is wrong where somebody else holds it.
        shared: with others that share it.
        wait: until it is free.

    Raises:
        StoreError: somebody else holds it.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            _take(file, kind if wait else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(held) from None
        except OSError:
            pass  # a file system without locks
        yield


def _take(file: IO[str], kind: int) -> None:
    """Tries twice: `is_held` holds a lock for as long as it looks."""
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        time.sleep(LOOK_S)
        fcntl.flock(file, kind)


def is_held(path: Path) -> bool:
    """Whether somebody on this host holds a file's lock alone, or nobody knows; not without a file."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # held, or a file system without locks
        return True
    return False


def finite(value: Any) -> Any:
    """`value` without NaN and infinities, which JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


def rank_of(samples: Path) -> int:
    """Of `rank3.jsonl` or `rank3.jsonl.gz`."""
    return int(samples.name.split(".")[0].removeprefix("rank"))


def json_lines(path: Path, *, unfinished: bool = False) -> Iterator[dict[str, Any]]:
    """The lines of a file, compressed or not.

    Args:
        path: of the file.
        unfinished: somebody writes to it, or was stopped while at it: a damaged last line is left out.

    Raises:
        StoreError: it cannot be read, or a line is damaged.
    """
    try:
        # A byte that is no UTF-8 becomes \xff, which is no JSON either.
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8", errors="backslashreplace") as file:
            yield from parsed_lines(file, str(path), unfinished=unfinished)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"{path}: cannot be read: {reason}") from error


def parsed_lines(lines: Iterable[str], where: str, *, unfinished: bool) -> Iterator[dict[str, Any]]:
    """What the lines of the file `where` say; see `json_lines`.

    Raises:
        StoreError: a line is damaged.
    """
    left = iter(lines)
    for number, line in enumerate(left, 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            if unfinished and next(left, None) is None:
                return
            raise StoreError(f"{where}, line {number} is damaged: {error}") from error
