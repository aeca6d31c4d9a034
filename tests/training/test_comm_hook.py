"""`scaling.comm_hook`: an aggregator in a plain DDP loop, on two ranks; on GPUs where there are two."""

import pytest
import torch

from tests.training.comm_hook_worker import AGGREGATORS

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ranks(on_ranks):
    return on_ranks("comm_hook_worker.py", 2)


@pytest.mark.parametrize("name", AGGREGATORS)
class TestAggregator:
    def test_trains_bit_for_bit_as_the_aggregator_called_by_hand(self, ranks, name):
        assert [rank[name]["apart"] for rank in ranks] == [0.0, 0.0]
        assert all(rank[name]["buckets"] > 1 for rank in ranks)
        assert [rank[name]["graphs"] for rank in ranks] == [torch.cuda.device_count() >= 2] * 2

    def test_what_is_withheld_is_saved_and_taken_over_by_other_buckets(self, ranks, name):
        for rank in ranks:
            assert rank[name]["resumes"] == bool(rank[name]["kept"])
            assert bool(rank[name]["kept"]) == (name != "bf16")


def test_an_exchange_that_breaks_its_law_ends_in_exact_means(ranks):
    for rank in ranks:
        assert "times as far off as its law allows" in rank["broken"]["fallback"]
        assert len(rank["broken"]["warnings"]) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("power_sgd_hook", "use one_bit, power_sgd"),
        ("host_serial", "use one_bit, power_sgd"),
        ("one_bit_adam", "use one_bit, power_sgd"),
    ],
)
def test_what_is_no_hook_is_refused(ranks, name, said):
    assert said in ranks[0]["refused"][name]


def test_a_process_group_ends_after_the_graphs_of_its_hooks(ranks):
    assert [rank["closed"] for rank in ranks] == [True, True]


def test_a_model_without_ddp_is_refused(ranks):
    assert "give the DDP model itself" in ranks[0]["no ddp"]
