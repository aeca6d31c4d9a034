"""Files from before the command are neither deleted nor written over by Python; standard library alone."""

from __future__ import annotations

import _thread
import builtins
import errno
import functools
import io
import os
import pathlib
import posix  # its functions are the system's, those of `os` are guarded
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MOST_COPIED = 256 * 2**20  # bytes of an older file that a run changes; a larger one is not copied
GONE = ".gone"  # ends the mark of an older path that the run has removed
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


class _Entries(filter):  # type: ignore[type-arg]
    """What `os.scandir` gives, but for what the run has removed."""

    close: Callable[[], None]

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Copies:
    """In the run's folder: `instead/` has a copy of each older file (before `began_s`) that was written to, a
    link in place of one that leads elsewhere now, a mark of what was removed; named by what identifies it."""

    def __init__(self, out: str, began_s: float) -> None:
        self._out, self.began_s = out, began_s
        self._folder = os.path.join(out, "instead")
        self._is_any = False
        self._noted: set[tuple[str, str]] = set()
        self._move, self._copy = shutil.move, shutil.copyfile

    def note(self, kind: str, name: str) -> None:
        if (kind, name) in self._noted:
            return
        self._noted.add((kind, name))
        self._write(f"{self._out}/{kind}-{os.uname().nodename}-{os.getpid()}", os.fsencode(name) + b"\n")

    def _write(self, path: str, line: bytes) -> None:
        file = posix.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(file, line)
        os.close(file)

    def older_file(self, path: Any, dir_fd: int | None = None) -> os.stat_result | None:
        """The status of the older file that a path leads to; None if it leads to none."""
        status = status_of(path, dir_fd)
        return status if status and stat.S_ISREG(status.st_mode) and status.st_ctime < self.began_s else None

    def place(self, status: os.stat_result) -> str:
        """Where the copy is, if there is one. The number of a device differs between nodes."""
        if stat.S_ISDIR(status.st_mode):  # its time and size change with what is in it
            return f"{self._folder}/{status.st_ino:x}"
        return f"{self._folder}/{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"

    def latest(self, path: Any, dir_fd: int | None = None, *, is_followed: bool = True) -> Any:
        """What to open to read a path: the copy if there is one, else the path. Error if it was removed."""
        path = self.led(path, dir_fd, is_followed=is_followed)
        if not self._is_any or isinstance(path, int):
            return path
        for is_last in (False, True)[: 1 + is_followed]:
            if (status := status_of(path, dir_fd, is_followed=is_last)) is None:
                break
            own = status_of(place := self.place(status), None, is_followed=False)
            if own:
                return place
            if posix.access(place + GONE, os.F_OK):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return path

    def led(self, path: Any, dir_fd: int | None = None, *, is_followed: bool = False) -> Any:
        """The same entry, by what links lead to now. `is_followed`: also if the path itself is one."""
        self._is_any = self._is_any or posix.access(self._folder, os.F_OK)
        if not self._is_any or isinstance(path, int) or not posix.access(f"{self._folder}/links", os.F_OK):
            return path
        name = os.path.abspath(_absolute(path, dir_fd)) + os.sep * is_followed
        for at in [at for at, letter in enumerate(name) if at and letter == os.sep]:
            status = status_of(name[:at], None, is_followed=False)
            with suppress(OSError, AttributeError):  # it is no link, or leads where it did
                target = posix.readlink(self.place(status))  # type: ignore[arg-type]
                led = os.path.join(os.path.dirname(name[:at]), target) + name[at:].rstrip(os.sep)
                return self.led(led, is_followed=is_followed)
        return path

    def is_gone(self, path: Any, dir_fd: int | None = None) -> bool:
        try:
            self.latest(path, dir_fd, is_followed=False)
        except FileNotFoundError:
            return True
        return False

    def begin(self, status: os.stat_result, name: str | None) -> str:
        """Where a file's copy is, made if there is none. `name`: of its content; None: empty."""
        with suppress(FileExistsError):
            posix.mkdir(self._folder)
        place = self.place(status)
        if name is not None and not posix.access(place, os.F_OK):
            unfinished = _unfinished(place)
            self._copy(name, unfinished)
            try:
                posix.link(unfinished, place)
            except OSError:  # a file system without links, or another process was first: its copy stays
                if not posix.access(place, os.F_OK):
                    posix.replace(unfinished, place)
            with suppress(FileNotFoundError):
                posix.unlink(unfinished)
        return place

    def put(self, src: str, dst: str) -> None:
        """A file or link of the run's own is read in an older one's place from now on."""
        unfinished = _unfinished(place := self.begin(posix.lstat(dst), None))
        if os.path.islink(src):
            self._lead(posix.readlink(src), unfinished)
            posix.unlink(src)
        else:
            self._move(src, unfinished)  # from another file system it is a copy
        posix.replace(unfinished, place)

    def restore(self, name: str, target: str | None) -> None:
        """A removed folder is there again, or a link in the place of something else."""
        place = self.place(posix.lstat(name))
        if target is None:
            posix.unlink(place + GONE)
        else:
            self._lead(target, place)

    def _lead(self, target: str, place: str) -> None:
        posix.symlink(target, place)
        self._write(f"{self._folder}/links", b"")

    def remove(self, name: str) -> None:
        place = self.begin(posix.lstat(name), None)
        with suppress(FileNotFoundError):
            posix.unlink(place)
        self._write(place + GONE, b"")


