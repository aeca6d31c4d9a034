"""The published files of data sets: where they are looked for, and that they are what was published.

A file is looked for in $SCALING_DATA_DIR/<data set> and then in the user's cache; the first one found counts.
A damaged one is an error and never passed over, nor overwritten: whoever put it there has to know.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling.errors import DataError
from scaling.workloads.downloads import DownloadError, download


@dataclass(frozen=True)
class DataFile:
    """A published file: its name and the MD5 of its bytes, in hexadecimal."""

    name: str
    md5: str


@dataclass(frozen=True)
class DataHome:
    """Where one data set's files live.

    Attributes:
        title: what messages call the data set ("MNIST").
        folder: the name of its folder in $SCALING_DATA_DIR and in the cache ("mnist").
    """

    title: str
    folder: str

    def folders(self, environment: Mapping[str, str]) -> list[Path]:
        """The folders in which its files are looked for, in this order; the last one is the cache.

        Args:
            environment: SCALING_DATA_DIR and XDG_CACHE_HOME are read; empty is the same as not set.

        Raises:
            DataError: SCALING_DATA_DIR is set, but is not a folder.
        """
        caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache = caches / "scaling-study" / self.folder
        data_dir = environment.get("SCALING_DATA_DIR")
        if not data_dir:
            return [cache]
        if not Path(data_dir).is_dir():
            raise DataError(
                f"SCALING_DATA_DIR is {data_dir!r}, which is not a folder; "
                f"set it to the folder that holds {self.folder}/, or unset it"
            )
        return [Path(data_dir) / self.folder, cache]

    def read_checked(self, file: DataFile, folders: Sequence[Path]) -> bytes:
        """The file's bytes, as published.

        Raises:
            DataError: it is missing, cannot be read, or has the wrong MD5.
        """
        path = find(file.name, folders)
        if path is None:
            raise DataError(
                f"{self.title}: {file.name} (MD5 {file.md5}) is missing; {looked_in(folders)}. Fetch the "
                "data set, put its files into one of these folders, or set SCALING_DATA_DIR to a folder that "
                f"holds {self.folder}/"
            )
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{self.title}: {path} (MD5 {file.md5}) cannot be read: {error}; {looked_in(folders)}. "
                "Make it readable, or remove it and fetch the data set again"
            ) from error
        if (md5 := md5_of(content)) != file.md5:
            raise DataError(
                f"{self.title}: {path} is damaged: its {len(content):,} bytes have MD5 {md5}, expected "
                f"{file.md5}; {looked_in(folders)}. Remove it and fetch the data set again, or replace it by "
                "an intact copy"
            )
        return content

    def fetch(self, file: DataFile, folders: Sequence[Path], mirrors: Sequence[str]) -> None:
        """Checks the file if it is there, else downloads it.

        Raises:
            DataError: it is there and damaged, or no mirror delivers it, or it cannot be stored.
        """
        if find(file.name, folders) is None:
            self.download(file, folders, mirrors)
        else:
            self.read_checked(file, folders)

    def download(self, file: DataFile, folders: Sequence[Path], mirrors: Sequence[str]) -> None:
        """Downloads the file into the last folder; any number of processes may.

        Args:
            file: what to download.
            folders: from `folders`.
            mirrors: addresses that end in "/", tried in this order.

        Raises:
            DataError: no mirror delivers it, or it cannot be stored.
        """
        target = folders[-1] / file.name
        try:
            download([mirror + file.name for mirror in mirrors], target, file.md5)
        except DownloadError as error:
            raise DataError(
                f"{self.title}: {file.name} (MD5 {file.md5}) cannot be downloaded: {error}; "
                f"{looked_in(folders)}. Put the data set's files into one of these folders by hand, "
                f"or set SCALING_DATA_DIR to a folder that holds {self.folder}/"
            ) from error
        except OSError as error:
            raise DataError(
                f"{self.title}: cannot store {target}: {error}; set XDG_CACHE_HOME to a writable folder"
            ) from error


def find(name: str, folders: Sequence[Path]) -> Path | None:
    """Where a file or folder is first found, whatever it contains; None if it is nowhere."""
    # lexists: a link to nowhere is a damaged file, not a missing one.
    return next((folder / name for folder in folders if os.path.lexists(folder / name)), None)


def looked_in(folders: Sequence[Path]) -> str:
    """The end of a message about what was not found, or not good, there."""
    return "looked in " + ", ".join(map(str, folders))


def md5_of(content: bytes) -> str:
    """MD5 in hexadecimal: against damage, not against attack (machines in FIPS mode allow it then)."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
