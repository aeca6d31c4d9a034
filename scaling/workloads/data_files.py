"""The published files of data sets: where they are looked for, downloaded, checked, and kept decoded.

A file is looked for in $SCALING_DATA_DIR/<data set> and then in the user's cache; the first one found counts.
A damaged one is an error, never passed over nor overwritten: whoever put it there has to know.

A download is written to `<name>.part`, locked, so that any number of processes may download it, and goes on
where an earlier try has ended (Range: RFC 9110, 14.2). A resumed file with the wrong MD5 is begun anew, once.

Decoded arrays are in the user's cache, which ranks map into memory: a line of JSON (shapes, the CRC-32 of
what follows), then the arrays' bytes. The name has a digest of the files that it was made of, with sizes and
times of change. A damaged one is decoded anew; one that cannot be written is no error.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import math
import os
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from scaling.errors import DataError


@dataclass(frozen=True)
class DataFile:
    """A published file: its name and the MD5 of its bytes, in hexadecimal."""

    name: str
    md5: str


@dataclass(frozen=True)
class DataHome:
    """`title` is the data set's name in messages ("MNIST"), `folder` in paths ("mnist")."""

    title: str
    folder: str

    def folders(self, environment: Mapping[str, str]) -> list[Path]:
        """In order; the last one is the cache. DataError: SCALING_DATA_DIR is set, but is not a folder."""
        caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache = caches / "scaling-study" / self.folder
        data_dir = environment.get("SCALING_DATA_DIR")
        if not data_dir:
            return [cache]
        if not Path(data_dir).is_dir():
            raise DataError(
                f"SCALING_DATA_DIR is {data_dir!r}, which is not a folder; "
                f"set it to the folder that holds {self.folder}/, or unset it"
            )
        return [Path(data_dir) / self.folder, cache]

    def read_checked(self, file: DataFile, folders: Sequence[Path]) -> bytes:
        """The file's bytes, as published. DataError: it is missing, cannot be read, or has the wrong MD5."""
        path = find(file.name, folders)
        if path is None:
            raise DataError(
                f"{self.title}: {file.name} (MD5 {file.md5}) is missing; {looked_in(folders)}. Fetch the "
                "data set, put its files into one of these folders, or set SCALING_DATA_DIR to a folder that "
                f"holds {self.folder}/"
            )
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{self.title}: {path} (MD5 {file.md5}) cannot be read: {error}; {looked_in(folders)}. "
                "Make it readable, or remove it and fetch the data set again"
            ) from error
        if (md5 := md5_of(content)) != file.md5:
            raise DataError(
                f"{self.title}: {path} is damaged: its {len(content):,} bytes have MD5 {md5}, expected "
                f"{file.md5}; {looked_in(folders)}. Remove it and fetch the data set again, or replace it by "
                "an intact copy"
            )
        return content

    def fetch(self, file: DataFile, folders: Sequence[Path], mirrors: Sequence[str]) -> None:
        """Checks the file if it is there, else downloads it. DataError as of these."""
        if find(file.name, folders) is None:
            self.download(file, folders, mirrors)
        else:
            self.read_checked(file, folders)

    def download(self, file: DataFile, folders: Sequence[Path], mirrors: Sequence[str]) -> None:
        """`mirrors`: end in "/", tried in order. DataError: none delivers, or storing fails."""
        target = folders[-1] / file.name
        try:
            download([mirror + file.name for mirror in mirrors], target, file.md5)
        except DownloadError as error:
            raise DataError(
                f"{self.title}: {file.name} (MD5 {file.md5}) cannot be downloaded: {error}; "
                f"{looked_in(folders)}. Put the data set's files into one of these folders by hand, "
                f"or set SCALING_DATA_DIR to a folder that holds {self.folder}/"
            ) from error
        except OSError as error:
            raise DataError(
                f"{self.title}: cannot store {target}: {error}; set XDG_CACHE_HOME to a writable folder"
            ) from error


def find(name: str, folders: Sequence[Path]) -> Path | None:
    # lexists: a link to nowhere is a damaged file, not a missing one.
    return next((folder / name for folder in folders if os.path.lexists(folder / name)), None)


def looked_in(folders: Sequence[Path]) -> str:
    return "looked in " + ", ".join(map(str, folders))


