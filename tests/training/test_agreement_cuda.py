"""On GPUs, over NCCL, the exact aggregators train alike at every world size, eager and in a CUDA graph."""

import pytest
import torch

EAGER = ("all_reduce", "ring", "tree", "host_parallel")
WAYS = [*(("eager", name) for name in EAGER), *(("captured", name) for name in EAGER[:-1])]
NETWORKS = ("fcn-r", "convolutional, sync")
"""Those of agreement_cuda_worker.py."""
WORKER = "agreement_cuda_worker.py"
REFERENCE = "eager, all_reduce"
NUM_STEPS = 100

pytestmark = [pytest.mark.gpu(2), pytest.mark.processes]


@pytest.fixture(scope="module")
def alone(on_ranks):
    """What one worker saw."""
    return on_ranks(WORKER, 1)


@pytest.fixture(scope="module", params=[1, 2, pytest.param(4, marks=pytest.mark.gpu(4))])
def ranks(request, on_ranks, alone):
    """What each of several workers saw."""
    return alone if request.param == 1 else on_ranks(WORKER, request.param)


def seen_by(rank: dict, key: str) -> dict:
    assert "failed" not in rank[key], rank[key]["failed"]
    return rank[key]


def largest_difference(one: list[float], other: list[float]) -> float:
    """Relative."""
    a, b = (torch.tensor(values, dtype=torch.float64) for values in (one, other))
    return ((a - b).abs() / b.abs()).max().item()


@pytest.mark.parametrize("network", NETWORKS)
def test_training_is_long_enough_and_learns(alone, network):
    losses = seen_by(alone[0], f"{network}, {REFERENCE}")["losses"]
    assert len(losses) == NUM_STEPS
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


@pytest.mark.parametrize(("way", "aggregator"), WAYS)
@pytest.mark.parametrize("network", NETWORKS)
class TestExactAggregators:
    def test_losses_agree_with_one_worker(self, alone, ranks, network, way, aggregator):
        expected = seen_by(alone[0], f"{network}, {REFERENCE}")["losses"]
        for rank in ranks:
            losses = seen_by(rank, f"{network}, {way}, {aggregator}")["losses"]
            assert largest_difference(losses, expected) < 1e-5

    def test_parameters_are_the_same_bits_on_all_ranks(self, ranks, network, way, aggregator):
        assert len({seen_by(rank, f"{network}, {way}, {aggregator}")["digest"] for rank in ranks}) == 1
