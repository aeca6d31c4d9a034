"""The checkpoints of a training that is under way."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from scaling.errors import StoreError
from scaling.store.files import write_whole, writing


@dataclass(frozen=True)
class CheckpointFiles:
    """The checkpoints of one rank in one run: the last one, and the one before.

    A rank may be cut off when it has written and another has not: the one before is what both have.

    Attributes:
        folder: of the run.
        stem: of the files' names.
    """

    folder: Path
    stem: str

    @property
    def _last(self) -> Path:
        return self.folder / f"{self.stem}.pt"

    @property
    def _before(self) -> Path:
        return self.folder / f"{self.stem}.before.pt"

    def read(self) -> list[bytes]:
        """Those that there are, the last one first.

        Raises:
            StoreError: one cannot be read.
        """
        contents = []
        for path in (self._last, self._before):
            try:
                contents.append(path.read_bytes())
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
        return contents

    def write(self, content: bytes) -> None:
        """A new one; of those before, the last is kept."""
        if self._last.exists():
            with writing(self._before):
                os.replace(self._last, self._before)
        write_whole(self._last, content)

    def clear(self) -> None:
        """Removes them."""
        for path in (self._last, self._before):
            with writing(path):
                path.unlink(missing_ok=True)
