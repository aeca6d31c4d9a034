"""CIFAR-10: the original batches of the "python version", found or downloaded, checked before they are read.

The unpacked folder `cifar-10-batches-py` is looked for before the archive, which is never unpacked to disk.
What is read is checked batch by batch, before it is unpickled; the archive's own MD5 is asked of downloads
alone, so that one packed anew is as good.
"""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from scaling.errors import DataError
from scaling.workloads.base import Dataset, DataShape, DataSplits, Split
from scaling.workloads.data_files import DataFile, DataHome, decoded, find, looked_in, md5_of

HOME = DataHome("CIFAR-10", "cifar10")
UNPACKED = "cifar-10-batches-py"
# The archive's MD5 as on its page, https://www.cs.toronto.edu/~kriz/cifar.html; those of the batches inside
# as in torchvision (torchvision/datasets/cifar.py).
ARCHIVE = DataFile("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a")
TRAIN = (
    DataFile("data_batch_1", "c99cafc152244af753f735de768cd75f"),
    DataFile("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
    DataFile("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
    DataFile("data_batch_4", "634d18415352ddfa80567beed471001a"),
    DataFile("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
)
TEST = (DataFile("test_batch", "40351d587109b95175f43aff81a1287e"),)
MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)

# Of red, green and blue, 0 to 255, over all pixels of the training images; rounded as in S. Gross, M. Wilber,
# fb.resnet.torch (datasets/cifar10.lua).
MEAN = (125.3, 123.0, 113.9)
STANDARD_DEVIATION = (63.0, 62.1, 66.7)


def find_source(folders: Sequence[Path]) -> Path | None:
    """The unpacked folder or the archive: the first that is found, whatever it contains. None without any."""
    paths = (find(name, [folder]) for folder in folders for name in (UNPACKED, ARCHIVE.name))
    return next((path for path in paths if path is not None), None)


def read_checked(source: Path) -> Iterator[tuple[DataFile, bytes]]:
    """Six (batch, bytes) in the source's order. DataError: unreadable, incomplete, or a wrong MD5."""
    missing = {file.name: file for file in (*TRAIN, *TEST)}
    members = _read_archive(source) if source.name == ARCHIVE.name else _read_unpacked(source)
    try:
        for name, content in members:
            file = missing.pop(name)
            if (md5 := md5_of(content)) != file.md5:
                raise _damaged(
                    source, f"the {len(content):,} bytes of its {name} have MD5 {md5}, expected {file.md5}"
                )
            yield file, content
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise _damaged(source, f"it cannot be read, {error}; not read yet: {', '.join(missing)}") from error
    if missing:
        raise _damaged(source, f"it lacks {', '.join(missing)}")


def _read_unpacked(folder: Path) -> Iterator[tuple[str, bytes]]:
    present = set(os.listdir(folder))
    for file in (*TRAIN, *TEST):
        if file.name in present:
            yield file.name, (folder / file.name).read_bytes()


def _read_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    """Stops after the last batch: what else is in the archive is neither read nor checked."""
    names = {f"{UNPACKED}/{file.name}": file.name for file in (*TRAIN, *TEST)}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = names.pop(member.name.removeprefix("./"), None)
            # Only a file has bytes of its own: a link is not followed.
            content = archive.extractfile(member) if name and member.isfile() else None
            if name and content:
                yield name, content.read()
            if not names:
                return


def _damaged(source: Path, what: str) -> DataError:
    return DataError(
        f"{HOME.title}: {source} is damaged or not complete: {what}. "
        "Remove it and fetch the data set again, or put an intact copy in its place"
    )


# What the batches ask for. The first is private, and has moved since: an array's own reduction names it.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Makes lists, dictionaries, numbers, texts and numpy arrays, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise DataError(
                f"{HOME.title}: a batch asks for {module}.{name}, which no array needs; it is not loaded"
            ) from None


def parse_batch(content: bytes) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """Images [n, 3072] (red, green, blue, each 32 rows of 32) and labels [n] of a file of the "python
    version". DataError: it asks for more than numpy arrays."""
    # numpy's arrays are texts to Python 2: latin1 keeps every byte.
    values = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    images, labels = values["data"], values["labels"]
    # Asserts: whoever calls has compared the checksum.
    assert images.dtype == np.uint8
    assert images.shape == (len(labels), 3 * 32 * 32)
    return images, labels


@final
@dataclass(frozen=True)
class Cifar10(Dataset):
    """Colour photographs of ten kinds of things, 32x32 pixels: 50,000 to train on, 10,000 to test on. Of each
    pixel the training images' mean of its colour is taken away, and it is divided by their standard deviation
    (`MEAN`, `STANDARD_DEVIATION`). As float32 that is 737 MB of memory on each rank."""

    name = "cifar10"
    num_train = 50_000
    source = (
        'A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009, '
        "https://www.cs.toronto.edu/~kriz/cifar.html"
    )

    def shape(self, model_shape: DataShape | None) -> DataShape:
        return DataShape((3, 32, 32), 10)

    def available(self) -> bool:
        return find_source(HOME.folders(os.environ)) is not None

    def fetch(self) -> None:
        folders = HOME.folders(os.environ)
        source = find_source(folders)
        if source is None:
            HOME.download(ARCHIVE, folders, MIRRORS)
        else:
            list(read_checked(source))

    def load(self, shape: DataShape, num_samples: int, seed: int) -> DataSplits:
        """Inputs [n, 3, 32, 32], normalised, and targets [n]; `num_samples` and `seed` change nothing."""
        folders = HOME.folders(os.environ)
        source = find_source(folders)
        if source is None:
            raise DataError(
                f"{HOME.title}: neither {UNPACKED}/ nor {ARCHIVE.name} is there; {looked_in(folders)}. "
                "Fetch the data set, put one of them into one of these folders, or set SCALING_DATA_DIR to a "
                f"folder that holds {HOME.folder}/"
            )
        paths = sorted(source.iterdir()) if source.is_dir() else [source]
        arrays = (
            decoded(folders[-1], paths, lambda: _decoded(source)) if source.exists() else _decoded(source)
        )
        train_images, train_labels, test_images, test_labels = arrays
        checksums = {f"{UNPACKED}/{file.name}": f"md5:{file.md5}" for file in (*TRAIN, *TEST)}
        return DataSplits(_split(train_images, train_labels), _split(test_images, test_labels), checksums)


def _decoded(source: Path) -> list[npt.NDArray[np.uint8]]:
    batches = {file.name: parse_batch(content) for file, content in read_checked(source)}
    arrays = []
    for files in (TRAIN, TEST):
        images, labels = zip(*(batches[file.name] for file in files), strict=True)
        arrays += [np.concatenate(images), np.array([label for of in labels for label in of], np.uint8)]
    return arrays


def _split(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> Split:
    mean, deviation = (torch.tensor(of).view(3, 1, 1) for of in (MEAN, STANDARD_DEVIATION))
    inputs = torch.from_numpy(images.astype(np.float32)).view(-1, 3, 32, 32).sub_(mean).div_(deviation)
    return Split(inputs, torch.from_numpy(labels.astype(np.int64)))
