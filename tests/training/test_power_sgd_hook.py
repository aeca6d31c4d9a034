"""torch's PowerSGD hook as an arm, on 2 and 4 ranks: torch's by hand is the oracle."""

import pytest

ARMS = ("usual", "later, rank 2", "cold", "without feedback", "batched")
SHAPES = [(24, 12), (24,), (24, 24), (24,), (6, 24), (6,)]
NUM_ELEMENTS = 24 * 12 + 24 + 24 * 24 + 24 + 6 * 24 + 6
START = {"later, rank 2": 5}

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, on_ranks):
    return on_ranks("power_sgd_hook_worker.py", request.param, CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("label", ARMS)
def test_training_has_the_bits_of_torchs_hook_by_hand(ranks, label):
    seen = [rank["agreement"][label] for rank in ranks]
    assert all(rank["same"] for rank in seen)
    assert all(rank["parameters"] == seen[0]["parameters"] for rank in seen)
    assert (seen[0]["num_buckets"] > 1) == (label != "cold")


@pytest.mark.parametrize("label", ["usual", "later, rank 2"])
def test_what_torch_sends_is_metered_step_by_step(ranks, label):
    start, n = START.get(label, 2), len(ranks)
    for rank in ranks:
        steps = rank["metering"][label]
        assert all(metered == sent for metered, sent in steps)
        sent = [metered for metered, _ in steps]
        assert sent[:start] == [pytest.approx(4 * NUM_ELEMENTS * 2 * (n - 1) / n, abs=6)] * start
        assert max(sent[start:]) < 0.6 * sent[0]


def matrices(size):
    """P and Q of the matrices that this makes more than twice smaller."""
    chosen = [shape for shape in SHAPES if len(shape) == 2 and sum(shape) * size * 2 < shape[0] * shape[1]]
    return {"p": size * sum(rows for rows, _ in chosen), "q": size * sum(columns for _, columns in chosen)}


@pytest.mark.parametrize("label", ARMS)
def test_its_memory_is_a_residual_and_thin_matrices_from_the_first_compressed_step(ranks, label):
    expected = {"residual": NUM_ELEMENTS, **matrices(2 if label == "later, rank 2" else 1)}
    if label == "without feedback":
        del expected["residual"]
    if label == "cold":
        expected = {"residual": NUM_ELEMENTS}
    for rank in ranks:
        first, settled, last = rank["kept"][label]
        assert (first, settled, last) == ({}, {}, expected)


@pytest.mark.parametrize("label", ARMS)
def test_a_resumed_training_has_the_same_bits(ranks, label):
    assert all(rank["resumed"][label] for rank in ranks)


@pytest.mark.parametrize("label", ARMS)
def test_a_runs_checks_see_the_law_of_residuals_and_change_nothing(ranks, label):
    law = "not checked: lossy" if label == "without feedback" else "residuals"
    for rank in ranks:
        found = rank["checked"][label]
        assert found["exchange"].startswith(law)
        assert (found["same"], found["steps"]) == (True, 4)
        assert found["largest_error_ratio"] <= 1.0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("other_buckets", "belongs to a bucket of other parameters"),
        ("scalar", "parameter 'scale' is a scalar, which torch's PowerSGD hook does not take"),
        ("early", "start_step: allowed is 2 or more"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(ranks, what, message):
    assert all(message in rank["refused"][what] for rank in ranks)
