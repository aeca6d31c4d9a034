"""Downloads that are resumed, checked and seen whole or not at all.

A file is written to `<name>.part` in the same folder, locked, so that any number of processes may download
it:
1. what an earlier try has left there is not asked for again (Range: R. Fielding et al., RFC 9110, 14.2);
2. a whole file must have the published MD5; a resumed one that has not is begun anew, once;
3. then it is renamed.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# To connect, and between two packets. Long enough for a slow proxy, short enough to try the next mirror.
TIMEOUT_S = 10.0
BLOCK_BYTES = 1 << 20


class DownloadError(Exception):
    """No address delivers the file; its text says why of each, and whether something is kept."""


def download(urls: Sequence[str], target: Path, md5: str) -> None:
    """Downloads a file to `target`, unless another process is faster.

    Args:
        urls: where it is, tried in this order.
        target: the new file; its folder is made if need be.
        md5: of the file, in hexadecimal.

    Raises:
        DownloadError: no address delivers it. What has come is kept for the next try.
        OSError: it cannot be stored.
    """
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
            _check(part, md5)
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
    """Yields (position in the file, bytes): from `start` on, or from 0 if the mirror knows no ranges.

    Errors of the network are raised as _TransferError, so that an OSError of the caller is one of storing.
    """
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})  # noqa: S310 (of our own tables)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            if response.status == http.HTTPStatus.PARTIAL_CONTENT:
                if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                    raise _WrongContentError(f"sent range {response.headers.get('Content-Range')!r}")
                position = start
            else:
                position = 0
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


def _check(part: BinaryIO, md5: str) -> None:
    if (digest := _md5_of_file(part)) != md5:
        raise _WrongContentError(f"{_size_bytes(part):,} bytes with MD5 {digest}")


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
