"""Every codec on two GPUs over NCCL: as on the CPU, without waiting for the device, and in a CUDA graph."""

import pytest

NAMES = (
    *("one_bit", "one_bit_flat", "one_bit_momentum", "two_bit", "sign", "ef_sign", "qsgd", "top_k"),
    *("power_sgd", "fp16", "bf16"),
)
"""Those of codecs_cuda_worker.py."""

STATELESS = ("sign", "fp16", "bf16")
"""These withhold nothing."""

LARGEST_SHARE = 1e-4
"""Of elements that a rounding in a mean has sent to the other side of a threshold, or to another level."""
SIXTEEN_BITS = {"fp16": 2**-11, "bf16": 2**-8}
"""Half a unit in the last place of the largest value."""

pytestmark = [pytest.mark.gpu(2), pytest.mark.processes]


@pytest.fixture(scope="module")
def ranks(on_ranks):
    return on_ranks("codecs_cuda_worker.py", 2)


@pytest.fixture
def both(ranks, name):
    """What both ranks saw of a codec."""
    for rank in ranks:
        assert "failed" not in rank[name], rank[name]["failed"]
    return [rank[name] for rank in ranks]


@pytest.mark.parametrize("name", NAMES)
class TestOnTwoGpus:
    def test_results_are_those_of_the_cpu(self, both, name):
        for rank in both:
            assert len(rank["off"]) == 3
            for largest, share in rank["off"]:
                assert share <= LARGEST_SHARE or largest <= 2 * SIXTEEN_BITS.get(name, 0)

    def test_no_step_waits_for_the_device(self, both, name):
        assert [rank["waits"] for rank in both] == ["", ""]

    @pytest.mark.parametrize("way", ["captured", "captured layered", "hooked"])
    def test_captured_it_trains_bit_for_bit_as_eager(self, both, name, way):
        assert [rank[way] for rank in both] == [0.0, 0.0]

    @pytest.mark.parametrize("way", ["resumed", "resumed layered"])
    def test_captured_it_resumes_bit_for_bit(self, both, name, way):
        for rank in both:
            assert rank[way]["resumed"] == rank[way]["uncut"]
            assert rank[way]["apart"] == 0.0
            # What was withheld up to the checkpoint is part of it.
            if name not in STATELESS:
                assert rank[way]["forgetful"] != rank[way]["uncut"]

    def test_nan_on_one_rank_is_an_error_on_both_that_names_the_tensor(self, both, name):
        one, other = (rank["not_finite"] for rank in both)
        assert one == other
        assert "is NaN or infinite" in one
        assert "'fc'" in one

    def test_what_is_withheld_moves_into_a_bucket_of_another_order(self, both, name):
        for rank in both:
            assert rank["moved"] is None or rank["moved"] < 1e-5
