"""MNIST: where files are looked for, what is checked, how missing ones are downloaded."""

import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from scaling.errors import DataError
from scaling.workloads import data_files, mnist
from scaling.workloads.base import DataShape
from scaling.workloads.mnist import DataFile, Mnist, data_folders, fetch_file, read_checked

SHAPE = DataShape((1, 28, 28), 10)
CONTENT = b"one gzip file, as published"
FILE = DataFile("file.gz", hashlib.md5(CONTENT).hexdigest())


@pytest.fixture
def folders(tmp_path):
    """A data folder and a cache, both empty."""
    places = [tmp_path / "data" / "mnist", tmp_path / "cache"]
    for place in places:
        place.mkdir(parents=True)
    return places


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """A data set of 3 + 2 samples in the place of MNIST's, in $SCALING_DATA_DIR; gives its folder."""
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    images = [np.arange(n * 784).reshape(n, 28, 28) % 256 for n in (3, 2)]
    arrays = [images[0], np.array([7, 0, 9]), images[1], np.array([1, 2])]
    files = []
    for file, array in zip(mnist.FILES, arrays, strict=True):
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)  # IDX, of unsigned bytes
        content = gzip.compress(head + array.astype(np.uint8).tobytes())
        (folder / file.name).write_bytes(content)
        files.append(DataFile(file.name, hashlib.md5(content).hexdigest()))
    monkeypatch.setattr(mnist, "FILES", tuple(files))
    monkeypatch.setenv("SCALING_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return folder


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text("")])
def test_data_dir_comes_before_the_cache_and_one_that_is_not_a_folder_is_an_error(
    tmp_path, monkeypatch, make
):
    monkeypatch.setenv("HOME", "/home/me")
    environment = {"SCALING_DATA_DIR": str(tmp_path), "XDG_CACHE_HOME": "/xdg"}
    assert data_folders(environment) == [tmp_path / "mnist", Path("/xdg/scaling-study/mnist")]
    assert data_folders({}) == [Path("/home/me/.cache/scaling-study/mnist")]
    make(tmp_path / "data")
    with pytest.raises(DataError, match=r"SCALING_DATA_DIR is '.*/data', which is not a folder"):
        data_folders({"SCALING_DATA_DIR": str(tmp_path / "data")})


class TestReading:
    def test_first_folder_that_has_the_file_counts(self, folders):
        (folders[1] / FILE.name).write_bytes(CONTENT)
        assert read_checked(FILE, folders) == CONTENT
        (folders[0] / FILE.name).write_bytes(b"damaged")
        with pytest.raises(DataError, match=r"data/mnist/file\.gz is damaged"):
            read_checked(FILE, folders)

    def test_missing_file_names_file_checksum_and_places(self, folders):
        with pytest.raises(DataError) as caught:
            read_checked(FILE, folders)
        for part in (FILE.name, FILE.md5, "missing", str(folders[0]), str(folders[1]), "SCALING_DATA_DIR"):
            assert part in str(caught.value)

    def test_truncated_file_names_both_checksums(self, folders):
        (folders[1] / FILE.name).write_bytes(CONTENT[:-5])
        with pytest.raises(DataError) as caught:
            read_checked(FILE, folders)
        found = hashlib.md5(CONTENT[:-5]).hexdigest()
        for part in (str(folders[1] / FILE.name), FILE.md5, found, "damaged", "looked in", "Remove it"):
            assert part in str(caught.value)

    def test_link_to_nowhere_is_an_error_not_a_missing_file(self, folders):
        (folders[0] / FILE.name).symlink_to("nowhere")
        (folders[1] / FILE.name).write_bytes(CONTENT)
        with pytest.raises(DataError, match="cannot be read"):
            read_checked(FILE, folders)


