"""Locks of folders: the system's, or where a file system has none, the name of the process that holds one."""

from __future__ import annotations

import fcntl
import os
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

from scaling.errors import StoreError
from scaling.files.documents import DocumentError, UnreadableError, read_text
from scaling.store.files import writing

LOOK_S = 0.02  # longer than a look at a lock takes


@contextmanager
def locked(path: Path, refusal: str, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Holds a file's lock, `shared` with others or alone; `wait`: until it is free. StoreError(refusal)."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened as others are, a pipe that nobody reads would keep us waiting; a link may lead to any file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
        file = os.fdopen(os.open(path, flags, 0o666), "w")
    with file:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        named: AbstractContextManager[None] = nullcontext()
        try:
            _take(file, kind if wait else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(refusal) from None
        except OSError:  # a file system without locks
            named = _named_holder(path, file, refusal, shared=shared, wait=wait)
        with named:
            yield


@contextmanager
def _named_holder(path: Path, file: IO[str], refusal: str, *, shared: bool, wait: bool) -> Iterator[None]:
    """As `locked`, among the processes of this host: of another host's nobody knows whether it has ended."""
    without = f"{path.parent}: its file system has no locks; work in it from one host at a time"
    warnings.warn(without, RuntimeWarning, stacklevel=2)
    while _holder_lives(path):
        if not wait:
            raise StoreError(refusal)
        time.sleep(LOOK_S)
    if shared:
        yield
        return
    file.truncate(0)
    file.write(" ".join(_process(os.getpid())))
    file.flush()
    try:
        yield
    finally:
        with suppress(OSError):
            file.truncate(0)


def _process(pid: object) -> list[str]:
    """Host, number and start of a process, since numbers are given anew; nothing where there is none."""
    with suppress(OSError):
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return [platform.node(), str(pid), began]
    return []


def _holder_lives(path: Path) -> bool:
    """Whether the process of this host lives that a lock's file names."""
    with suppress(UnreadableError, DocumentError):
        named = read_text(path).split()
        return len(named) == 3 and _process(named[1]) == named
    return False


def _take(file: IO[str], kind: int) -> None:
    """Tries twice: `is_held` holds a lock for as long as it looks."""
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        time.sleep(LOOK_S)
        fcntl.flock(file, kind)


def is_held(path: Path) -> bool:
    """Whether somebody on this host holds a file's lock alone; not without a file."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):
        return True
    except OSError:  # a file system without locks
        return _holder_lives(path)
    return False
