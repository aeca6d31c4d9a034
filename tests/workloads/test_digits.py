"""scikit-learn's digits: shapes, range, and a split that never changes."""

import sys

import pytest
import torch

from scaling.errors import DataError
from scaling.workloads.base import DataShape
from scaling.workloads.digits import Digits

SHAPE = DataShape((1, 8, 8), 10)


@pytest.fixture(scope="module")
def splits():
    return Digits().load(SHAPE, 0, 0)


def test_shape_does_not_depend_on_the_model():
    assert Digits().shape(None) == Digits().shape(DataShape((1, 28, 28), 10)) == SHAPE


def test_split_has_1437_and_360_samples_of_the_declared_shape(splits):
    assert (splits.train.inputs.shape, splits.test.inputs.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert (splits.train.inputs.dtype, splits.train.targets.dtype) == (torch.float32, torch.int64)


def test_every_class_is_in_both_splits(splits):
    assert splits.train.targets.unique().tolist() == splits.test.targets.unique().tolist() == list(range(10))


def test_train_and_test_together_are_all_samples_once_in_sixteenths(splits):
    from sklearn.datasets import load_digits

    ours = torch.cat([splits.train.inputs, splits.test.inputs]).flatten(1) * 16
    targets = torch.cat([splits.train.targets, splits.test.targets])
    rows = sorted(zip(map(tuple, ours.tolist()), targets.tolist(), strict=True))
    raw = load_digits()
    assert rows == sorted(zip(map(tuple, raw.data.tolist()), raw.target.tolist(), strict=True))


def test_split_is_the_same_for_every_seed(splits):
    again = Digits().load(SHAPE, 10, 12345)
    assert torch.equal(again.train.inputs, splits.train.inputs)
    assert torch.equal(again.test.targets, splits.test.targets)
    # The first of numpy's RandomState(0).permutation(1797), whose stream is frozen.
    assert splits.train.targets[:8].tolist() == [2, 8, 2, 6, 6, 7, 1, 9]


def test_checksum_is_that_of_the_published_arrays(splits):
    assert splits.checksums == {
        "load_digits": "sha256:87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    }


def test_missing_scikit_learn_is_an_error_that_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert not Digits().available()
    with pytest.raises(DataError, match="pip install scikit-learn"):
        Digits().load(SHAPE, 0, 0)
