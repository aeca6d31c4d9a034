"""Which files the runs of an attached script wrote, spared or changed."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_FILES = 20_000  # that are compared before and after; of a working folder with more, none is
_State = tuple[int, int, int]  # a file's inode, bytes and when it was changed
_States = dict[str, _State]


def noted(out: Path, files: str, errors: str = "surrogateescape") -> list[str]:
    texts = [path.read_bytes().decode(errors=errors) for path in out.glob(files)]
    return sorted({name for text in texts for name in text.split("\n") if name})


def take_files(out: Path, cwd: Path) -> None:
    """Moves what a run has made on this host, and its Python has noted, to the run's folder."""
    for name in reversed(noted(out, f"made-{platform.node()}-*")):  # what is in a folder before the folder
        path = Path(name)
        with suppress(OSError):  # gone meanwhile, or a folder that has more in it
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            elif os.path.lexists(path):
                inside = path.relative_to(cwd) if path.is_relative_to(cwd) else Path(*path.parts[1:])
                target = out / "files" / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, target)


def say_files(
    ranks: Sequence[dict[str, Any]],
    out: Path,
    cwd: Path,
    before: _States | None,
    after: _States | None,
    say: Callable[[str], None],
) -> None:
    appeared, changed = list[str](), list[str]()
    if before is not None and after is not None:
        appeared = sorted(after.keys() - before.keys())
        changed = sorted(name for name, state in before.items() if not _only_grew(state, after.get(name)))
    if appeared:
        say(f"the script wrote {_some(appeared)}")
    taken = [path for launch in sorted((out / "launches").glob("*/files")) for path in launch.rglob("*")]
    if moved := [str(path.relative_to(out)) for path in taken if path.is_file()]:
        say(f"what it wrote is in {out}: {_some(moved)}")
    if spared := sorted({str(path) for rank in ranks for path in rank.get("kept", [])}):
        say(f"it would have deleted or changed {_some(spared)}: left as before")
    if changed:
        say(f"changed meanwhile: {_some(changed)}; by something other than the script's Python")
    if before is None or after is None:
        say(f"more than {MOST_FILES:,} files are here: which others appeared or changed is not known")


def _only_grew(before: _State, after: _State | None) -> bool:
    return after is not None and (after == before or (after[0] == before[0] and after[1] > before[1]))


def _some(paths: Sequence[str]) -> str:
    return f"{len(paths)} file{'s' * (len(paths) > 1)}: {', '.join(paths[:5])}{', ...' * (len(paths) > 5)}"


def files_below(root: Path, out: Path) -> _States | None:
    states, own = _States(), set[tuple[int, int]]()
    for stream in (1, 2):
        with suppress(OSError):  # closed
            own.add((os.fstat(stream).st_dev, os.fstat(stream).st_ino))
    for place, folders, files in os.walk(root):
        folders[:] = [
            name for name in folders if name != "__pycache__" and Path(place, name).resolve() != out.resolve()
        ]
        for name in files:
            path = Path(place, name)
            with suppress(OSError):  # gone meanwhile
                state = path.lstat()
                if (state.st_dev, state.st_ino) not in own:
                    states[os.path.relpath(path, root)] = state.st_ino, state.st_size, state.st_mtime_ns
        if len(states) > MOST_FILES:
            return None
    return states