class TestFetching:
    def test_missing_file_is_stored_from_a_mirror_that_has_it_intact(self, folders, start_mirror):
        bad, good = start_mirror({"/file.gz": CONTENT[:-1]}), start_mirror({"/file.gz": CONTENT})
        fetch_file(FILE, folders, [bad.address, good.address])
        assert [p.read_bytes() for p in folders[1].iterdir()] == [CONTENT]
        assert not list(folders[0].iterdir())
        assert read_checked(FILE, folders) == CONTENT

    def test_error_lists_the_reason_of_every_mirror(self, folders, start_mirror, monkeypatch):
        corrupted = start_mirror({"/file.gz": b"<html>please log in</html>"})
        empty = start_mirror({})
        monkeypatch.setattr(data_files, "TIMEOUT_S", 1.0)
        refusing = "http://127.0.0.1:1/"  # port 1 needs root to listen on
        with pytest.raises(DataError) as caught:
            fetch_file(FILE, folders, [corrupted.address, empty.address, refusing])
        said = [f"{mirror}file.gz: " for mirror in (corrupted.address, empty.address, refusing)]
        for part in (*said, "26 bytes with MD5", "HTTP Error 404", "refused", FILE.md5, str(folders[1])):
            assert part in str(caught.value)
        assert not list(folders[1].iterdir())

    def test_file_that_is_there_is_not_downloaded_again_even_if_it_is_damaged(self, folders, start_mirror):
        mirror = start_mirror({"/file.gz": CONTENT})
        (folders[0] / FILE.name).write_bytes(CONTENT)
        fetch_file(FILE, folders, [mirror.address])
        (folders[0] / FILE.name).rename(folders[1] / FILE.name)
        (folders[1] / FILE.name).write_bytes(b"damaged")
        with pytest.raises(DataError, match="is damaged"):
            fetch_file(FILE, folders, [mirror.address])
        assert (mirror.asked, (folders[1] / FILE.name).read_bytes()) == ([], b"damaged")

    def test_cache_that_cannot_be_made_is_a_data_error(self, tmp_path, start_mirror):
        (tmp_path / "cache").write_text("a file")
        mirror = start_mirror({"/file.gz": CONTENT})
        with pytest.raises(DataError, match=r"cannot store .* set XDG_CACHE_HOME"):
            fetch_file(FILE, [tmp_path / "cache" / "mnist"], [mirror.address])


class TestMnist:
    def test_pixels_are_divided_by_256(self, small_mnist):
        splits = Mnist().load(SHAPE, 0, 0)
        assert (splits.train.inputs.shape, splits.test.inputs.shape) == ((3, 1, 28, 28), (2, 1, 28, 28))
        expected = torch.arange(3 * 784).remainder(256).float() / 256
        assert torch.equal(splits.train.inputs.flatten(), expected)
        assert (splits.train.targets.tolist(), splits.test.targets.tolist()) == ([7, 0, 9], [1, 2])
        assert (splits.train.inputs.dtype, splits.train.targets.dtype) == (torch.float32, torch.int64)

    def test_is_available_when_files_are_spread_over_both_places(self, small_mnist, tmp_path):
        cache = tmp_path / "user-cache" / "scaling-study" / "mnist"
        cache.mkdir(parents=True)
        moved = small_mnist / mnist.FILES[2].name
        moved.rename(cache / moved.name)
        assert Mnist().available()
        assert len(Mnist().load(SHAPE, 0, 0).test) == 2
        (cache / moved.name).unlink()
        assert not Mnist().available()

    def test_load_never_downloads(self, small_mnist, start_mirror, monkeypatch):
        mirror = start_mirror({})
        monkeypatch.setattr(mnist, "MIRRORS", (mirror.address,))
        (small_mnist / mnist.FILES[1].name).unlink()
        with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz .* is missing"):
            Mnist().load(SHAPE, 0, 0)
        assert mirror.asked == []

    def test_fetch_downloads_only_what_is_missing(self, small_mnist, start_mirror, monkeypatch):
        removed = small_mnist / mnist.FILES[3].name
        mirror = start_mirror({f"/{removed.name}": removed.read_bytes()})
        monkeypatch.setattr(mnist, "MIRRORS", (mirror.address,))
        removed.unlink()
        Mnist().fetch()
        assert mirror.asked == [(f"/{removed.name}", None)]
        assert not removed.exists()
        assert Mnist().load(SHAPE, 0, 0).test.targets.tolist() == [1, 2]

    @pytest.mark.skipif(
        not os.path.isdir(os.path.join(os.environ.get("SCALING_DATA_DIR", ""), "mnist")),
        reason="SCALING_DATA_DIR does not name a folder that holds mnist/",
    )
    @pytest.mark.quality  # 0.3 GB at once
    def test_published_files_hold_the_published_counts(self):
        splits = Mnist().load(SHAPE, 0, 0)
        assert splits.train.inputs.shape == (60_000, 1, 28, 28)
        assert (splits.test.inputs.shape, splits.train.inputs.max()) == ((10_000, 1, 28, 28), 255 / 256)
        assert splits.train.targets[:5].tolist() == [5, 0, 4, 1, 9]
        assert splits.test.targets.bincount().tolist()[:4] == [980, 1135, 1032, 1010]
        assert splits.checksums["t10k-labels-idx1-ubyte.gz"] == "md5:ec29112dd5afa0611ce80d1b7f02629c"
        assert Mnist().available()
