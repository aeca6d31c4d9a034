"""Compressed stripes: momentum's own law, votes, and who sends what."""

import math

import pytest
import torch

from scaling.aggregators.one_bit_adam import OneBitMomentum
from scaling.aggregators.registry import create
from scaling.aggregators.sign import Sign
from scaling.aggregators.two_bit import TwoBit
from scaling.bucket import BucketLayout
from scaling.codecs.stripes import stripes_of
from scaling.errors import NotFiniteError, StudyError
from scaling.process_group import run_in_process

CPU = torch.device("cpu")
LAYOUT = BucketLayout.of([("conv", (6, 3, 5, 5)), ("bias", (6,)), ("wide", (40, 37))])
N = LAYOUT.num_elements
WORLD_SIZES = (2, 3, 4, 7)


def gradient_of(rank, step):
    return torch.randn(N, generator=torch.Generator().manual_seed(100 * step + rank))


def steps_of(aggregator, world_size, num_steps=4, gradient=gradient_of, layout=LAYOUT):
    """[rank][step] -> (result, withheld, bytes, messages)."""

    def work(group):
        state = aggregator.start(layout, group, torch.float32, CPU)
        seen = []
        for step in range(num_steps):
            group.meter.reset()
            result = aggregator.aggregate(state, gradient(group.rank, step)).clone()
            state.check()
            seen.append((result, state.withheld(), group.meter.bytes_sent, group.meter.messages_sent))
        return seen

    return run_in_process(world_size, work)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_momentum_is_conserved_with_both_residuals(momentum, world_size):
    ranks = steps_of(OneBitMomentum(momentum, 64), world_size)
    withheld = torch.zeros(N, dtype=torch.float64)
    last = torch.zeros(N, dtype=torch.float64)
    for step in range(4):
        gradients = sum(gradient_of(rank, step).double() for rank in range(world_size))
        expected = gradients + world_size * momentum * last + withheld
        last = ranks[0][step][0].double()
        withheld = sum(seen[step][1].double() for seen in ranks)
        assert torch.allclose(world_size * last + withheld, expected, rtol=0, atol=1e-4)


def test_momentum_alone_is_torchs():
    parameter = torch.nn.Parameter(torch.zeros(N))
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.9)
    total = torch.zeros(N)
    (seen,) = steps_of(OneBitMomentum(0.9), 1)
    for step in range(4):
        parameter.grad = gradient_of(0, step)
        optimizer.step()
        total -= seen[step][0]
        assert torch.allclose(parameter.detach(), total, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 1.0, -0.1])
def test_momentum_outside_of_its_range_is_an_error(momentum):
    with pytest.raises(StudyError, match="momentum: allowed is more than 0 to less than 1"):
        OneBitMomentum(momentum)


class TestSign:
    def test_result_is_the_majority_of_the_signs(self):
        ranks = steps_of(Sign(64), 3, 1)
        votes = torch.stack([torch.where(gradient_of(rank, 0) >= 0, 1.0, -1.0) for rank in range(3)])
        assert torch.equal(ranks[0][0][0], votes.sum(0).sign())
        assert ranks[0][0][1] is None

    def test_tie_is_decided_by_the_elements_owner(self):
        (first, *_), _ = steps_of(Sign(64), 2, 1)
        signs = [torch.where(gradient_of(rank, 0) >= 0, 1.0, -1.0) for rank in range(2)]
        border = 64 * stripes_of(math.ceil(N / 64), 2)[0][1]
        assert torch.equal(first[0], torch.cat([signs[0][:border], signs[1][border:]]))

    def test_rank_of_zeros_abstains(self):
        ranks = steps_of(Sign(64), 2, 1, lambda rank, step: gradient_of(1, 0) * rank)
        assert torch.equal(ranks[0][0][0], gradient_of(1, 0).sign())


class TestTwoBit:
    def test_result_is_the_mean_of_what_passed_the_threshold(self):
        ranks = steps_of(TwoBit(0.5), 3, 1)
        gradients = torch.stack([gradient_of(rank, 0) for rank in range(3)])
        passed = 0.5 * ((gradients >= 0.5).float() - (gradients <= -0.5).float())
        assert torch.allclose(ranks[0][0][0], passed.mean(0))

    def test_small_gradients_arrive_once_they_have_grown(self):
        ranks = steps_of(TwoBit(0.5), 2, 4, lambda rank, step: torch.full((N,), 0.2))
        assert [result.unique().item() for result, *_ in ranks[0]] == pytest.approx([0.0, 0.0, 0.5, 0.0])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestTraffic:
    def test_bytes_are_the_docstrings_where_chunks_divide_evenly(self, world_size):
        layout = BucketLayout.of([("flat", (64 * 2 * world_size,))])
        n = layout.num_elements
        sizes = {
            "one_bit_flat": n * (8 + 64 / 8) / 64,
            "one_bit_momentum": n * (4 + 8) / 64,
            "sign": n * 12 / 64,
        }
        for name, size in sizes.items():
            ranks = steps_of(
                create(name, {"chunk_elements": 64}), world_size, 1, lambda rank, step: torch.ones(n), layout
            )
            for (_, _, num_bytes, num_messages), *_ in ranks:
                assert num_bytes == 2 * (world_size - 1) / world_size * size
                assert num_messages == 2 * (world_size - 1)

    def test_two_bits_go_up_and_thirty_two_come_back(self, world_size):
        layout = BucketLayout.of([("flat", (1024 * world_size,))])
        n = layout.num_elements
        ranks = steps_of(TwoBit(), world_size, 1, lambda rank, step: torch.ones(n), layout)
        assert [seen[0][2] for seen in ranks] == [
            (world_size - 1) / world_size * (n / 4 + 4 * n)
        ] * world_size

    def test_ranks_without_chunks_send_their_one_stripe_and_no_sum(self, world_size):
        layout = BucketLayout.of([("bias", (9,))])
        ranks = steps_of(create("one_bit_flat"), world_size, 1, lambda rank, step: torch.ones(9), layout)
        assert [seen[0][3] for seen in ranks] == [world_size - 1] + [1] * (world_size - 1)
        assert [seen[0][2] for seen in ranks] == [12 * (world_size - 1)] + [12] * (world_size - 1)


@pytest.mark.parametrize("name", ["one_bit_flat", "one_bit_momentum", "two_bit", "sign"])
def test_infinity_on_one_rank_is_an_error_on_all_that_names_the_tensor(name):
    aggregator = create(name)

    def work(group):
        state = aggregator.start(LAYOUT, group, torch.float32, CPU)
        gradient = gradient_of(group.rank, 0)
        if group.rank == 2:
            gradient[-1] = float("inf")
        aggregator.aggregate(state, gradient)
        try:
            state.check()
        except NotFiniteError as error:
            return str(error)

    messages = set(run_in_process(3, work))
    assert len(messages) == 1
    assert "in 'wide':" in messages.pop()
