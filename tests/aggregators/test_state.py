"""What states save and take over: by the layout, and under the names that methods had."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from scaling.aggregators import AggregatorState
from scaling.aggregators.registry import BUILT_IN, create
from scaling.aggregators.state import require_same_on_ranks
from scaling.bucket import BucketLayout
from scaling.errors import LaunchError
from scaling.process_group import run_in_process

SAME = [("a", (3, 4)), ("b", (5,))]
OTHERS = {
    "another shape of as many elements": [("a", (4, 3)), ("b", (5,))],
    "another order": [("b", (5,)), ("a", (3, 4))],
    "another name": [("a", (3, 4)), ("c", (5,))],
    "one tensor more": [*SAME, ("c", ())],
}


def test_equal_layouts_have_equal_digests_and_others_do_not():
    digests = {BucketLayout.of(tensors).digest() for tensors in (SAME, list(SAME), *OTHERS.values())}
    assert len(digests) == 1 + len(OTHERS)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_equal_layouts_pass_and_nothing_is_metered(world_size):
    def work(group):
        group.meter.count(5)
        require_same_on_ranks(BucketLayout.of(SAME), group)
        return group.meter.bytes_sent, group.meter.messages_sent

    assert run_in_process(world_size, work) == [(5, 1)] * world_size


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("odd", [0, 2])
def test_one_rank_that_differs_is_an_error_on_every_rank(other, odd):
    def work(group):
        tensors = OTHERS[other] if group.rank == odd else SAME
        said = "the ranks have different tensors to bring together; rank"
        with pytest.raises(LaunchError, match=said) as raised:
            require_same_on_ranks(BucketLayout.of(tensors), group)
        return f"rank {group.rank} has {tensors[0][0]} " in str(raised.value)

    assert run_in_process(3, work) == [True] * 3


LOSSY = [name for name in BUILT_IN if create(name).lossy and create(name).library is None]


@pytest.mark.parametrize("name", [name for name in LOSSY if name != "power_sgd_hook"])
def test_codecs_compare_before_they_exchange(name):
    """All but that within DDP, which compares by itself."""

    def work(group):
        layout = BucketLayout.of(SAME if group.rank else OTHERS["another order"])
        with pytest.raises(LaunchError):
            create(name).start(layout, group, torch.float32, torch.device("cpu"))
        return True

    assert run_in_process(2, work) == [True] * 2


LAYOUT = BucketLayout.of([("a", (3,)), ("b", (2,))])


@pytest.fixture
def old():
    """A state as another version's documentation would have it."""
    with pytest.warns(FutureWarning, match="rename it") as warned:

        @dataclass
        class Old(AggregatorState):
            residual: Tensor
            drawn: Tensor
            by_parameter = ("residual",)

            def left_over(self):
                return self.residual.clone()

            def kept(self):
                return super().kept() | {"drawn": self.drawn}

    assert [str(warning.message).partition("defines ")[2].split(":")[0] for warning in warned] == [
        "`kept`, now called `checkpoint_tensors`",
        "`left_over`, now called `total_residual`",
    ]
    return Old


def state_of(cls, *values):
    return cls(run_in_process(1, lambda group: group)[0], LAYOUT, *values)


def test_what_bears_its_old_name_is_found_saved_and_loaded_under_the_new_one(old):
    state, other = (state_of(old, values, torch.tensor(7)) for values in (torch.arange(5.0), torch.zeros(5)))
    other.drawn.zero_()
    assert torch.equal(state.total_residual(), torch.arange(5.0))
    assert torch.equal(state.withheld(), torch.arange(5.0))
    saved = state.state_dict()
    assert sorted(saved) == ["drawn", "residual/a", "residual/b"]
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
