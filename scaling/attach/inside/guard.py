"""What was there before the command is neither deleted nor written over by Python, in any process of a run.

It is there from the start of each Python on, before torch is, and has the standard library alone.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import pathlib
import shutil
import stat
import zlib
from collections.abc import Callable
from typing import Any

MOST_KEPT = 1000
MOST_COPIED = 256 * 2**20
"""Bytes of an older file that a run changes in a copy; a larger one is not copied for each run."""

QUIET = ("/dev/", "/proc/", "/sys/", "/tmp/torchinductor", "/tmp/torchelastic")  # noqa: S108
"""Where every run writes."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND


def _refuse(reason: str) -> None:
    raise PermissionError(reason)


class _Builtin:
    """A function that is bound to no object, as builtins are."""

    def __init__(self, call: Any, original: Any) -> None:
        self._call = call
        functools.update_wrapper(self, original)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._call(*arguments, **named)


class Guard:
    """Of one process, and of those that it forks.

    Calls that would delete, replace or write over an older file do nothing, or write elsewhere. A file that
    is not there is none to delete or rename either: it may be a checkpoint that was not saved. Each path that
    is kept is a line of a file `kept-PID`.

    Args:
        order: of the run.

    Attributes:
        refuse: called with a reason where a run cannot go on.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self._out, self._began_s = str(order["out"]), float(order["began_s"])
        self._kept: set[str] = set()
        self._open, self._write, self._copy = os.open, builtins.open, shutil.copyfile
        self.refuse: Callable[[str], None] = _refuse
        for name in ("remove", "unlink", "rmdir"):
            _replace(os, name, self._removal(getattr(os, name)))
        for holder, name in ((os, "rename"), (os, "replace"), (shutil, "move")):
            _replace(holder, name, self._renaming(getattr(holder, name)))
        self._remove_tree, self._truncate = shutil.rmtree, os.truncate
        _replace(os, "open", self._opened_low)
        _replace(os, "truncate", self._truncated)
        shutil.rmtree = self._tree  # type: ignore[assignment]
        builtins.open = io.open = self._opened

    def _age(self, path: Any, dir_fd: int | None = None) -> str:
        try:
            status = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        except (OSError, ValueError, TypeError):
            return "missing"
        is_guarded = (
            stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode) or stat.S_ISDIR(status.st_mode)
        )
        return "older" if is_guarded and status.st_ctime < self._began_s else "newer"

    def _keep(self, path: Any, dir_fd: int | None = None) -> None:
        name = os.path.abspath(_absolute(path, dir_fd))
        if name.startswith(QUIET) or name in self._kept or len(self._kept) >= MOST_KEPT:
            return
        self._kept.add(name)
        file = self._open(f"{self._out}/kept-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(file, os.fsencode(name) + b"\n")
        os.close(file)

    def instead(self, path: Any, *, is_emptied: bool, dir_fd: int | None = None) -> Any:
        """Where what is written to a path goes: there, or to a copy if an older file is there."""
        if not isinstance(path, (str, os.PathLike)) or self._age(path, dir_fd) != "older":
            return path
        name = os.path.abspath(_absolute(path, dir_fd))
        if not os.path.isfile(name) or name.startswith(QUIET):
            return path
        self._keep(name)
        place = (
            f"{self._out}/instead-{os.getpid()}-{zlib.crc32(os.fsencode(name)):x}-{os.path.basename(name)}"
        )
        if not is_emptied and not os.path.exists(place):
            if (size := os.path.getsize(name)) > MOST_COPIED:
                self.refuse(f"it opens {path} ({size} bytes) to change it; open it to read, or change a copy")
            self._copy(name, place)
        return place

    def _opened(self, file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if isinstance(mode, str) and any(letter in mode for letter in "wa+"):
            file = self.instead(file, is_emptied="w" in mode)
        return self._write(file, mode, *arguments, **named)

    def _opened_low(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & _WRITES and not flags & os.O_EXCL:
            place = self.instead(path, is_emptied=bool(flags & os.O_TRUNC), dir_fd=dir_fd)
            if place is not path:
                return self._open(place, flags | os.O_CREAT, 0o644)
        return self._open(path, flags, mode, dir_fd=dir_fd)

    def _truncated(self, path: Any, length: int) -> None:
        self._truncate(self.instead(path, is_emptied=False), length)

    def _removal(self, call: Any) -> Any:
        def remove(path: Any, *arguments: Any, dir_fd: int | None = None, **named: Any) -> Any:
            state = self._age(path, dir_fd)
            if state == "older":
                self._keep(path, dir_fd)
            elif state == "newer":
                more = {} if dir_fd is None else {"dir_fd": dir_fd}
                call(path, *arguments, **more, **named)

        return remove

    def _renaming(self, call: Any) -> Any:
        def rename(src: Any, dst: Any, *arguments: Any, **named: Any) -> Any:
            places = ((src, named.get("src_dir_fd")), (dst, named.get("dst_dir_fd")))
            ages = [self._age(*place) for place in places]
            if ages[0] == "newer" and ages[1] != "older":
                return call(src, dst, *arguments, **named)
            for place, its_age in zip(places, ages, strict=True):
                if its_age == "older":
                    self._keep(*place)
            return dst

        return rename

    def _tree(self, path: Any, *arguments: Any, **options: Any) -> None:
        walked = os.walk(path)
        inside = [
            os.path.join(place, name) for place, folders, files in walked for name in (*folders, *files)
        ]
        if any(self._age(name) == "older" for name in inside or [path]):
            self._keep(path)
        elif os.path.lexists(path):
            self._remove_tree(path, *arguments, **options)


def _absolute(path: Any, dir_fd: int | None) -> str:
    name = os.fsdecode(os.fspath(path))
    if dir_fd is None or os.path.isabs(name):
        return name
    return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)


def _replace(holder: Any, name: str, call: Any) -> None:
    """Puts a call in a function's place, in the sets of what a system's functions can do too."""
    original = getattr(holder, name)
    new = _Builtin(call, original)
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if original in known:
            known.add(new)
    setattr(holder, name, new)
    accessor: Any = getattr(
        pathlib, "_NormalAccessor", None
    )  # of Python 3.10, which has the functions itself
    if holder is os and accessor is not None and hasattr(accessor, name) and name != "open":
        setattr(accessor, name, new)


def after_subprocess(module: Any, path: str, order: str) -> None:
    """Programs that are started with an environment of their own have the guard too, if they are Python."""
    begin = module.Popen.__init__

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        if (own := named.get("env")) is not None and "SCALING_ATTACH" not in own:
            known = [path, own["PYTHONPATH"]] if own.get("PYTHONPATH") else [path]
            named["env"] = {**own, "PYTHONPATH": os.pathsep.join(known), "SCALING_ATTACH": order}
        begin(self, *arguments, **named)

    module.Popen.__init__ = init


def after_sqlite3(module: Any, guard: Guard) -> None:
    """A data base that is older is changed in a copy."""
    connect = module.connect

    def connected(database: Any, *arguments: Any, **named: Any) -> Any:
        return connect(guard.instead(database, is_emptied=False), *arguments, **named)

    module.connect = connected


def after_h5py(module: Any, guard: Guard) -> None:
    """Its files are opened by a library in C."""
    begin = module.File.__init__

    def init(self: Any, name: Any, mode: str = "r", *arguments: Any, **named: Any) -> None:
        if mode in ("w", "a", "r+"):
            name = guard.instead(name, is_emptied=mode == "w")
        begin(self, name, mode, *arguments, **named)

    module.File.__init__ = init
