"""What the processes of a run have written in place of older files, and removed: standard library alone."""

from __future__ import annotations

import _thread
import os
import shutil
import stat
from contextlib import suppress
from typing import Any


class Copies:
    """In the run's folder: `instead/` has one copy for each older file (before `began_s`) that was written
    to, named by what identifies it; `removed-HOST-PID` a line for each path that was removed."""

    def __init__(self, out: str, began_s: float) -> None:
        self._out, self._began_s = out, began_s
        self._folder = os.path.join(out, "instead")
        self._is_any = False
        self._noted: set[tuple[str, str]] = set()
        self._open, self._unlink, self._mkdir = os.open, os.unlink, os.mkdir
        self._link, self._replace, self._move, self._copy = os.link, os.replace, shutil.move, shutil.copyfile

    def note(self, kind: str, name: str) -> None:
        if (kind, name) in self._noted:
            return
        self._noted.add((kind, name))
        path = f"{self._out}/{kind}-{os.uname().nodename}-{os.getpid()}"
        file = self._open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(file, os.fsencode(name) + b"\n")
        os.close(file)

    def removed(self) -> set[str]:
        names = set[str]()
        for entry in os.listdir(self._out):
            if entry.startswith("removed-"):
                with os.fdopen(self._open(f"{self._out}/{entry}", os.O_RDONLY), "rb") as lines:
                    names.update(os.fsdecode(line.rstrip(b"\n")) for line in lines)
        return names

    def older_file(self, path: Any, dir_fd: int | None = None) -> os.stat_result | None:
        """The status of the older file that a path leads to; None if it leads to none."""
        try:
            status = os.stat(path, dir_fd=dir_fd)
        except (OSError, ValueError, TypeError):
            return None
        return status if stat.S_ISREG(status.st_mode) and status.st_ctime < self._began_s else None

    def place(self, status: os.stat_result) -> str:
        """Where the copy of a file is, if there is one. The number of a device differs between nodes."""
        return f"{self._folder}/{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"

    def latest(self, path: Any, dir_fd: int | None = None) -> Any:
        """What to open to read a path: the copy if there is one, else the path."""
        if not self._is_any:
            if not os.access(self._folder, os.F_OK):
                return path
            self._is_any = True
        if isinstance(path, int) or (status := self.older_file(path, dir_fd)) is None:
            return path
        place = self.place(status)
        return place if os.access(place, os.F_OK) else path

    def begin(self, status: os.stat_result, name: str | None) -> str:
        """Where a file's copy is, made if there is none. `name`: of its content; None: empty."""
        with suppress(FileExistsError):
            self._mkdir(self._folder)
        place = self.place(status)
        if name is not None and not os.path.exists(place):
            unfinished = _unfinished(place)
            self._copy(name, unfinished)
            try:
                self._link(unfinished, place)
            except OSError:  # a file system without links, or another process was first: its copy stays
                if not os.path.exists(place):
                    self._replace(unfinished, place)
            with suppress(FileNotFoundError):
                self._unlink(unfinished)
        return place

    def put(self, src: Any, status: os.stat_result) -> None:
        """A file of the run's own becomes the copy of an older one."""
        place = self.begin(status, None)
        self._move(os.fspath(src), unfinished := _unfinished(place))  # from another file system it is a copy
        self._replace(unfinished, place)

    def drop(self, path: Any, dir_fd: int | None = None) -> None:
        if (status := self.older_file(path, dir_fd)) is not None:
            with suppress(OSError):
                self._unlink(self.place(status))


def _unfinished(place: str) -> str:
    return f"{place}.{os.uname().nodename}-{os.getpid()}-{_thread.get_ident()}"
