"""CIFAR-10: where it is looked for, what is checked before it is unpickled, what it becomes."""

import hashlib
import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch

from scaling.errors import DataError
from scaling.workloads import cifar10
from scaling.workloads.cifar10 import ARCHIVE, MEAN, STANDARD_DEVIATION, UNPACKED, Cifar10, parse_batch
from scaling.workloads.data_files import DataFile

SHAPE = Cifar10().shape(None)
NAMES = [file.name for file in (*cifar10.TRAIN, *cifar10.TEST)]


def text(value):
    return pickle.BINSTRING + struct.pack("<i", len(value)) + value


def number(value):
    return pickle.BININT + struct.pack("<i", value)


def named(module, name):
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def array_of_python2(array):
    """A uint8 array as Python 2 and numpy pickled it, under numpy's names of that time."""
    dtype = named("numpy", "dtype") + text(b"u1") + number(0) + number(1) + pickle.TUPLE3 + pickle.REDUCE
    state = number(3) + text(b"|") + pickle.NONE * 3 + number(-1) + number(-1) + number(0)
    dtype += pickle.MARK + state + pickle.TUPLE + pickle.BUILD
    empty = named("numpy.core.multiarray", "_reconstruct") + named("numpy", "ndarray")
    empty += number(0) + pickle.TUPLE1 + text(b"b") + pickle.TUPLE3 + pickle.REDUCE
    shape = b"".join(map(number, array.shape)) + pickle.TUPLE2
    state = number(1) + shape + dtype + pickle.NEWFALSE + text(array.tobytes())
    return empty + pickle.MARK + state + pickle.TUPLE + pickle.BUILD


def batch_of_python2(images, labels):
    """A batch as it was published: data [n, 3072] and labels [n]."""
    items = text(b"data") + array_of_python2(images) + text(b"labels") + pickle.EMPTY_LIST + pickle.MARK
    items += b"".join(map(number, labels)) + pickle.APPENDS
    return pickle.PROTO + b"\x02" + pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS + pickle.STOP


def images_of(seed, count):
    return np.random.RandomState(seed).randint(0, 256, (count, 3072), np.uint8)


def pack(path, members):
    """A gzip-compressed archive of {name: content}, in that order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


class Small:
    """A data set of 5 x 2 + 3 samples in CIFAR-10's place; none of its files is anywhere at first."""

    def __init__(self, data, cache, monkeypatch):
        self.images = {name: images_of(i, 3 if name == "test_batch" else 2) for i, name in enumerate(NAMES)}
        self.labels = {name: [i, 9 - i, 7][: len(self.images[name])] for i, name in enumerate(NAMES)}
        self.contents = {name: batch_of_python2(self.images[name], self.labels[name]) for name in NAMES}
        self.members = {f"{UNPACKED}/{name}": self.contents[name] for name in reversed(NAMES)}
        self.data, self.cache = data, cache
        self.packed = pack(data.parent / "packed.tar.gz", self.members).read_bytes()
        files = tuple(DataFile(name, md5(content)) for name, content in self.contents.items())
        monkeypatch.setattr(cifar10, "TRAIN", files[:5])
        monkeypatch.setattr(cifar10, "TEST", files[5:])
        monkeypatch.setattr(cifar10, "ARCHIVE", DataFile(ARCHIVE.name, md5(self.packed)))
        monkeypatch.setattr(cifar10, "MIRRORS", ())

    def put_archive(self, folder=None):
        """Puts the archive there, as it was published; gives its path."""
        path = (folder or self.data) / ARCHIVE.name
        path.write_bytes(self.packed)
        return path

    def put_unpacked(self, folder=None):
        """Puts the unpacked batches there; gives their folder."""
        path = (folder or self.data) / UNPACKED
        path.mkdir()
        for name, content in self.contents.items():
            (path / name).write_bytes(content)
        return path

    def load(self):
        return Cifar10().load(SHAPE, 0, 0)


def md5(content):
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The small data set, with an empty folder in $SCALING_DATA_DIR and an empty cache."""
    data, cache = tmp_path / "data" / "cifar10", tmp_path / "user-cache" / "scaling-study" / "cifar10"
    data.mkdir(parents=True)
    cache.mkdir(parents=True)
    monkeypatch.setenv("SCALING_DATA_DIR", str(data.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return Small(data, cache, monkeypatch)


@pytest.fixture(params=["archive", "unpacked"])
def there(request, small):
    """The small data set, there in one of its two forms."""
    small.source = small.put_archive() if request.param == "archive" else small.put_unpacked()
    return small


class Attack:
    """Makes the folder `path` when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class TestSamples:
    def test_training_batches_come_in_order_and_then_the_test_batch_with_their_checksums(self, there):
        splits = there.load()
        assert splits.train.targets.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
        assert splits.test.targets.tolist() == [5, 4, 7]
        assert (splits.train.inputs.shape, splits.test.inputs.shape) == ((10, 3, 32, 32), (3, 3, 32, 32))
        assert (splits.train.inputs.dtype, splits.train.targets.dtype) == (torch.float32, torch.int64)
        digests = {name: md5(content) for name, content in there.contents.items()}
        assert splits.checksums == {f"{UNPACKED}/{name}": f"md5:{md5}" for name, md5 in digests.items()}

    def test_colours_rows_and_columns_are_where_they_were_and_normalised(self, there):
        raw = there.images["data_batch_2"][1]
        image = there.load().train.inputs[3]
        for colour, row, column in [(0, 0, 0), (0, 0, 31), (1, 5, 7), (2, 31, 30)]:
            value = int(raw[1024 * colour + 32 * row + column])
            expected = (value - MEAN[colour]) / STANDARD_DEVIATION[colour]
            assert image[colour, row, column].item() == pytest.approx(expected, abs=1e-5)


