"""Codecs as DDP's hooks: what is withheld follows the parameters when DDP makes other buckets of them."""

import pytest
import torch

WITH_RESIDUALS = ("one_bit", "one_bit_flat", "one_bit_momentum", "two_bit", "ef_sign", "top_k", "power_sgd")
WITHOUT = ("sign", "qsgd", "fp16", "bf16")
STRETCHES = range(4)
"""Of rebuilt_buckets_worker.py: each continues in other buckets what the one before has saved."""

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ranks(on_ranks):
    return on_ranks("rebuilt_buckets_worker.py", 2)


@pytest.mark.parametrize("name", WITH_RESIDUALS)
@pytest.mark.parametrize("stretch", STRETCHES)
def test_what_was_put_in_and_not_got_out_is_withheld_parameter_by_parameter(ranks, name, stretch):
    """The law of residuals over all steps so far, with DDP's own buckets, rebuilt and changed."""
    seen = [rank[name]["stretches"][stretch] for rank in ranks]
    assert len(seen[0]["owed"]) == 6
    for parameter in seen[0]["owed"]:
        owed, withheld = (
            sum(torch.tensor(rank[way][parameter]) for rank in seen) for way in ("owed", "withheld")
        )
        assert torch.allclose(withheld, owed, rtol=0, atol=1e-5), parameter
        if name not in ("power_sgd", "two_bit"):  # which send small tensors, and large values, as they are
            assert bool(withheld.any())


@pytest.mark.parametrize("name", [*WITH_RESIDUALS, *WITHOUT])
class TestEveryCodec:
    def test_ddp_rebuilds_its_buckets_and_states_are_those_of_the_rebuilt_ones(self, ranks, name):
        for rank in ranks:
            several = rank[name]["stretches"][0]
            first, *later = several["passes"]
            assert first != later[0]
            assert [bucket for one in later for bucket in one] == several["states"] * len(later)

    def test_buckets_differ_from_stretch_to_stretch(self, ranks, name):
        several, one, fewer, again = (len(each["states"]) for each in ranks[0][name]["stretches"])
        assert one == 1 < fewer < several == again

    def test_replicas_have_the_same_bits(self, ranks, name):
        one, other = (rank[name]["parameters"] for rank in ranks)
        assert one == other


def test_residuals_are_never_fed_to_buckets_of_other_parameters(ranks):
    assert all("DDP has rebuilt its buckets again" in rank["too early"] for rank in ranks)
