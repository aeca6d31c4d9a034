"""PowerSGD between ranks; beside PyTorch's hook in tests/training/test_codecs.py."""

import pytest
import torch

from scaling.aggregators import power_sgd
from scaling.aggregators.power_sgd import PowerSgd
from scaling.bucket import BucketLayout
from scaling.process_group import run_in_process
from tests.aggregators.conftest import steps_of

CPU = torch.device("cpu")
LAYOUT = BucketLayout.of([("a", (40, 30)), ("bias", (40,)), ("b", (30, 40)), ("c", (40, 30))])


def run(aggregator, gradients, num_steps=1):
    """Rank 0's results, from [rank] gradients that stay the same."""
    ranks = steps_of(aggregator, len(gradients), LAYOUT, lambda rank, _: gradients[rank], num_steps)
    return [step.result for step in ranks[0]]


def of_rank(rank, num_ranks=3):
    """Gradients whose matrices' mean has that matrix rank."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.zeros(LAYOUT.num_elements)
    for view in LAYOUT.views(shared):
        if view.dim() == 2:
            left, right = (torch.randn(size, rank, generator=generator) for size in view.shape)
            view.copy_(left @ right.t())
        else:
            view.normal_(generator=generator)
    weights = torch.rand(num_ranks, generator=generator)
    return [num_ranks * weight / weights.sum() * shared for weight in weights], shared


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_means_of_low_rank_are_exact_after_one_step(rank):
    gradients, mean = of_rank(rank)
    (result,) = run(PowerSgd(rank), gradients)
    assert torch.allclose(result, mean, rtol=1e-4, atol=1e-4)


def test_warm_start_comes_nearer_with_every_step_and_cold_starts_differ():
    """Without feedback, on the same gradient: the power iteration finds its first singular pair."""
    gradients, mean = of_rank(4)
    results = run(PowerSgd(1, error_feedback=False), gradients, 30)
    best = torch.zeros_like(mean)
    for target, view in zip(LAYOUT.views(best), LAYOUT.views(mean), strict=True):
        if view.dim() == 2:
            u, s, v = torch.linalg.svd(view)
            target.copy_(s[0] * u[:, :1] @ v[:1])
        else:
            target.copy_(view)
    errors = [(result - best).norm() / best.norm() for result in results]
    assert errors[-1] < 0.05 < errors[0]
    cold = run(PowerSgd(1, error_feedback=False, warm_start=False), gradients, 30)
    assert (cold[-1] - mean).norm() > (results[-1] - mean).norm()
    assert not any(torch.allclose(cold[step], cold[step + 1], rtol=1e-2) for step in (0, 1))


def test_vectors_are_sent_as_they_are():
    gradients, mean = of_rank(3)
    (result,) = run(PowerSgd(1), gradients)
    assert torch.allclose(LAYOUT.views(result)[1], LAYOUT.views(mean)[1], atol=1e-6)


@pytest.mark.parametrize("rank", [1, 2])
def test_residuals_are_the_same_taken_batch_by_batch_and_at_once(rank, monkeypatch):
    gradients, _ = of_rank(4)

    def results(large_bytes):
        monkeypatch.setattr(power_sgd, "LARGE_BATCH_BYTES", large_bytes)
        return run(PowerSgd(rank), gradients, 5)

    for one, other in zip(results(0), results(1 << 40), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("rank", [1, 2])
def test_on_a_gpu_it_is_what_it_is_on_a_cpu(rank):
    """With matrices that lie in strided batches, several shapes, and residuals that go on."""
    layer = [("conv", (16, 16, 3, 3)), ("norm", (16,)), ("dense", (64, 48)), ("bias", (64,))]
    layers = [(f"{kind}{number}", shape) for number in range(4) for kind, shape in layer]
    layout = BucketLayout.of([("first", (16, 3, 3, 3)), *layers, ("last", (10, 64))])

    def work_on(device):
        def work(group):
            state = PowerSgd(rank).start(layout, group, torch.float32, device)
            seen = []
            for step in range(4):
                generator = torch.Generator().manual_seed(10 * step + group.rank)
                gradient = torch.randn(layout.num_elements, generator=generator).to(device)
                seen.append(PowerSgd(rank).aggregate(state, gradient).cpu().clone())
            state.check()
            return [*seen, state.total_residual().cpu()]

        return run_in_process(2, work)[0]

    for seen, expected in zip(work_on(torch.device("cuda")), work_on(CPU), strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-3, atol=1e-3)
