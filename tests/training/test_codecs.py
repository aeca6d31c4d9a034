"""Codecs in two real processes: torch's own hooks are the oracle, and each runs as a hook itself."""

import pytest

HOOKED = (
    "one_bit_flat",
    "one_bit_momentum",
    "two_bit",
    "sign",
    "ef_sign",
    "qsgd",
    "top_k",
    "power_sgd",
    "fp16",
    "bf16",
)

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def seen(on_ranks):
    """seen(scenario, key): what both ranks saw."""
    ranks = on_ranks("codecs_worker.py", 2)
    return lambda scenario, key: [rank[scenario][key] for rank in ranks]


class TestBesideTorchsHooks:
    @pytest.mark.parametrize("name", ["fp16", "bf16"])
    def test_sixteen_bits_are_torchs(self, seen, name):
        assert seen("beside_torch", name) == [[0.0] * 5] * 2

    @pytest.mark.parametrize(
        "label",
        [
            "power_sgd rank 1",
            "power_sgd rank 2",
            "power_sgd rank 4",
            "power_sgd without feedback",
            "power_sgd seed 7",
        ],
    )
    def test_power_sgd_is_torchs_to_rounding(self, seen, label):
        for rank in seen("beside_torch", label):
            assert max(rank) < 2e-5, rank


@pytest.mark.parametrize("name", HOOKED)
class TestAsHooks:
    def test_training_learns_with_several_buckets(self, seen, name):
        for rank in seen("as_hooks", name):
            assert int(rank["notes"][0].split()[0]) > 1
            assert sum(rank["losses"][-5:]) < 0.85 * sum(rank["losses"][:5])

    def test_replicas_have_the_same_bits(self, seen, name):
        one, other = seen("as_hooks", name)
        assert one["state"] == other["state"]

    def test_training_resumed_from_saved_residuals_has_the_same_bits(self, seen, name):
        assert [rank["resumed"] for rank in seen("as_hooks", name)] == [True, True]

    def test_nan_on_one_rank_is_an_error_on_both_that_names_the_tensor(self, seen, name):
        one, other = seen("not_finite", name)
        assert one == other
        assert "is NaN or infinite" in one
        assert "'0.weight'" in one or "'2.weight'" in one


@pytest.mark.parametrize("name", ["one_bit", "two_bit"])
def test_residuals_stay_with_their_parameters_when_ddp_rebuilds_buckets(seen, name):
    """Codecs whose values no bucket decides give the eager step's parameters, whatever the order in DDP."""
    for rank in seen("beside_eager", name):
        assert int(rank["notes"][0].split()[0]) > 1
        assert rank["difference"] < 1e-5
