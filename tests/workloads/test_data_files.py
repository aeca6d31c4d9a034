"""Downloads: resumed where they broke off, checked, seen whole or not at all."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from scaling.workloads import data_files
from scaling.workloads.data_files import DownloadError, decoded, download

CONTENT = bytes(range(256)) * 40
MD5 = hashlib.md5(CONTENT).hexdigest()
FIRST = CONTENT[:3000]


@pytest.fixture
def target(tmp_path):
    """Where the file is to be; in a folder that is not there yet."""
    return tmp_path / "cache" / "file"


@pytest.fixture
def part(target):
    """Where its first bytes are kept; the folder is made."""
    target.parent.mkdir()
    return target.with_name("file.part")


def get(target, *mirrors):
    download([f"{mirror.address}file" for mirror in mirrors], target, MD5)


def files_beside(target):
    return {path.name: path.read_bytes() for path in target.parent.iterdir()}


class TestWhole:
    @pytest.mark.parametrize("block_bytes", [data_files.BLOCK_BYTES, 1000])
    def test_file_is_whole_and_alone_in_its_folder(self, target, start_mirror, monkeypatch, block_bytes):
        monkeypatch.setattr(data_files, "BLOCK_BYTES", block_bytes)
        mirror = start_mirror({"/file": CONTENT})
        get(target, mirror)
        assert (files_beside(target), mirror.asked) == ({"file": CONTENT}, [("/file", None)])

    def test_wrong_content_is_refused_and_not_kept(self, target, start_mirror):
        mirror = start_mirror({"/file": CONTENT[:-1]})
        with pytest.raises(DownloadError, match=r"/file: 10,239 bytes with MD5 "):
            get(target, mirror)
        assert (files_beside(target), len(mirror.asked)) == ({}, 1)

    def test_many_at_once_download_it_once(self, target, start_mirror):
        mirror = start_mirror({"/file": CONTENT})
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: get(target, mirror), range(8)))
        assert (files_beside(target), len(mirror.asked)) == ({"file": CONTENT}, 1)

    def test_many_at_once_all_fail_where_there_is_nothing(self, target, start_mirror):
        mirror = start_mirror({})
        with ThreadPoolExecutor(8) as pool:
            tries = [pool.submit(get, target, mirror) for _ in range(8)]
        assert all("404" in str(one.exception()) for one in tries)
        assert files_beside(target) == {}

    def test_folder_that_cannot_be_made_is_an_error_of_storing(self, target, start_mirror):
        target.parent.write_text("a file")
        mirror = start_mirror({"/file": CONTENT})
        with pytest.raises(OSError, match="exists"):
            get(target, mirror)
        assert mirror.asked == []


class TestResumed:
    def test_broken_off_download_goes_on_where_it_broke_off_each_time(self, target, start_mirror):
        mirror = start_mirror({"/file": CONTENT}, breaks_after_bytes=3000)
        with pytest.raises(DownloadError, match=r"broke off after 3,000 of 10,240 bytes.* 3,000 .*kept"):
            get(target, mirror)
        assert files_beside(target) == {"file.part": FIRST}
        for _ in range(2):
            with pytest.raises(DownloadError):
                get(target, mirror)
        get(target, mirror)
        assert files_beside(target) == {"file": CONTENT}
        wanted = [None, *(f"bytes={begin}-" for begin in (3000, 6000, 9000))]
        assert mirror.asked == [("/file", one) for one in wanted]

    def test_next_mirror_goes_on_where_the_first_broke_off(self, target, start_mirror):
        breaking = start_mirror({"/file": CONTENT}, breaks_after_bytes=3000)
        good = start_mirror({"/file": CONTENT})
        get(target, breaking, good)
        assert (files_beside(target), good.asked) == ({"file": CONTENT}, [("/file", "bytes=3000-")])

    @pytest.mark.parametrize(("kept", "mirrored", "asked"), [
        (FIRST, {"contents": {"/file": CONTENT}, "knows_ranges": False}, ["bytes=3000-"]),  # all is sent anew
        (b"another file", {"contents": {"/file": CONTENT}}, ["bytes=12-", None]),
        (CONTENT + b"more", {"contents": {"/file": CONTENT}}, ["bytes=10244-", None]),
        (CONTENT, {"contents": {}}, []),  # it was not renamed yet
    ], ids=["no ranges", "other", "too long", "whole"])  # fmt: skip
    def test_kept_bytes_go_on_or_are_thrown_away(self, target, part, start_mirror, kept, mirrored, asked):
        part.write_bytes(kept)
        mirror = start_mirror(**mirrored)
        get(target, mirror)
        assert files_beside(target) == {"file": CONTENT}
        assert mirror.asked == [("/file", wanted) for wanted in asked]

    def test_kept_bytes_stay_when_no_mirror_answers(self, target, part, start_mirror):
        part.write_bytes(FIRST)
        with pytest.raises(DownloadError, match=r"404.*3,000 bytes that came are kept"):
            get(target, start_mirror({}))
        assert files_beside(target) == {"file.part": FIRST}


class Decoder:
    """Counts how often it decodes."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        images = np.arange(60, dtype=np.uint8).reshape(5, 3, 4)
        return [images, images[:, 0, 0].copy(), np.full((1, 2), 9, np.uint8)]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "published.gz"
    path.write_bytes(b"published")
    return path


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "mnist"


def read(cache, source, decoder):
    arrays = decoded(cache, [source], decoder)
    for found, expected in zip(arrays, Decoder()(), strict=True):
        assert np.array_equal(found, expected)
        assert found.dtype == np.uint8
    return arrays


def test_second_time_is_mapped_and_read_only(cache, source):
    decoder = Decoder()
    read(cache, source, decoder)
    arrays = read(cache, source, decoder)
    assert decoder.count == 1
    assert not any(array.flags.writeable for array in arrays)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("damage", [
    lambda content: content[:-1],
    lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
    lambda content: content + b"\0",
    lambda content: b"",
    lambda content: b"[1]\n",
    lambda content: b'{"shapes": [], "crc32": 0}\n',
    lambda content: content.replace(b"60", b"61").replace(b"[5, 3, 4]", b"[5, 4, 4]"),
])  # fmt: skip
def test_damaged_file_is_decoded_anew_and_replaced(cache, source, damage):
    decoder = Decoder()
    read(cache, source, decoder)
    (path,) = cache.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    read(cache, source, decoder)
    read(cache, source, decoder)
    assert decoder.count == 2


def test_replaced_source_is_decoded_anew_and_the_old_file_goes(cache, source):
    decoder = Decoder()
    read(cache, source, decoder)
    os.utime(source, ns=(1, 1))
    read(cache, source, decoder)
    assert (decoder.count, len(list(cache.iterdir()))) == (2, 1)


def test_cache_that_cannot_be_written_is_no_error(source, tmp_path):
    (tmp_path / "file").write_text("no folder")
    decoder = Decoder()
    for _ in range(2):
        read(tmp_path / "file" / "mnist", source, decoder)
    assert decoder.count == 2


def test_many_may_decode_at_once(cache, source):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: read(cache, source, Decoder()), range(8)))
    assert len(list(cache.iterdir())) == 1
