"""Synthetic data: adapts to the model, depends on the seed alone."""

import pytest
import torch

from scaling.errors import StudyError
from scaling.workloads.base import DataShape
from scaling.workloads.synthetic import Synthetic

SHAPE = DataShape((3, 4, 5), 7)


def test_is_not_real_and_always_available():
    assert not Synthetic.real
    assert Synthetic().available()
    Synthetic().fetch()


def test_takes_the_shape_of_its_parameters_and_from_the_model_what_they_leave_open():
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


def test_numbers_depend_on_the_seed_alone_whatever_the_global_generator():
    first = Synthetic().load(SHAPE, 10, 3)
    torch.rand(5)
    second = Synthetic().load(SHAPE, 10, 3)
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert first.checksums == second.checksums != Synthetic().load(SHAPE, 10, 4).checksums


def test_inputs_differ_from_weights_made_from_the_same_seed():
    torch.manual_seed(3)
    weights = torch.randn(10, 3, 4, 5)
    assert not torch.equal(Synthetic().load(SHAPE, 10, 3).train.inputs, weights)


class TestTokens:
    TEXTS = DataShape((6,), 50, tokens=True)

    def test_model_of_tokens_is_given_tokens(self):
        assert Synthetic().shape(self.TEXTS) == self.TEXTS
        assert Synthetic((9,)).shape(self.TEXTS) == DataShape((9,), 50, tokens=True)

    def test_every_token_has_the_next_one_as_its_target(self):
        train = Synthetic().load(self.TEXTS, 10, 0).train
        assert train.inputs.shape == train.targets.shape == (10, 6)
        assert (train.inputs.dtype, train.targets.dtype) == (torch.int64, torch.int64)
        assert torch.equal(train.targets[:, :-1], train.inputs[:, 1:])

    def test_tokens_are_uniform_over_the_vocabulary(self):
        counts = Synthetic().load(self.TEXTS, 2000, 1).train.inputs.flatten().bincount(minlength=50)
        assert len(counts) == 50
        # 12,000 / 50 of each, within six standard deviations of the binomial distribution
        assert (counts - 240).abs().max() < 6 * (12_000 * 49 / 2500) ** 0.5

    def test_depends_on_the_seed_alone_and_is_checked(self):
        first, again, other = (Synthetic().load(self.TEXTS, 10, seed) for seed in (3, 3, 4))
        assert first.checksums == again.checksums != other.checksums
        assert len(first.test) == 10