class Guard:
    """What calls would do to an older path is done to a copy, or noted, and seen by all processes of the run.
    A file `kept-HOST-PID` has a line for each; `made-HOST-PID` for new paths: moved to the run's folder."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._out = str(order["out"])
        self._copies = Copies(self._out, float(order["began_s"]))
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
            (os, "stat lstat readlink access", self._look),
            (os, "listdir", self._list),
            (os, "scandir", self._scan),
            (shutil, "move", self._rename),
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
        if (status := status_of(path, dir_fd, is_followed=is_followed)) is None:
            return "missing"
        is_guarded = stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)
        return "older" if is_guarded and status.st_ctime < self._copies.began_s else "newer"

    def _has_older(self, path: Any) -> bool:
        """Whether it is older, or something in it: a folder is as old as its last entry."""
        if self._age(path) == "older":
            return True
        try:
            return any(self._has_older(entry.path) for entry in posix.scandir(path))
        except OSError:  # no folder
            return False

    def _keep(self, path: Any, dir_fd: int | None = None) -> None:
        name = os.path.abspath(_absolute(path, dir_fd))
        if not name.startswith(QUIET):
            self._copies.note("kept", name)

    def _shows(self, folder: Any, name: Any) -> bool:
        at = (name, folder) if isinstance(folder, int) else (os.path.join(folder, name),)
        return not self._copies.is_gone(*at)

    def _list(self, call: Any, path: Any = None) -> Any:
        path = self.latest("." if path is None else path)
        return [name for name in call(path) if self._shows(path, name)]

    def _scan(self, call: Any, path: Any = None) -> Any:
        entries = call(path := self.latest("." if path is None else path))
        shown = _Entries(lambda entry: self._shows(path, entry.name), entries)
        shown.close = entries.close
        return shown

    def _look(self, call: Any, path: Any, *how: Any, dir_fd: int | None = None, **named: Any) -> Any:
        is_followed = named.get("follow_symlinks", call.__name__ in ("stat", "access"))
        try:
            place = self.latest(path, dir_fd, is_followed=is_followed)
        except FileNotFoundError:
            if call.__name__ == "access":
                return False
            raise
        return call(place, *how, dir_fd=dir_fd, **named)

    def instead(self, path: Any, *, is_emptied: bool, dir_fd: int | None = None) -> Any:
        """Where what is written to a path goes: there, or to a copy if an older file is there."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        path = self._copies.led(path, dir_fd, is_followed=True)
        if (status := self._copies.older_file(path, dir_fd)) is None:
            self._make(path, dir_fd)
            return path
        name = os.path.abspath(_absolute(path, dir_fd))
        if name.startswith(QUIET):
            return path
        self._keep(name)
        is_begun = is_emptied or posix.access(self._copies.place(status), os.F_OK)
        if is_begun or self._copies.is_gone(name):
            return self._copies.begin(status, None)
        if status.st_size > MOST_COPIED:
            self.refuse(
                f"it opens {name} ({status.st_size} bytes) to change it; open it to read, or change a copy"
            )
        return self._copies.begin(status, name)

    def _anew(self, path: Any, dir_fd: int | None = None) -> Any:
        path = self._copies.led(path, dir_fd)
        if self._copies.is_gone(path, dir_fd):
            return self.instead(path, is_emptied=True, dir_fd=dir_fd)
        self._make(path, dir_fd)
        return path

    def _make(self, path: Any, dir_fd: int | None = None) -> None:
        name = os.path.abspath(_absolute(path, dir_fd))
        is_elsewhere = name.startswith((self._out, *QUIET)) or any(part in name for part in CACHES)
        if not is_elsewhere and self._age(name) == "missing":
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
        return call(place, flags, mode, dir_fd=dir_fd)

    def _remove(self, call: Any, path: Any, *, dir_fd: int | None = None) -> None:
        path = self._copies.led(path, dir_fd)
        self.latest(path, dir_fd, is_followed=False)  # an error if it was removed before
        name, is_older = _absolute(path, dir_fd), self._age(path, dir_fd) == "older"
        if call.__name__ == "rmdir" and os.path.isdir(name):
            is_older = not os.listdir(name) and (is_older or bool(posix.listdir(name)))
        if is_older:
            self._keep(name)
            self._copies.remove(name)
        else:
            call(path, dir_fd=dir_fd)

    def _rename(self, call: Any, src: Any, dst: Any, *arguments: Any, **named: Any) -> Any:
        if call.__name__ == "move" and os.path.isdir(dst):
            dst = os.path.join(dst, os.path.basename(os.fspath(src).rstrip(os.sep)))
        fds = named.get("src_dir_fd"), named.get("dst_dir_fd")
        src, dst = self._copies.led(src, fds[0]), self._copies.led(dst, fds[1])
        source, target = _absolute(src, fds[0]), _absolute(dst, fds[1])
        self.latest(source, is_followed=False)
        is_older, is_tree = self._has_older(source), os.path.isdir(source) and not os.path.islink(source)
        is_over = self._age(target) == "older" or self._copies.is_gone(target)
        if not (is_older or is_over) or (os.path.isdir(target) and (not is_tree or os.listdir(target))):
            self._make(target)
            return call(src, dst, *arguments, **named)
        if is_tree:
            if not os.path.isdir(target):
                os.mkdir(target)
            for name in os.listdir(source):
                self._rename(call, os.path.join(source, name), os.path.join(target, name))
            os.rmdir(source)
        elif is_older:
            if (size := os.lstat(source).st_size) > MOST_COPIED:
                self.refuse(f"it renames {source} ({size} bytes); leave it where it is, or rename a copy")
            shutil.copyfile(source, target, follow_symlinks=False)
            os.unlink(source)
        else:
            self._keep(target)
            self._copies.put(source, target)
        return dst

    def _create(self, at: int, call: Any, *arguments: Any, **named: Any) -> None:
        """A path that the run has removed is there all the same: to make it again is no error."""
        names, dir_fd = (("path",), ("src", "dst"))[at], named.get(("dir_fd", "dst_dir_fd")[at])
        *before, path = *arguments[: at + 1], *(named.pop(name) for name in names[len(arguments) :])
        path = self._copies.led(path, dir_fd)
        arguments = (*before, path, *arguments[at + 1 :])
        try:
            self._make(path, dir_fd)
            call(*arguments, **named)
        except FileExistsError:
            if not self._copies.is_gone(path, dir_fd):
                raise
            target = os.fsdecode(arguments[0]) if at else None
            if call.__name__ == "link" and target:
                target = os.path.abspath(target)
            self._copies.restore(_absolute(path, dir_fd), target)

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


def status_of(path: Any, dir_fd: int | None, *, is_followed: bool = True) -> os.stat_result | None:
    try:
        return posix.stat(path, dir_fd=dir_fd, follow_symlinks=is_followed)
    except (OSError, ValueError, TypeError):
        return None


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
