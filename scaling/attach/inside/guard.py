"""Files from before the command are neither deleted nor written over by Python; standard library alone."""

from __future__ import annotations

import _thread
import builtins
import functools
import io
import os
import pathlib
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MOST_KEPT = 1000
MOST_COPIED = 256 * 2**20  # bytes of an older file that a run changes; a larger one is not copied
# Where every run writes; parts of paths that stay: what is made anew in every launch takes its time.
QUIET = ("/dev/", "/proc/", "/sys/", "/tmp/torchinductor", "/tmp/torchelastic")  # noqa: S108
CACHES = ("__pycache__", "/.cache/", "/.triton/", "/.nv/")

_ACCESSOR: Any = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10's has the functions of `os` itself
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND


class _Builtin:
    """In a function's place, and bound to no object, as builtins are. Its call gets the function first."""

    def __init__(self, call: Any, original: Any, holder: Any) -> None:
        self._call = functools.partial(call, original)
        functools.update_wrapper(self, original)
        self.__name__, self.__module__ = original.__name__, holder.__name__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._call(*arguments, **named)

    def __reduce__(self) -> str:
        return self.__name__  # pools send functions to their workers


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


class Guard:
    """Calls that would delete, replace or write over an older file do nothing, or write to a copy, which
    later reads are given in all processes of the run. Each path that is kept is a line of a file
    `kept-HOST-PID`; each that is new, of `made-HOST-PID`: moved to the run's folder afterwards."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._out, self._began_s = str(order["out"]), float(order["began_s"])
        self._kept: set[str] = set()
        self._copies = Copies(self._out, self._began_s)
        self.latest = self._copies.latest
        self.changed, self.emptied = (functools.partial(self.instead, is_emptied=of) for of in (False, True))
        self._write = builtins.open
        # Called with each file that is opened to write bytes; the script is given what it returns.
        self.watch: Callable[[Any], Any] = lambda opened: opened
        for holder, names, call in (
            (os, "remove unlink rmdir", self._remove),
            (os, "rename replace", self._rename),
            (os, "mkdir", functools.partial(self._create, 0)),
            (os, "symlink", functools.partial(self._create, 1)),
            (os, "link", self._link),
            (os, "chmod chown lchown utime setxattr removexattr", self._change),
            (os, "open", self._open),
            (os, "truncate", lambda call, path, length: call(self.changed(path), length)),
            (os.path, "getsize", lambda call, filename: call(self.latest(filename))),
            (shutil, "move", self._rename),
            (shutil, "rmtree", self._tree),
        ):
            for name in names.split():
                if hasattr(holder, name):
                    _replace(holder, name, call)
        builtins.open = io.open = self._opened
        if _ACCESSOR is not None:
            _ACCESSOR.open = self._opened

    def refuse(self, reason: str) -> None:
        """Why a run cannot go on; ended by the agent, once there is one."""
        raise PermissionError(reason)

    def _age(self, path: Any, dir_fd: int | None = None, *, is_followed: bool = False) -> str:
        try:
            status = os.stat(path, dir_fd=dir_fd, follow_symlinks=is_followed)
        except (OSError, ValueError, TypeError):
            return "missing"
        is_guarded = stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)
        return "older" if is_guarded and status.st_ctime < self._began_s else "newer"

    def _has_older(self, path: Any) -> bool:
        """Whether something in a folder is older: a folder is as old as its last entry."""
        entries = (os.path.join(at, name) for at, folders, files in os.walk(path) for name in folders + files)
        return any(self._age(entry) == "older" for entry in entries)

    def _keep(self, path: Any, dir_fd: int | None = None, *, is_removed: bool = False) -> None:
        name = os.path.abspath(_absolute(path, dir_fd))
        if is_removed:
            self._copies.note("removed", _entry(name))
        if name.startswith(QUIET) or name in self._kept or len(self._kept) >= MOST_KEPT:
            return
        self._kept.add(name)
        self._copies.note("kept", name)

    def _is_removed(self, path: Any, dir_fd: int | None = None) -> bool:
        """Whether the run has removed it, or a folder that it is in, and it is there all the same."""
        name, removed = _entry(_absolute(path, dir_fd)), self._copies.removed()
        if name in removed:
            return True
        above = [name[:at] for at, letter in enumerate(name) if letter == os.sep]
        return not removed.isdisjoint(above) and (self._age(name) == "older" or self._has_older(name))

    def instead(self, path: Any, *, is_emptied: bool, dir_fd: int | None = None) -> Any:
        """Where what is written to a path goes: there, or to a copy if an older file is there."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        if (status := self._copies.older_file(path, dir_fd)) is None:
            self._make(path, dir_fd)
            return path
        name = os.path.abspath(_absolute(path, dir_fd))
        if name.startswith(QUIET):
            return path
        self._keep(name)
        is_begun = is_emptied or os.path.exists(self._copies.place(status))
        if is_begun or self._is_removed(name):
            return self._copies.begin(status, None)
        if status.st_size > MOST_COPIED:
            self.refuse(
                f"it opens {name} ({status.st_size} bytes) to change it; open it to read, or change a copy"
            )
        return self._copies.begin(status, name)

    def _anew(self, path: Any, dir_fd: int | None = None) -> Any:
        if self._age(path, dir_fd) == "older" and self._is_removed(path, dir_fd):
            return self.instead(path, is_emptied=True, dir_fd=dir_fd)
        self._make(path, dir_fd)
        return path

    def _make(self, path: Any, dir_fd: int | None = None) -> None:
        name = os.path.abspath(_absolute(path, dir_fd))
        is_elsewhere = name.startswith((self._out, *QUIET)) or any(part in name for part in CACHES)
        if not is_elsewhere and not os.path.lexists(name):
            self._copies.note("made", name)

    def _opened(self, file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if not isinstance(mode, str) or isinstance(file, int):
            return self._write(file, mode, *arguments, **named)
        if "x" in mode:
            file = self._anew(file)
        else:
            is_read = not set(mode) & set("wa+")
            file = self.latest(file) if is_read else self.instead(file, is_emptied="w" in mode)
        opened = self._write(file, mode, *arguments, **named)
        return self.watch(opened) if "b" in mode and set(mode) & set("wxa") else opened

    def _open(self, call: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
        if flags & os.O_EXCL:
            place = self._anew(path, dir_fd)
        elif flags & _WRITES:
            place = self.instead(path, is_emptied=bool(flags & os.O_TRUNC), dir_fd=dir_fd)
            flags |= os.O_CREAT if place is not path else 0
        else:
            place = self.latest(path, dir_fd)
        if place is not path:
            return call(place, flags, 0o644)
        return call(path, flags, mode, dir_fd=dir_fd)

    def _remove(self, call: Any, path: Any, *arguments: Any, dir_fd: int | None = None, **named: Any) -> None:
        state = self._age(path, dir_fd)
        if state == "newer" and dir_fd is None and call.__name__ == "rmdir" and self._has_older(path):
            state = "older"
        if state == "older":
            self._keep(path, dir_fd, is_removed=True)
            self._copies.drop(path, dir_fd)
        else:
            more = {} if dir_fd is None else {"dir_fd": dir_fd}
            call(path, *arguments, **more, **named)

    def _rename(self, call: Any, src: Any, dst: Any, *arguments: Any, **named: Any) -> Any:
        if call.__name__ == "move" and os.path.isdir(dst):
            dst = os.path.join(dst, os.path.basename(os.fspath(src).rstrip(os.sep)))
        places = ((src, named.get("src_dir_fd")), (dst, named.get("dst_dir_fd")))
        ages = [self._age(*place) for place in places]
        if ages[0] == "newer" and places[0][1] is None and self._has_older(src):
            ages[0] = "older"
        if ages[0] == "missing" or (ages[0] == "newer" and ages[1] != "older"):
            self._make(*places[1])
            return call(src, dst, *arguments, **named)
        for place, its_age in zip(places, ages, strict=True):
            if its_age == "older":
                self._keep(*place, is_removed=place is places[0])
        if ages == ["newer", "older"]:
            self._put(*places)
        return dst

    def _put(self, source: tuple[Any, int | None], target: tuple[Any, int | None]) -> None:
        """What a rename would put in an older file's place is read there from now on."""
        src, older = _absolute(*source), self._copies.older_file(*target)
        if os.path.isdir(src) and not os.path.islink(src):
            self._copies.note("removed", _entry(src))
        elif older is not None and not os.path.islink(src) and not os.path.islink(_absolute(*target)):
            self._copies.put(src, older)
        else:
            os.unlink(src)

    def _tree(self, call: Any, path: Any, *arguments: Any, **options: Any) -> None:
        is_older = os.path.isdir(path) and not os.path.islink(path) and self._has_older(path)
        if is_older or (self._age(path) == "older" and not (os.path.isdir(path) and os.listdir(path))):
            self._keep(path, is_removed=True)
        elif os.path.lexists(path):
            call(path, *arguments, **options)

    def _create(self, at: int, call: Any, *arguments: Any, **named: Any) -> None:
        """A path that the run has removed is there all the same: to make it again is no error."""
        path = arguments[at] if len(arguments) > at else named[("path", "dst")[at]]
        dir_fd = named.get(("dir_fd", "dst_dir_fd")[at])
        try:
            self._make(path, dir_fd)
            call(*arguments, **named)
        except FileExistsError:
            if not self._is_removed(path, dir_fd):
                raise

    def _link(self, call: Any, src: Any, dst: Any, **named: Any) -> None:
        """A link to an older file would change its time, and what is written to the link would be in it."""
        if self._age(src, named.get("src_dir_fd")) == "older":
            target = os.path.abspath(_absolute(src, named.get("src_dir_fd")))
            os.symlink(target, os.fsdecode(dst), dir_fd=named.get("dst_dir_fd"))
        else:
            self._create(1, call, src, dst, **named)

    def _change(self, call: Any, path: Any, *arguments: Any, **named: Any) -> None:
        """What changes an older file's time, mode or owner would make it a new one."""
        at = path, named.get("dir_fd")
        ages = [self._age(*at, is_followed=is_followed) for is_followed in (False, True)]
        if isinstance(path, int) or "older" not in ages:
            call(path, *arguments, **named)


def _unfinished(place: str) -> str:
    return f"{place}.{os.uname().nodename}-{os.getpid()}-{_thread.get_ident()}"


def _absolute(path: Any, dir_fd: int | None) -> str:
    name = os.fsdecode(os.fspath(path))
    if dir_fd is None or os.path.isabs(name):
        return name
    return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)


def _entry(name: str) -> str:
    """A path by which an entry of a folder is known, whatever links lead to the folder."""
    folder, last = os.path.split(os.path.abspath(name))
    return os.path.join(os.path.realpath(folder), last)


def _replace(holder: Any, name: str, call: Any) -> None:
    """Puts a call in a function's place, in the sets of what a system's functions can do too."""
    original = getattr(holder, name)
    new = _Builtin(call, original, holder)
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if original in known:
            known.add(new)
    setattr(holder, name, new)
    if holder is os and _ACCESSOR is not None and hasattr(_ACCESSOR, name) and name != "open":
        setattr(_ACCESSOR, name, new)
