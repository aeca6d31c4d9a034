"""Which files the runs of an attached script wrote, spared or changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from scaling.attach.measured import Measured

MOST_FILES = 20_000
"""Files of the working folder that are compared before and after; of a folder with more, none is."""

_State = tuple[int, int, int]
"""A file's inode, bytes and when it was changed."""

_States = dict[str, _State]


def say_files(
    measured: Measured, cwd: Path, before: _States | None, after: _States | None, say: Callable[[str], None]
) -> None:
    """Which files appeared, were spared or changed during the runs."""
    written = [path for path in _named(measured, "written") if Path(path).exists()]
    appeared, changed = list[str](), list[str]()
    if before is not None and after is not None:
        written = [path for path in written if not Path(path).is_relative_to(cwd)]
        appeared = sorted(after.keys() - before.keys())
        changed = sorted(name for name, state in before.items() if not _only_grew(state, after.get(name)))
    if appeared or written:
        say(f"the script wrote {_some([*appeared, *written])}")
    if spared := _named(measured, "kept"):
        say(f"it would have deleted or changed {_some(spared)}: left as before")
    if changed:
        say(f"changed meanwhile: {_some(changed)}; by something other than the script's Python")
    if before is None or after is None:
        say(f"more than {MOST_FILES:,} files are here: which others appeared or changed is not known")


def _only_grew(before: _State, after: _State | None) -> bool:
    """Whether a file is as it was, or longer, as a log of this command is."""
    return after is not None and (after == before or (after[0] == before[0] and after[1] > before[1]))


def _named(measured: Measured, fact: str) -> list[str]:
    """Paths that the ranks of any run have recorded under that name."""
    ranks = [rank for ranks in measured.facts.values() for rank in ranks]
    return sorted({str(path) for rank in ranks for path in rank.get(fact, [])})


def _some(paths: Sequence[str]) -> str:
    """How many, and the first ones."""
    return f"{len(paths)} file{'s' * (len(paths) > 1)}: {', '.join(paths[:5])}{', ...' * (len(paths) > 5)}"


def files_below(root: Path, out: Path) -> _States | None:
    """Files below a folder, without those of the results and this process's own output; None if too many."""
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
