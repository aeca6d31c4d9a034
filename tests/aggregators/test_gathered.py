"""Compressed all-gathers: what each rank adds up, and Deep Gradient Compression's momentum."""

import pytest
import torch

from scaling.aggregators.qsgd import Qsgd
from scaling.aggregators.registry import create
from scaling.aggregators.sign import EfSign
from scaling.aggregators.top_k import TopK
from scaling.bucket import BucketLayout
from scaling.errors import NotFiniteError
from scaling.process_group import run_in_process

CPU = torch.device("cpu")
LAYOUT = BucketLayout.of([("first", (30, 10)), ("second", (300,))])
N = LAYOUT.num_elements
WORLD_SIZES = (2, 3, 7)


def gradient_of(rank, step):
    return torch.randn(N, generator=torch.Generator().manual_seed(100 * step + rank))


def steps_of(aggregator, world_size, num_steps=4):
    """[rank][step] -> (result, residual, velocity, bytes, messages)."""

    def work(group):
        state = aggregator.start(LAYOUT, group, torch.float32, CPU)
        seen = []
        for step in range(num_steps):
            group.meter.reset()
            result = aggregator.aggregate(state, gradient_of(group.rank, step)).clone()
            meter = group.meter
            seen.append(
                (
                    result,
                    state.residual.clone(),
                    state.velocity.clone(),
                    meter.bytes_sent,
                    meter.messages_sent,
                )
            )
        return seen

    return run_in_process(world_size, work)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestFirstStep:
    def test_ef_sign_is_the_mean_of_the_ranks_scaled_signs(self, world_size):
        ranks = steps_of(EfSign(1024), world_size, 1)
        expected = torch.zeros(N)
        for rank in range(world_size):
            gradient = gradient_of(rank, 0)
            expected += gradient.abs().mean() * torch.where(gradient >= 0, 1.0, -1.0) / world_size
        assert torch.allclose(ranks[0][0][0], expected, atol=1e-6)

    def test_top_k_is_the_mean_of_the_ranks_largest(self, world_size):
        ranks = steps_of(TopK(0.05), world_size, 1)
        expected = torch.zeros(N)
        for rank in range(world_size):
            gradient = gradient_of(rank, 0)
            largest = gradient.abs() >= gradient.abs().topk(30).values[-1]
            expected += torch.where(largest, gradient, 0) / world_size
        assert torch.allclose(ranks[0][0][0], expected, atol=1e-6)

    def test_every_rank_sends_its_encoding_to_each_other_one(self, world_size):
        for aggregator, size in ((EfSign(64), 10 * 12), (TopK(0.05), 8 * 30), (Qsgd(4, 128), 5 * 68)):
            for (_, _, _, num_bytes, num_messages), *_ in steps_of(aggregator, world_size, 1):
                assert (num_bytes, num_messages) == ((world_size - 1) * size, world_size - 1)


def test_random_roundings_of_the_ranks_differ_and_their_mean_comes_near():
    def gradient(rank, step):
        return gradient_of(0, 0)

    aggregator = Qsgd(4, 128)

    def work(group):
        state = aggregator.start(LAYOUT, group, torch.float32, CPU)
        return [aggregator.aggregate(state, gradient(group.rank, 0)).clone() for _ in range(40)]

    errors = {}
    for world_size in (2, 8):
        results = torch.stack(run_in_process(world_size, work)[0])
        assert not torch.equal(results[0], results[1])
        errors[world_size] = (results - gradient(0, 0)).square().mean()
        assert (results.mean(0) - gradient(0, 0)).square().mean() < errors[world_size] / 20
    # Four times the ranks: a quarter of the variance, as only independent roundings give.
    assert errors[8].item() == pytest.approx(errors[2].item() / 4, rel=0.1)


class TestMomentumCorrection:
    def test_it_is_deep_gradient_compressions(self):
        """u = m u + g; v += u; what is sent is taken out of both."""
        m, k = 0.9, 30
        ranks = steps_of(TopK(0.05, momentum_correction=m), 2)
        u, v = torch.zeros(2, N), torch.zeros(2, N)
        for step in range(4):
            u = m * u + torch.stack([gradient_of(rank, step) for rank in range(2)])
            v += u
            places = v.abs().topk(k, dim=1).indices
            sent = torch.zeros(2, N).scatter(1, places, v.gather(1, places))
            v.scatter_(1, places, 0.0)
            u.scatter_(1, places, 0.0)
            assert torch.allclose(ranks[0][step][0], sent.mean(0), atol=1e-6)
            for rank in range(2):
                assert torch.allclose(ranks[rank][step][1], v[rank], atol=1e-6)
                assert torch.allclose(ranks[rank][step][2], u[rank], atol=1e-6)

    def test_alone_it_is_plain_momentum(self):
        (seen,) = steps_of(TopK(0.05, momentum_correction=0.5), 1, 2)
        assert torch.allclose(seen[1][0], gradient_of(0, 1) + 0.5 * gradient_of(0, 0))

    def test_it_says_that_the_momentum_is_its_own(self):
        assert create("top_k", {"momentum_correction": 0.9}).own_momentum() == 0.9
        assert create("top_k").own_momentum() == 0


@pytest.mark.parametrize("name", ["ef_sign", "qsgd", "top_k"])
def test_infinity_on_one_rank_is_an_error_on_all_that_names_the_tensor(name):
    aggregator = create(name, {} if name == "top_k" else {"chunk_elements": 32})

    def work(group):
        state = aggregator.start(LAYOUT, group, torch.float32, CPU)
        gradient = gradient_of(group.rank, 0)
        if group.rank == 1:
            gradient[5] = float("-inf")
        aggregator.aggregate(state, gradient)
        with pytest.raises(NotFiniteError, match="in 'first'"):
            state.check()
        return True

    assert run_in_process(3, work) == [True] * 3
