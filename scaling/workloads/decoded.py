"""Decoded arrays of data sets, in the user's cache: ranks map them into memory, the first one decodes.

A file is a line of JSON (the arrays' shapes, the CRC-32 of what follows), then the arrays' bytes. Its name
has a digest of the files that it was made of, with their sizes and times of change: if one of them is
replaced, it is decoded anew. So is a damaged file of the cache; one that cannot be written is no error.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

PREFIX = "decoded-"
LONGEST_HEADER = 4096


def decoded(folder: Path, sources: Sequence[Path], decode: Callable[[], Sequence[Bytes]]) -> Sequence[Bytes]:
    """What `decode` makes of the sources, from the cache where that has it; read-only. Any process may.

    Args:
        folder: of the data set in the cache; made if need be.
        sources: the files that are decoded, all of which exist.
        decode: gives the arrays; what it raises is the caller's.
    """
    path = folder / f"{PREFIX}{_key(sources)}"
    if (mapped := _mapped(path)) is not None:
        return mapped
    arrays = decode()
    with suppress(OSError):  # a full disk, a cache that is read-only: decoded each time
        _store(path, arrays)
    return arrays


def _key(sources: Sequence[Path]) -> str:
    facts = [(str(path), status.st_size, status.st_mtime_ns) for path in sources for status in [path.stat()]]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _mapped(path: Path) -> list[Bytes] | None:
    """The arrays of a file; None where it does not exist or is damaged."""
    try:
        with path.open("rb") as file:
            header = file.readline(LONGEST_HEADER)
        known = json.loads(header)
        values = np.memmap(path, np.uint8, "r", offset=len(header))
        ends = np.cumsum([math.prod(shape) for shape in known["shapes"]])
        if zlib.crc32(values.data) != known["crc32"] or ends[-1] != len(values):
            return None
        parts = np.split(values, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, known["shapes"], strict=True)]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _store(path: Path, arrays: Sequence[Bytes]) -> None:
    """Writes a whole file or none, in the place of those of other sources."""
    path.parent.mkdir(parents=True, exist_ok=True)
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    header = json.dumps({"shapes": [array.shape for array in arrays], "crc32": checksum})
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".decoded-")
    try:
        with open(descriptor, "wb") as file:
            file.write(f"{header}\n".encode())
            for array in arrays:
                file.write(np.ascontiguousarray(array).data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    for other in path.parent.glob(f"{PREFIX}*"):
        if other != path:
            other.unlink(missing_ok=True)
