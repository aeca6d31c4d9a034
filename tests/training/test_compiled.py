"""torch.compile in eager and overlapped steps: the same training, and under DDP a graph for each bucket."""

import pytest

ARMS = (("none", "float32"), ("all_reduce", "float32"), ("ring", "float32"), ("all_reduce", "bf16"))
BUCKETS = ("one bucket", "several")
"""Those of compiled_worker.py."""
TOLERANCE = {"float32": 1e-5, "bf16": 2.0**-8}

pytestmark = pytest.mark.processes


@pytest.fixture(
    scope="module", params=[pytest.param(1, marks=pytest.mark.gpu), 2], ids=["one GPU", "two workers"]
)
def ranks(request, on_ranks):
    """What each worker saw."""
    return on_ranks("compiled_worker.py", request.param, 500)


@pytest.mark.parametrize("way", ["eager", *BUCKETS])
@pytest.mark.parametrize(("arm", "precision"), ARMS)
def test_a_compiled_step_learns_what_the_plain_one_does(ranks, arm, way, precision):
    for rank in ranks:
        plain, compiled = (rank[f"{precision}, {arm}, {way}, {how}"] for how in ("plain", "compiled"))
        assert compiled["losses"] == pytest.approx(plain["losses"], rel=TOLERANCE[precision])
        assert plain["graphs"] == 0 < compiled["graphs"]


@pytest.mark.parametrize("arm", ["all_reduce", "ring"])
def test_ddp_splits_the_graph_at_the_ends_of_its_buckets(ranks, arm):
    for rank in ranks:
        whole, split = (rank[f"float32, {arm}, {way}, compiled"]["graphs"] for way in BUCKETS)
        assert (whole, split > 2) == (rank[f"float32, {arm}, eager, compiled"]["graphs"], True)
