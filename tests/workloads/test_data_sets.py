"""Data sets that come with the package: scikit-learn's digits, synthetic data, and `text`."""

import hashlib
import platform
import sys

import pytest
import torch

from scaling.errors import DataError, StudyError
from scaling.workloads.base import DataShape
from scaling.workloads.digits import Digits
from scaling.workloads.registry import create_dataset
from scaling.workloads.synthetic import Synthetic

DIGITS = DataShape((1, 8, 8), 10)


@pytest.fixture(scope="module")
def splits():
    return Digits().load(DIGITS, 0, 0)


def test_split_has_1437_and_360_digits_of_every_class_whatever_shape_the_model_has(splits):
    assert Digits().shape(None) == Digits().shape(DataShape((1, 28, 28), 10)) == DIGITS
    assert (splits.train.inputs.shape, splits.test.inputs.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert (splits.train.inputs.dtype, splits.train.targets.dtype) == (torch.float32, torch.int64)
    assert splits.train.targets.unique().tolist() == splits.test.targets.unique().tolist() == list(range(10))


def test_train_and_test_together_are_all_samples_once_in_sixteenths(splits):
    from sklearn.datasets import load_digits

    ours = torch.cat([splits.train.inputs, splits.test.inputs]).flatten(1) * 16
    targets = torch.cat([splits.train.targets, splits.test.targets])
    rows = sorted(zip(map(tuple, ours.tolist()), targets.tolist(), strict=True))
    raw = load_digits()
    assert rows == sorted(zip(map(tuple, raw.data.tolist()), raw.target.tolist(), strict=True))


def test_split_of_the_published_arrays_is_the_same_for_every_seed(splits):
    again = Digits().load(DIGITS, 10, 12345)
    assert torch.equal(again.train.inputs, splits.train.inputs)
    assert torch.equal(again.test.targets, splits.test.targets)
    # The first of numpy's RandomState(0).permutation(1797), whose stream is frozen.
    assert splits.train.targets[:8].tolist() == [2, 8, 2, 6, 6, 7, 1, 9]
    checksum = "sha256:87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    assert splits.checksums == {"load_digits": checksum}


def test_missing_scikit_learn_is_an_error_that_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert not Digits().available()
    with pytest.raises(DataError, match="pip install scikit-learn"):
        Digits().load(DIGITS, 0, 0)


SHAPE = DataShape((3, 4, 5), 7)


def test_is_not_real_always_available_and_takes_from_the_model_what_its_parameters_leave_open():
    assert (Synthetic.real, Synthetic().available()) == (False, True)
    Synthetic().fetch()
    assert Synthetic().shape(SHAPE) == SHAPE
    assert Synthetic((3, 4, 5), 7).shape(None) == Synthetic((3, 4, 5), 7).shape(DataShape((1,), 2)) == SHAPE
    assert Synthetic(num_classes=7).shape(DataShape((3, 4, 5), 2)) == SHAPE


@pytest.mark.parametrize("dataset", [Synthetic(), Synthetic((3, 4)), Synthetic(None, 7)], ids=str)
def test_shape_that_nobody_names_is_an_error_that_names_the_parameters(dataset):
    with pytest.raises(StudyError, match=r"input_shape .* num_classes"):
        dataset.shape(None)


@pytest.mark.parametrize(("num_samples", "num_test"), [(1, 1), (256, 256), (1000, 256)])
def test_makes_the_samples_asked_for_and_at_most_256_to_test(num_samples, num_test):
    splits = Synthetic().load(SHAPE, num_samples, 0)
    assert splits.train.inputs.shape == (num_samples, 3, 4, 5)
    assert (splits.test.inputs.shape, splits.train.targets.shape) == ((num_test, 3, 4, 5), (num_samples,))
    assert (splits.train.inputs.dtype, splits.train.targets.dtype) == (torch.float32, torch.int64)


def test_inputs_are_standard_normal_and_targets_uniform():
    train = Synthetic().load(SHAPE, 4000, 1).train
    assert abs(train.inputs.mean()) < 0.02
    assert abs(train.inputs.std() - 1) < 0.02
    # 4000 / 7 in each class, within six standard deviations of the binomial distribution
    assert (train.targets.bincount(minlength=7) - 4000 / 7).abs().max() < 6 * (4000 * 6 / 49) ** 0.5


def test_numbers_depend_on_the_seed_alone_and_differ_from_weights_made_from_it():
    torch.manual_seed(3)
    weights = torch.randn(10, 3, 4, 5)
    first, second = (Synthetic().load(SHAPE, 10, 3) for _ in range(2))
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert not torch.equal(first.train.inputs, weights)
    assert first.checksums == second.checksums != Synthetic().load(SHAPE, 10, 4).checksums


class TestTokens:
    TEXTS = DataShape((6,), 50, tokens=True)

    def test_model_of_tokens_is_given_tokens(self):
        assert Synthetic().shape(self.TEXTS) == self.TEXTS
        assert Synthetic((9,)).shape(self.TEXTS) == DataShape((9,), 50, tokens=True)

    def test_every_token_has_the_next_one_as_its_target_and_all_depend_on_the_seed_alone(self):
        first, again, other = (Synthetic().load(self.TEXTS, 10, seed) for seed in (3, 3, 4))
        assert first.train.inputs.shape == first.train.targets.shape == (10, 6)
        assert (first.train.inputs.dtype, first.train.targets.dtype) == (torch.int64, torch.int64)
        assert torch.equal(first.train.targets[:, :-1], first.train.inputs[:, 1:])
        assert first.checksums == again.checksums != other.checksums
        assert len(first.test) == 10

    def test_tokens_are_uniform_over_the_vocabulary(self):
        counts = Synthetic().load(self.TEXTS, 2000, 1).train.inputs.flatten().bincount(minlength=50)
        assert len(counts) == 50
        # 12,000 / 50 of each, within six standard deviations of the binomial distribution
        assert (counts - 240).abs().max() < 6 * (12_000 * 49 / 2500) ** 0.5


TEXT = DataShape((4,), 256, tokens=True)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b.txt").write_bytes(bytes(range(50, 101)))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "first.txt").write_bytes(bytes(range(50)))
    return tmp_path


def loaded(path, **parameters):
    return create_dataset("text", {"path": str(path), **parameters}).load(TEXT, 1, 0)


def test_files_are_cut_into_pieces_in_the_order_of_their_names_and_the_last_tenth_is_tested_on(folder):
    splits = loaded(folder)
    assert (len(splits.train), len(splits.test)) == (23, 2)
    assert torch.cat([splits.train.inputs, splits.test.inputs]).flatten().tolist() == list(range(100))
    for split in (splits.train, splits.test):
        assert torch.equal(split.targets, split.inputs + 1)  # the next byte
    assert loaded(folder / "b.txt").train.inputs[0].tolist() == [50, 51, 52, 53]


def test_samples_are_counted_without_reading_and_the_checksum_is_that_of_the_bytes_used(folder):
    for parameters in ({}, {"max_bytes": 41}):
        dataset = create_dataset("text", {"path": str(folder), **parameters})
        splits = dataset.load(TEXT, 1, 0)
        assert dataset.num_samples(TEXT) == len(splits.train)
    assert [*splits.checksums.values()] == [f"sha256:{hashlib.sha256(bytes(range(41))).hexdigest()}"]


def test_default_is_the_standard_library_with_its_version():
    dataset = create_dataset("text", {"max_bytes": 10_000})
    assert dataset.available()
    splits = dataset.load(TEXT, 1, 0)
    assert list(splits.checksums) == [f"standard library of Python {platform.python_version()}"]
    assert int(splits.train.inputs.max()) < 256


def test_too_few_bytes_or_none_and_models_of_no_tokens_are_errors_that_say_what_it_takes(folder):
    with pytest.raises(DataError, match="has 5 bytes; a context of 4 needs 9 at least"):
        loaded(folder, max_bytes=5)
    with pytest.raises(DataError, match=r"path .*nowhere.* has no files to read"):
        loaded(folder / "nowhere")
    with pytest.raises(StudyError, match="is for models of tokens"):
        create_dataset("text").shape(DataShape((1, 28, 28), 10))
