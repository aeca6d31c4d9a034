"""MNIST: the four original gzip files, found or downloaded, their MD5 checked whenever they are read.

Each file is looked for in $SCALING_DATA_DIR/mnist and then in the user's cache; the first one found counts. A
damaged one is an error and never passed over, nor overwritten: whoever put it there has to know.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import math
import os
import struct
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from scaling.errors import DataError
from scaling.workloads.base import Dataset, DataShape, DataSplits, Split


@dataclass(frozen=True)
class DataFile:
    """A published file: its name and the MD5 of its bytes, in hexadecimal."""

    name: str
    md5: str


# Training images, training labels, test images, test labels: MD5s as published, of the compressed files.
FILES = (
    DataFile("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    DataFile("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
    DataFile("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
    DataFile("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
)
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
# To connect, and between two packets. Long enough for a slow proxy, short enough to try the next mirror.
TIMEOUT_S = 10.0


def data_folders(environment: Mapping[str, str]) -> list[Path]:
    """The folders in which MNIST's files are looked for, in this order; the last one is the cache.

    Args:
        environment: SCALING_DATA_DIR and XDG_CACHE_HOME are read; empty is the same as not set.

    Raises:
        DataError: SCALING_DATA_DIR is set, but is not a folder.
    """
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scaling-study" / "mnist"
    data_dir = environment.get("SCALING_DATA_DIR")
    if not data_dir:
        return [cache]
    if not Path(data_dir).is_dir():
        raise DataError(
            f"SCALING_DATA_DIR is {data_dir!r}, which is not a folder; "
            "set it to the folder that holds mnist/, or unset it"
        )
    return [Path(data_dir) / "mnist", cache]


def find(file: DataFile, folders: Sequence[Path]) -> Path | None:
    """Where the file is first found, whatever it contains; None if it is nowhere."""
    # lexists: a link to nowhere is a damaged file, not a missing one.
    return next((folder / file.name for folder in folders if os.path.lexists(folder / file.name)), None)


def read_checked(file: DataFile, folders: Sequence[Path]) -> bytes:
    """The file's bytes, as published.

    Raises:
        DataError: it is missing, cannot be read, or has the wrong MD5.
    """
    path = find(file, folders)
    if path is None:
        raise DataError(
            f"MNIST: {file.name} (MD5 {file.md5}) is missing; {_looked_in(folders)}. Fetch the data set, "
            "put its files into one of these folders, or set SCALING_DATA_DIR to a folder that holds mnist/"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"MNIST: {path} (MD5 {file.md5}) cannot be read: {error}; {_looked_in(folders)}. "
            "Make it readable, or remove it and fetch the data set again"
        ) from error
    if (md5 := _md5(content)) != file.md5:
        raise DataError(
            f"MNIST: {path} is damaged: its {len(content):,} bytes have MD5 {md5}, expected {file.md5}; "
            f"{_looked_in(folders)}. Remove it and fetch the data set again, or replace it by an intact copy"
        )
    return content


def fetch_file(file: DataFile, folders: Sequence[Path], mirrors: Sequence[str]) -> None:
    """Checks the file if it is there, else downloads it into the last folder. Any number of processes may.

    Args:
        file: what to fetch.
        folders: from `data_folders`.
        mirrors: addresses that end in "/", tried in this order.

    Raises:
        DataError: it is there and damaged, or no mirror delivers it, or it cannot be stored.
    """
    if find(file, folders) is not None:
        read_checked(file, folders)
        return
    content, reasons = None, []
    for url in (mirror + file.name for mirror in mirrors):
        try:
            content = _download(url, file.md5)
            break
        except (OSError, http.client.HTTPException, DataError) as error:
            reasons.append(f"{url}: {error}")
    if content is None:
        raise DataError(
            f"MNIST: {file.name} (MD5 {file.md5}) cannot be downloaded: {'; '.join(reasons)}; "
            f"{_looked_in(folders)}. Put the four files into one of these folders by hand, "
            "or set SCALING_DATA_DIR to a folder that holds mnist/"
        )
    _store(content, folders[-1] / file.name)


def _download(url: str, md5: str) -> bytes:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        content: bytes = response.read()
    if (found := _md5(content)) != md5:
        raise DataError(f"{len(content):,} bytes with MD5 {found}")
    return content


def _store(content: bytes, path: Path) -> None:
    """Writes beside `path` and renames: whoever reads sees the whole file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=path.parent) as folder:
            temporary = Path(folder) / path.name
            temporary.write_bytes(content)
            temporary.replace(path)
    except OSError as error:
        raise DataError(
            f"MNIST: cannot store {path}: {error}; set XDG_CACHE_HOME to a writable folder"
        ) from error


