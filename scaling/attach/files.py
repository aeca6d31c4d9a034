"""Which files the runs of an attached script wrote, spared or changed."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_FILES = 20_000  # of a working folder with more none is looked at


def noted(out: Path, files: str, errors: str = "surrogateescape") -> list[str]:
    texts = [path.read_bytes().decode(errors=errors) for path in out.glob(files)]
    return sorted({name for text in texts for name in text.split("\n") if name})


def take_files(out: Path, cwd: Path) -> None:
    """Moves what a run has made on this host, and its Python has noted, to the run's folder."""
    for path in map(Path, noted(out, f"made-{platform.node()}-*")):
        inside = path.relative_to(cwd) if path.is_relative_to(cwd) else Path(*path.parts[1:])
        _take(path, out / "files" / inside)


def _take(path: Path, target: Path) -> None:
    with suppress(OSError):  # gone meanwhile
        if path.is_dir() and not path.is_symlink():
            for entry in list(path.iterdir()):
                _take(entry, target / entry.name)
            path.rmdir()
        elif os.path.lexists(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)


def say_files(
    ranks: Sequence[dict[str, Any]], out: Path, cwd: Path, began_s: float, say: Callable[[str], None]
) -> None:
    taken = [path for launch in sorted((out / "launches").glob("*/files")) for path in launch.rglob("*")]
    if moved := [str(path.relative_to(out)) for path in taken if path.is_file()]:
        say(f"what it wrote is in {out}: {_some(moved)}")
    if spared := sorted({str(path) for rank in ranks for path in rank.get("kept", [])}):
        say(f"it would have deleted or changed {_some(spared)}: left as before")
    if (changed := _changed_since(began_s, cwd, out)) is None:
        say(f"more than {MOST_FILES:,} files are here: which others appeared or changed is not known")
    elif changed:
        say(f"written meanwhile: {_some(changed)}; by something other than the script's Python")


def _some(paths: Sequence[str]) -> str:
    return f"{len(paths)} file{'s' * (len(paths) > 1)}: {', '.join(paths[:5])}{', ...' * (len(paths) > 5)}"


def _changed_since(began_s: float, root: Path, out: Path) -> list[str] | None:
    found, count, own = list[str](), 0, set[tuple[int, int]]()
    for stream in (1, 2):
        with suppress(OSError):  # closed
            own.add((os.fstat(stream).st_dev, os.fstat(stream).st_ino))
    for place, folders, files in os.walk(root):
        folders[:] = [
            name for name in folders if name != "__pycache__" and Path(place, name).resolve() != out.resolve()
        ]
        if (count := count + len(files)) > MOST_FILES:
            return None
        for path in (Path(place, name) for name in files):
            with suppress(OSError):  # gone meanwhile
                state = path.lstat()
                if state.st_ctime >= began_s and (state.st_dev, state.st_ino) not in own:
                    found.append(os.path.relpath(path, root))
    return sorted(found)
