"""Methods of a user's states under their old names: they work one version more, with a warning."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from scaling.aggregators import AggregatorState
from scaling.bucket import BucketLayout
from scaling.process_group import run_in_process

LAYOUT = BucketLayout.of([("a", (3,)), ("b", (2,))])


def old_state():
    """A state as another version's documentation would have it."""

    @dataclass
    class Old(AggregatorState):
        residual: Tensor
        drawn: Tensor
        by_parameter = ("residual",)

        def left_over(self):
            return self.residual.clone()

        def kept(self):
            return super().kept() | {"drawn": self.drawn}

    return Old


@pytest.fixture
def old():
    with pytest.warns(FutureWarning, match="rename it") as warned:
        cls = old_state()
    assert [str(warning.message).partition("defines ")[2].split(":")[0] for warning in warned] == [
        "`kept`, now called `checkpoint_tensors`",
        "`left_over`, now called `total_residual`",
    ]
    return cls


def state_of(cls, *values):
    return cls(run_in_process(1, lambda group: group)[0], LAYOUT, *values)


def test_a_residual_under_its_old_name_is_found_under_the_new_one(old):
    state = state_of(old, torch.arange(5.0), torch.tensor(7))
    assert torch.equal(state.total_residual(), torch.arange(5.0))
    assert torch.equal(state.withheld(), torch.arange(5.0))


def test_tensors_under_their_old_name_are_saved_and_loaded(old):
    saved = state_of(old, torch.arange(5.0), torch.tensor(7)).state_dict()
    assert sorted(saved) == ["drawn", "residual/a", "residual/b"]
    other = state_of(old, torch.zeros(5), torch.tensor(0))
    other.load_state_dict(saved)
    assert (other.residual.tolist(), int(other.drawn)) == ([0.0, 1.0, 2.0, 3.0, 4.0], 7)


def test_a_subclass_with_the_new_names_of_one_with_the_old_ones_uses_its_own(old):
    class New(old):
        def total_residual(self):
            return super().total_residual() + 1

    state = state_of(New, torch.zeros(5), torch.tensor(0))
    assert state.total_residual().tolist() == state.left_over().tolist() == [1.0] * 5


def test_new_names_warn_of_nothing(recwarn):
    @dataclass
    class New(AggregatorState):
        def total_residual(self):
            return torch.ones(1)

    assert not recwarn.list
    assert state_of(New).left_over().tolist() == [1.0]
