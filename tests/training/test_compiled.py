"""torch.compile in eager and overlapped steps: the same training, and under DDP a graph for each bucket."""

import pytest

from tests.training.compiled_worker import CASES

TOLERANCE = {"float32": 1e-5, "bf16": 2.0**-8}

pytestmark = pytest.mark.processes


@pytest.fixture(
    scope="module", params=[pytest.param(1, marks=pytest.mark.gpu), 2], ids=["one GPU", "two workers"]
)
def ranks(request, on_ranks):
    """What each worker saw."""
    return on_ranks("compiled_worker.py", request.param)


@pytest.mark.parametrize(("precision", "arm", "way"), CASES)
def test_a_compiled_step_learns_what_the_plain_one_does(ranks, precision, arm, way):
    for rank in ranks:
        plain, compiled = (rank[f"{precision}, {arm}, {way}, {how}"] for how in ("plain", "compiled"))
        assert compiled["losses"] == pytest.approx(plain["losses"], rel=TOLERANCE[precision])
        assert plain["graphs"] == 0 < compiled["graphs"]


@pytest.mark.parametrize("arm", ["all_reduce", "ring"])
def test_ddp_splits_the_graph_at_the_ends_of_its_buckets(ranks, arm):
    for rank in ranks:
        eager = rank["float32, all_reduce, eager, compiled"]["graphs"]
        whole, split = (
            rank[f"float32, {arm}, {way}, compiled"]["graphs"] for way in ("one bucket", "several")
        )
        assert (whole, split > 2) == (eager, True)


def test_the_check_compares_a_compiled_step_with_compiled_gradients(ranks):
    for rank in ranks:
        assert rank["check"]["right"]["exchange"] == "exact mean"
        assert rank["check"]["right"]["exchanges"] == 2
        assert rank["check"]["right"]["largest_error_ratio"] <= 1.0


def test_and_finds_a_wrong_mean_of_it(ranks):
    for rank in ranks:
        assert "1.05 times it, where the exact mean is" in rank["check"]["wrong"]
