"""`text`: pieces of bytes, split by position."""

import hashlib
import platform

import pytest
import torch

from scaling.errors import DataError, StudyError
from scaling.workloads.base import DataShape
from scaling.workloads.registry import create_dataset

SHAPE = DataShape((4,), 256, tokens=True)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b.txt").write_bytes(bytes(range(50, 101)))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "first.txt").write_bytes(bytes(range(50)))
    return tmp_path


def loaded(path, **parameters):
    return create_dataset("text", {"path": str(path), **parameters}).load(SHAPE, 1, 0)


def test_files_are_cut_into_pieces_in_the_order_of_their_names_and_the_last_tenth_is_tested_on(folder):
    splits = loaded(folder)
    assert (len(splits.train), len(splits.test)) == (23, 2)
    assert torch.cat([splits.train.inputs, splits.test.inputs]).flatten().tolist() == list(range(100))


def test_target_of_each_byte_is_the_next_one(folder):
    for split in (loaded(folder).train, loaded(folder).test):
        assert torch.equal(split.targets, split.inputs + 1)


def test_samples_are_counted_without_reading(folder):
    for parameters in ({}, {"max_bytes": 41}):
        dataset = create_dataset("text", {"path": str(folder), **parameters})
        assert dataset.num_samples(SHAPE) == len(dataset.load(SHAPE, 1, 0).train)


def test_checksum_is_that_of_the_bytes_used(folder):
    (checksum,) = loaded(folder, max_bytes=41).checksums.values()
    assert checksum == f"sha256:{hashlib.sha256(bytes(range(41))).hexdigest()}"


def test_one_file_will_do(folder):
    assert loaded(folder / "b.txt").train.inputs[0].tolist() == [50, 51, 52, 53]


def test_default_is_the_standard_library_with_its_version():
    dataset = create_dataset("text", {"max_bytes": 10_000})
    assert dataset.available()
    splits = dataset.load(SHAPE, 1, 0)
    assert list(splits.checksums) == [f"standard library of Python {platform.python_version()}"]
    assert int(splits.train.inputs.max()) < 256


def test_too_few_bytes_or_none_and_models_of_no_tokens_are_errors_that_say_what_it_takes(folder):
    with pytest.raises(DataError, match="has 5 bytes; a context of 4 needs 9 at least"):
        loaded(folder, max_bytes=5)
    with pytest.raises(DataError, match=r"path .*nowhere.* has no files to read"):
        loaded(folder / "nowhere")
    with pytest.raises(StudyError, match="is for models of tokens"):
        create_dataset("text").shape(DataShape((1, 28, 28), 10))
