"""The checkpoints of a training that is under way."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from scaling.files.documents import DocumentError, read_bytes
from scaling.store.files import write_whole, writing


@dataclass(frozen=True)
class CheckpointFiles:
    """The checkpoints of one rank in one run: the last one, and the one before. A rank may be cut off when it
    has written and another has not: the one before is what both have. `stem`: of the files' names."""

    folder: Path
    stem: str

    @property
    def _last(self) -> Path:
        return self.folder / f"{self.stem}.pt"

    @property
    def _before(self) -> Path:
        return self.folder / f"{self.stem}.before.pt"

    def read(self) -> list[tuple[Path, bytes | None]]:
        """The files that there are, the last first, with their contents; None where one cannot be read."""
        contents: list[tuple[Path, bytes | None]] = []
        for path in (self._last, self._before):
            try:
                contents.append((path, read_bytes(path)))
            except FileNotFoundError:
                continue
            except DocumentError:
                contents.append((path, None))
        return contents

    def write(self, content: bytes) -> None:
        """A new one; of those before, the last is kept."""
        if self._last.is_file():
            with writing(self._before):
                _make_room(self._before)
                os.replace(self._last, self._before)
        with writing(self._last):
            _make_room(self._last)
        write_whole(self._last, content)

    def clear(self) -> None:
        for path in (self._last, self._before):
            with writing(path):
                _make_room(path)
                path.unlink(missing_ok=True)


def _make_room(path: Path) -> None:
    """Removes a folder that stands in a file's place, which no file replaces."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
