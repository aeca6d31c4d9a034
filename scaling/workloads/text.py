"""`text`: the bytes of a file or folder, for models of tokens: no tokenizer, no download, 256 tokens.

Files of a folder and its subfolders follow each other by name. The bytes are cut into pieces of the model's
context; the target of each byte is the next one. The last tenth is the test split: by position, so that no
test text is close to one that was learned. Without a path it is the modules of Python's standard library,
directly in its folder; the checksum's name tells the version. The loss in nats a byte, divided by ln 2,
compares models of any tokenizer.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from pydantic import PositiveInt

from scaling.errors import DataError, StudyError
from scaling.workloads.base import Dataset, DataShape, DataSplits, Split

NUM_BYTES = 256
TEST_SHARE = 10  # one piece of so many is tested on


@final
@dataclass(frozen=True)
class Text(Dataset):
    """Bytes of `path`, a file or all files of a folder (None: Python's standard library), `max_bytes` at
    most, each predicted from those before it."""

    name = "text"
    source = "bytes of a file or folder; without a path, of Python's standard library"
    bits_per_byte = True

    path: str | None = None
    max_bytes: PositiveInt | None = None

    def shape(self, model_shape: DataShape | None) -> DataShape:
        """The model's context, and 256 classes."""
        if model_shape is None or not model_shape.tokens or len(model_shape.input_shape) != 1:
            raise StudyError(
                "data set 'text' is for models of tokens; use one such as {name: gpt, size: nano}"
            )
        return DataShape(model_shape.input_shape, NUM_BYTES, tokens=True)

    def available(self) -> bool:
        return bool(self._files())

    def fetch(self) -> None:
        if not self._files():
            where = f"path {self.path!r}" if self.path else f"Python's standard library, {_library()},"
            raise DataError(f"data set 'text': {where} has no files to read; set path to a file or folder")

    def num_samples(self, shape: DataShape) -> int:
        total = sum(path.stat().st_size for path in self._files())
        return _train_pieces(min(total, self.max_bytes or total), shape)

    def load(self, shape: DataShape, num_samples: int, seed: int) -> DataSplits:
        """Inputs and targets [n, context] int64; `num_samples` and `seed` change nothing."""
        self.fetch()
        content = self._content()
        (length,) = shape.input_shape
        count = _train_pieces(len(content), shape)
        pieces = (len(content) - 1) // length
        if not 0 < count < pieces:
            raise DataError(
                f"data set 'text' has {len(content)} bytes; a context of {length} needs "
                f"{2 * length + 1} at least: set path to more, or a smaller context"
            )
        values = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(torch.int64)
        inputs = values[: pieces * length].view(pieces, length)
        targets = values[1 : pieces * length + 1].view(pieces, length)
        name = self.path or f"standard library of Python {platform.python_version()}"
        return DataSplits(
            Split(inputs[:count], targets[:count]),
            Split(inputs[count:], targets[count:].contiguous()),
            {name: f"sha256:{hashlib.sha256(content).hexdigest()}"},
        )

    def _files(self) -> Sequence[Path]:
        if self.path is None:
            return sorted(_library().glob("*.py"))
        path = Path(self.path).expanduser()
        if path.is_file():
            return [path]
        return sorted(file for file in path.rglob("*") if file.is_file())

    def _content(self) -> bytes:
        parts: list[bytes] = []
        left = self.max_bytes
        for path in self._files():
            if left == 0:
                break
            try:
                with path.open("rb") as file:
                    parts.append(file.read(-1 if left is None else left))
            except OSError as error:
                raise DataError(f"data set 'text': {path} cannot be read: {error.strerror}") from error
            left = None if left is None else left - len(parts[-1])
        return b"".join(parts)


def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _train_pieces(num_bytes: int, shape: DataShape) -> int:
    """Of all pieces that have a target for each byte."""
    pieces = max(0, num_bytes - 1) // shape.input_shape[0]
    return pieces - max(1, pieces // TEST_SHARE) if pieces else 0
