"""Decoded arrays in the cache: the same values, decoded once, and again when anything is not as it was."""

import os
import threading

import numpy as np
import pytest

from scaling.workloads.data_files import decoded


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


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
        lambda content: content + b"\0",
        lambda content: b"",
        lambda content: b"[1]\n",
        lambda content: b'{"shapes": [], "crc32": 0}\n',
        lambda content: content.replace(b"60", b"61").replace(b"[5, 3, 4]", b"[5, 4, 4]"),
    ],
)
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
    assert decoder.count == 2
    assert len(list(cache.iterdir())) == 1


def test_cache_that_cannot_be_written_is_no_error(source, tmp_path):
    (tmp_path / "file").write_text("no folder")
    decoder = Decoder()
    for _ in range(2):
        read(tmp_path / "file" / "mnist", source, decoder)
    assert decoder.count == 2


def test_many_may_decode_at_once(cache, source):
    errors = []

    def work():
        try:
            read(cache, source, Decoder())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(list(cache.iterdir())) == 1