class TestPlaces:
    def test_is_not_available_when_it_is_nowhere(self, small):
        assert not Cifar10().available()
        with pytest.raises(DataError) as caught:
            small.load()
        for part in (UNPACKED, ARCHIVE.name, str(small.data), str(small.cache), "SCALING_DATA_DIR"):
            assert part in str(caught.value)

    @pytest.mark.parametrize("form", ["put_archive", "put_unpacked"])
    @pytest.mark.parametrize("place", ["data", "cache"])
    def test_either_form_in_either_place_is_enough(self, small, form, place):
        getattr(small, form)(getattr(small, place))
        assert Cifar10().available()
        Cifar10().fetch()
        assert len(small.load().test) == 3

    def test_data_dir_comes_before_the_cache_and_the_unpacked_folder_before_the_archive(self, small):
        small.put_unpacked(small.cache)
        (small.data / ARCHIVE.name).write_bytes(b"damaged")
        with pytest.raises(DataError, match=r"data/cifar10/cifar-10-python\.tar\.gz is damaged"):
            small.load()
        small.put_unpacked()
        assert len(small.load().train) == 10

    @pytest.mark.parametrize("prefix", ["", "./"])
    def test_archive_packed_anew_is_as_good_as_the_original(self, small, prefix):
        others = {f"{prefix}{UNPACKED}/readme.html": b"<html>", "../outside": b"never written"}
        members = {prefix + name: content for name, content in small.members.items()}
        pack(small.data / ARCHIVE.name, {**others, **members})
        Cifar10().fetch()
        assert len(small.load().train) == 10
        assert not (small.data.parent / "outside").exists()


