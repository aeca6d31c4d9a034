"""MNIST: the four original gzip files, found or downloaded, their MD5 checked whenever they are read."""

from __future__ import annotations

import gzip
import math
import os
import struct
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from scaling.workloads.base import Dataset, DataShape, DataSplits, Split
from scaling.workloads.data_files import DataFile, DataHome, decoded, find

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
HOME = DataHome("MNIST", "mnist")
data_folders, read_checked, fetch_file = HOME.folders, HOME.read_checked, HOME.fetch


def parse_idx(content: bytes) -> npt.NDArray[np.uint8]:
    """The array in an IDX file of bytes, a read-only view: two zero bytes, the type (8: unsigned byte), the
    number of axes, each axis as a big-endian 32-bit number, then the values
    (http://yann.lecun.com/exdb/mnist/)."""
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
    """Handwritten digits, 28x28 pixels: 60,000 to train on, 10,000 to test on. Pixel values 0 to 255 are
    divided by 256, as dlbench does (arXiv 1608.07249)."""

    name = "mnist"
    num_train = 60_000
    source = "Y. LeCun, C. Cortes, C. Burges, the MNIST database, http://yann.lecun.com/exdb/mnist/"

    def shape(self, model_shape: DataShape | None) -> DataShape:
        return DataShape((1, 28, 28), 10)

    def available(self) -> bool:
        folders = data_folders(os.environ)
        return all(find(file.name, folders) is not None for file in FILES)

    def fetch(self) -> None:
        folders = data_folders(os.environ)
        for file in FILES:
            fetch_file(file, folders, MIRRORS)

    def load(self, shape: DataShape, num_samples: int, seed: int) -> DataSplits:
        """Inputs [n, 1, 28, 28] from 0 to 255/256, targets [n]; `num_samples` and `seed` change nothing."""
        folders = data_folders(os.environ)

        def decode() -> list[npt.NDArray[np.uint8]]:
            return [parse_idx(gzip.decompress(read_checked(file, folders))) for file in FILES]

        paths = [path for file in FILES if (path := find(file.name, folders)) and path.is_file()]
        arrays = decoded(folders[-1], paths, decode) if len(paths) == len(FILES) else decode()
        train_images, train_labels, test_images, test_labels = arrays
        checksums = {file.name: f"md5:{file.md5}" for file in FILES}
        return DataSplits(_split(train_images, train_labels), _split(test_images, test_labels), checksums)


def _split(images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Split:
    inputs = torch.from_numpy(images.astype(np.float32)).div_(256).unsqueeze(1)
    return Split(inputs, torch.from_numpy(labels.astype(np.int64)))
