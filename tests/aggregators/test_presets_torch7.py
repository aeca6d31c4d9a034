"""Torch7's star over one GPU, and its sums and steps on the CPU."""

import pytest
import torch

from scaling.aggregators.presets.torch7 import TorchCpu, TorchDpt
from scaling.bucket import BucketLayout
from scaling.collectives.schedule import chunk_bounds

WORLD_SIZES = (1, 2, 3, 4, 7)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestDpt:
    def test_rank_0_sends_to_all_and_the_others_once(self, world_size, network, step):
        num_bytes = 4 * network.num_elements
        outcomes = step(TorchDpt(), world_size, network)
        for rank, outcome in enumerate(outcomes):
            assert outcome.aggregate_traffic == (num_bytes * (rank != 0), int(rank != 0))
            down = (world_size - 1) * (rank == 0)
            assert outcome.distribute_traffic == (down * num_bytes, down)

    def test_sums_one_rank_after_the_other(self, world_size, network):
        schedule = TorchDpt().schedule(world_size, network)
        assert len(schedule.steps) == 2 * (world_size - 1)
        assert [step[0].source for step in schedule.steps[: world_size - 1]] == [*range(1, world_size)]
        assert all(len(step) == 1 for step in schedule.steps)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestCpu:
    def test_what_goes_to_the_host_is_the_gradient(self, world_size, network, step):
        for outcome in step(TorchCpu(), world_size, network):
            assert outcome.aggregate_traffic == (4 * network.num_elements, 1)
            assert outcome.distribute_traffic == (4 * network.num_elements, 1)  # the parameters come back

    def test_every_rank_owns_its_share_of_the_elements(self, world_size, network, step):
        bounds = chunk_bounds(network.num_elements, world_size)
        for rank, outcome in enumerate(step(TorchCpu(), world_size, network)):
            assert outcome.owned == [(bounds[rank], bounds[rank + 1])]

    def test_sum_is_in_the_order_of_the_ranks(self, world_size, network, step):
        outcomes = step(TorchCpu(), world_size, network)
        dpt = step(TorchDpt(), world_size, network)[0].mean
        for outcome in outcomes:
            for start, stop in outcome.owned:
                assert torch.equal(outcome.mean[start:stop], dpt[start:stop])


def test_rank_without_elements_owns_nothing_and_returns_none(step):
    outcomes = step(TorchCpu(), 4, BucketLayout.of([("bias", (2,))]))
    assert [outcome.owned for outcome in outcomes] == [[], [(0, 1)], [], [(1, 2)]]
    assert [outcome.mean is None for outcome in outcomes] == [True, False, True, False]