class TestDamage:
    @staticmethod
    def message(small):
        """The same for fetch and load."""
        messages = []
        for action in (Cifar10().fetch, small.load):
            with pytest.raises(DataError) as caught:
                action()
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        for part in ("CIFAR-10: ", "is damaged or not complete: ", "Remove it and fetch the data set again"):
            assert part in messages[0]
        return messages[0]

    def test_changed_batch_is_named_with_both_checksums(self, there):
        expected, content = md5(there.contents["data_batch_3"]), there.contents["data_batch_3"][:-1]
        if there.source.is_dir():
            (there.source / "data_batch_3").write_bytes(content)
        else:
            pack(there.source, {**there.members, f"{UNPACKED}/data_batch_3": content})
        message = self.message(there)
        for part in (str(there.source), "data_batch_3", md5(content), expected, f"{len(content):,} bytes"):
            assert part in message

    def test_missing_batches_are_named(self, there):
        for name in ("data_batch_4", "test_batch"):
            if there.source.is_dir():
                (there.source / name).unlink()
            del there.members[f"{UNPACKED}/{name}"]
        if not there.source.is_dir():
            pack(there.source, there.members)
        said = f"{there.source} is damaged or not complete: it lacks data_batch_4, test_batch"
        assert said in self.message(there)

    @pytest.mark.parametrize("kept_share", [0.0, 0.01, 0.5, 0.9, None])
    def test_archive_that_is_truncated_or_has_a_changed_byte_is_an_error(self, small, kept_share):
        archive, content = small.put_archive(), bytearray(small.packed)
        if kept_share is None:
            content[len(content) // 2] ^= 0xFF
        else:
            del content[int(kept_share * len(content)) :]
        archive.write_bytes(content)
        assert str(archive) in self.message(small)

    def test_page_in_the_place_of_the_archive_is_an_error(self, small):
        small.put_archive().write_bytes(b"<html>please log in</html>")
        assert "it cannot be read" in self.message(small)

    @pytest.mark.parametrize("name", [UNPACKED, ARCHIVE.name])
    def test_link_to_nowhere_is_an_error_not_a_missing_source(self, small, name):
        (small.data / name).symlink_to("nowhere")
        small.put_unpacked(small.cache)
        assert "it cannot be read" in self.message(small)

    def test_folder_in_the_place_of_a_batch_is_an_error(self, small):
        folder = small.put_unpacked()
        (folder / "test_batch").unlink()
        (folder / "test_batch").mkdir()
        assert "test_batch" in self.message(small)

    def test_link_in_the_place_of_a_batch_is_not_followed(self, small):
        with tarfile.open(small.data / ARCHIVE.name, "w:gz") as archive:
            link = tarfile.TarInfo(f"{UNPACKED}/data_batch_1")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(link)
        assert "data_batch_1" in self.message(small)


class TestUnpickling:
    def test_changed_batch_is_refused_before_it_is_unpickled(self, there, tmp_path):
        attack = pickle.dumps({"data": Attack(tmp_path / "made"), "labels": []})
        if there.source.is_dir():
            (there.source / "data_batch_1").write_bytes(attack)
        else:
            pack(there.source, {**there.members, f"{UNPACKED}/data_batch_1": attack})
        with pytest.raises(DataError, match=f"data_batch_1 have MD5 {md5(attack)}"):
            there.load()
        assert not (tmp_path / "made").exists()

    def test_nothing_but_arrays_is_made_even_with_the_right_checksum(self, tmp_path):
        content = pickle.dumps({"data": Attack(tmp_path / "made"), "labels": []})
        with pytest.raises(DataError, match=r"a batch asks for \w+\.mkdir, which no array needs"):
            parse_batch(content)
        assert not (tmp_path / "made").exists()

    @pytest.mark.parametrize("name", ["builtins eval", "numpy load", "numpy.core.multiarray scalar"])
    def test_other_functions_are_refused_also_of_numpy(self, name):
        with pytest.raises(DataError, match=name.replace(" ", r"\.")):
            parse_batch(named(*name.split()) + pickle.STOP)

    def test_batch_of_python_2_holds_its_array_and_labels(self):
        images, labels = parse_batch(batch_of_python2(images_of(1, 4), [3, 8, 8, 0]))
        np.testing.assert_array_equal(images, images_of(1, 4))
        assert labels == [3, 8, 8, 0]


class TestFetching:
    def test_archive_is_downloaded_into_the_cache_and_read_there(self, small, start_mirror, monkeypatch):
        monkeypatch.setattr(cifar10, "MIRRORS", (start_mirror({f"/{ARCHIVE.name}": small.packed}).address,))
        Cifar10().fetch()
        assert [path.name for path in small.cache.iterdir()] == [ARCHIVE.name]
        assert not list(small.data.iterdir())
        assert small.load().test.targets.tolist() == [5, 4, 7]

    def test_broken_off_download_is_not_available_and_goes_on(self, small, start_mirror, monkeypatch):
        mirror = start_mirror({f"/{ARCHIVE.name}": small.packed}, breaks_after_bytes=5000)
        monkeypatch.setattr(cifar10, "MIRRORS", (mirror.address,))
        with pytest.raises(DataError, match=r"cannot be downloaded: .*5,000 bytes that came are kept"):
            Cifar10().fetch()
        assert not Cifar10().available()
        mirror.breaks_after_bytes = None
        Cifar10().fetch()
        assert (mirror.asked[1:], len(small.load().train)) == ([(f"/{ARCHIVE.name}", "bytes=5000-")], 10)

    def test_download_has_to_be_the_original_archive(self, small, start_mirror, monkeypatch):
        anew = pack(small.data.parent / "anew.tar.gz", {"more": b"", **small.members}).read_bytes()
        mirror = start_mirror({f"/{ARCHIVE.name}": anew})
        monkeypatch.setattr(cifar10, "MIRRORS", (mirror.address,))
        with pytest.raises(DataError) as caught:
            Cifar10().fetch()
        for part in (md5(anew), md5(small.packed), mirror.address, str(small.cache), "cifar10/"):
            assert part in str(caught.value)
        assert not Cifar10().available()

    def test_nothing_is_downloaded_when_it_is_there(self, there, start_mirror, monkeypatch):
        mirror = start_mirror({f"/{ARCHIVE.name}": there.packed})
        monkeypatch.setattr(cifar10, "MIRRORS", (mirror.address,))
        Cifar10().fetch()
        assert mirror.asked == []

    def test_load_never_downloads(self, small, start_mirror, monkeypatch):
        mirror = start_mirror({f"/{ARCHIVE.name}": small.packed})
        monkeypatch.setattr(cifar10, "MIRRORS", (mirror.address,))
        with pytest.raises(DataError, match="neither"):
            small.load()
        assert mirror.asked == []


@pytest.mark.quality
@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("SCALING_DATA_DIR", ""), "cifar10")),
    reason="SCALING_DATA_DIR does not name a folder that holds cifar10/",
)
def test_published_files_hold_the_published_counts_and_are_normalised():
    splits = Cifar10().load(SHAPE, 0, 0)
    assert splits.train.inputs.shape == (50_000, *SHAPE.input_shape)
    assert splits.test.inputs.shape == (10_000, *SHAPE.input_shape)
    assert splits.train.targets.bincount().tolist() == [5000] * 10
    assert splits.test.targets.bincount().tolist() == [1000] * 10
    assert splits.train.targets[:5].tolist() == [6, 9, 9, 4, 1]
    deviation, mean = torch.std_mean(splits.train.inputs, dim=(0, 2, 3))
    torch.testing.assert_close(mean, torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(deviation, torch.ones(3), atol=1e-3, rtol=0)
    assert splits.checksums[f"{UNPACKED}/test_batch"] == "md5:40351d587109b95175f43aff81a1287e"
    assert Cifar10().available()