def _md5(content: bytes) -> str:
    # Against damage, not against attack: machines in FIPS mode allow it then.
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _looked_in(folders: Sequence[Path]) -> str:
    return "looked in " + ", ".join(map(str, folders))


def parse_idx(content: bytes) -> npt.NDArray[np.uint8]:
    """The array in an uncompressed IDX file of bytes: a read-only view of `content`.

    The format: two zero bytes, the type (8: unsigned byte), the number of axes, the length of each axis as a
    big-endian 32-bit number, then the values, last axis fastest (http://yann.lecun.com/exdb/mnist/).
    """
    # Asserts: whoever calls has compared the checksum.
    assert content[:3] == b"\x00\x00\x08"
    num_axes = content[3]
    shape = struct.unpack_from(f">{num_axes}I", content, offset=4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * num_axes)
    assert len(values) == math.prod(shape)
    return values.reshape(shape)


@final
@dataclass(frozen=True)
class Mnist(Dataset):
    """Handwritten digits, 28x28 pixels: 60,000 to train on, 10,000 to test on.

    Pixel values 0 to 255 are divided by 256, as dlbench does (S. Shi, Q. Wang, P. Xu, X. Chu, "Benchmarking
    state-of-the-art deep learning software tools", arXiv 1608.07249).
    """

    name = "mnist"
    num_train = 60_000
    source = "Y. LeCun, C. Cortes, C. Burges, the MNIST database, http://yann.lecun.com/exdb/mnist/"

    def shape(self, model_shape: DataShape | None) -> DataShape:
        """(1, 28, 28) and 10 classes, whatever the model is made for."""
        return DataShape((1, 28, 28), 10)

    def available(self) -> bool:
        """Whether all four files are there; what they contain is for `load` to check.

        Raises:
            DataError: SCALING_DATA_DIR is set, but is not a folder.
        """
        folders = data_folders(os.environ)
        return all(find(file, folders) is not None for file in FILES)

    def fetch(self) -> None:
        """Downloads the files that are missing into the cache and checks the others.

        Raises:
            DataError: a file is there and damaged, no mirror delivers it, or it cannot be stored.
        """
        folders = data_folders(os.environ)
        for file in FILES:
            fetch_file(file, folders, MIRRORS)

    def load(self, shape: DataShape, num_samples: int, seed: int) -> DataSplits:
        """Inputs [n, 1, 28, 28] from 0 to 255/256 and targets [n]; `num_samples` and `seed` change nothing.

        Raises:
            DataError: a file is missing or damaged.
        """
        folders = data_folders(os.environ)
        arrays = [parse_idx(gzip.decompress(read_checked(file, folders))) for file in FILES]
        train_images, train_labels, test_images, test_labels = arrays
        checksums = {file.name: f"md5:{file.md5}" for file in FILES}
        return DataSplits(_split(train_images, train_labels), _split(test_images, test_labels), checksums)


def _split(images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Split:
    inputs = torch.from_numpy(images.astype(np.float32)).div_(256).unsqueeze(1)
    return Split(inputs, torch.from_numpy(labels.astype(np.int64)))