def md5_of(content: bytes) -> str:
    """MD5 in hexadecimal: against damage, not against attack (machines in FIPS mode allow it then)."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


# To connect, and between two packets. Long enough for a slow proxy, short enough to try the next mirror.
TIMEOUT_S = 10.0
BLOCK_BYTES = 1 << 20


class DownloadError(Exception):
    """No address delivers the file; its text says why of each, and whether something is kept."""


def download(urls: Sequence[str], target: Path, md5: str) -> None:
    """Downloads a file to `target`, unless another process is faster; addresses are tried in this order.
    DownloadError: none delivers it; what has come is kept for the next try. OSError: it cannot be stored."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{target.name}.part")) as part:
        if os.path.lexists(target):
            return
        reasons = []
        for url in urls:
            try:
                _complete(part, url, md5)
            except _TransferError as error:
                reasons.append(f"{url}: {error}")
            else:
                os.replace(part.name, target)
                return
        if kept_bytes := _size_bytes(part):
            reasons.append(f"the {kept_bytes:,} bytes that came are kept, try again to go on")
    raise DownloadError("; ".join(reasons))


class _TransferError(Exception):
    """A mirror does not deliver; its text says why."""


class _WrongContentError(_TransferError):
    """What is there now is not the beginning, or not the whole, of the file."""


def _complete(part: BinaryIO, url: str, md5: str) -> None:
    start = _size_bytes(part)
    try:
        # Left behind whole by a process that ended before it could rename.
        if not start or _md5_of_file(part) != md5:
            _append(part, url, start)
            if (digest := _md5_of_file(part)) != md5:
                raise _WrongContentError(f"{_size_bytes(part):,} bytes with MD5 {digest}")
    except _WrongContentError:
        part.truncate(0)
        if not start:
            raise
        _complete(part, url, md5)


def _append(part: BinaryIO, url: str, start: int) -> None:
    with closing(_receive(url, start)) as received:
        for position, block in received:
            if position == 0:  # this mirror sends the whole
                part.truncate(0)
            part.write(block)


def _receive(url: str, start: int) -> Generator[tuple[int, bytes], None, None]:
    """(position, bytes) from `start`, or 0 without ranges. _TransferError: of the network alone."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})  # noqa: S310 (of our own tables)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            is_part = response.status == http.HTTPStatus.PARTIAL_CONTENT
            if is_part and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise _WrongContentError(f"sent range {response.headers.get('Content-Range')!r}")
            position = start if is_part else 0
            length = response.headers.get("Content-Length")
            stop = None if length is None else position + int(length)
            while block := response.read(BLOCK_BYTES):
                yield position, block
                position += len(block)
            if stop is not None and position < stop:
                raise _TransferError(f"broke off after {position:,} of {stop:,} bytes")
    except urllib.error.HTTPError as error:
        refused = error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        raise (_WrongContentError if refused else _TransferError)(error) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _TransferError(error) from error


def _md5_of_file(file: BinaryIO) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    file.seek(0)
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def _size_bytes(file: BinaryIO) -> int:
    file.flush()
    return os.fstat(file.fileno()).st_size


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Opens `path` to read and append, alone: others wait. It is removed at the end if it is empty."""
    while True:
        with open(path, "ab+") as file:
            # A file system without locks: the MD5 tells if two have written at once.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(file, path):
                continue  # whoever had the lock has renamed or removed it
            try:
                yield file
            finally:
                if not _size_bytes(file):
                    path.unlink(missing_ok=True)
            return


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


Bytes = npt.NDArray[np.uint8]

PREFIX = "decoded-"
LONGEST_HEADER = 4096


def decoded(folder: Path, sources: Sequence[Path], decode: Callable[[], Sequence[Bytes]]) -> Sequence[Bytes]:
    """From the cache `folder` where that has it; read-only. Any process may. All sources exist."""
    path = folder / f"{PREFIX}{_key(sources)}"
    if (mapped := _mapped(path)) is not None:
        return mapped
    arrays = decode()
    with suppress(OSError):  # a full disk, a cache that is read-only: decoded each time
        _store(path, arrays)
    return arrays


def _key(sources: Sequence[Path]) -> str:
    facts = [(str(path), status.st_size, status.st_mtime_ns) for path in sources for status in [path.stat()]]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _mapped(path: Path) -> list[Bytes] | None:
    try:
        with path.open("rb") as file:
            header = file.readline(LONGEST_HEADER)
        known = json.loads(header)
        values = np.memmap(path, np.uint8, "r", offset=len(header))
        ends = np.cumsum([math.prod(shape) for shape in known["shapes"]])
        if zlib.crc32(values.data) != known["crc32"] or ends[-1] != len(values):
            return None
        parts = np.split(values, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, known["shapes"], strict=True)]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _store(path: Path, arrays: Sequence[Bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    header = json.dumps({"shapes": [array.shape for array in arrays], "crc32": checksum})
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".decoded-")
    try:
        with open(descriptor, "wb") as file:
            file.write(f"{header}\n".encode())
            for array in arrays:
                file.write(np.ascontiguousarray(array).data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    for other in path.parent.glob(f"{PREFIX}*"):
        if other != path:
            other.unlink(missing_ok=True)
