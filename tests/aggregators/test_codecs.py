"""What codecs deliver between ranks, and who sends what: stripes, all-gathers, 16 bits.

Their laws are in test_compression_laws.py; 16 bits beside PyTorch's hooks in tests/training/test_codecs.py.
"""

import math

import pytest
import torch

from scaling.aggregators.one_bit_adam import OneBitMomentum
from scaling.aggregators.qsgd import Qsgd
from scaling.aggregators.registry import create
from scaling.aggregators.sign import EfSign, Sign
from scaling.aggregators.top_k import TopK
from scaling.aggregators.two_bit import TwoBit
from scaling.bucket import BucketLayout
from scaling.codecs.stripes import stripes_of
from scaling.errors import NotFiniteError, StudyError
from scaling.process_group import run_in_process
from tests.aggregators.conftest import CODECS, steps_of

LAYOUT = BucketLayout.of([("first", (30, 10)), ("second", (300,))])
N = LAYOUT.num_elements


def gradient_of(rank, step):
    return torch.randn(N, generator=torch.Generator().manual_seed(100 * step + rank))


def taken(aggregator, world_size, num_steps=1, gradient=gradient_of, **how):
    return steps_of(aggregator, world_size, LAYOUT, gradient, num_steps, **how)


def first_result(aggregator, world_size, gradient=gradient_of):
    return taken(aggregator, world_size, 1, gradient)[0][0].result


def gradients(world_size, step=0):
    return torch.stack([gradient_of(rank, step) for rank in range(world_size)])


class TestMomentum:
    def test_alone_it_is_torchs(self):
        parameter = torch.nn.Parameter(torch.zeros(N))
        optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.9)
        total = torch.zeros(N)
        (seen,) = taken(OneBitMomentum(0.9), 1, 4)
        for step in range(4):
            parameter.grad = gradient_of(0, step)
            optimizer.step()
            total -= seen[step].result
            assert torch.allclose(parameter.detach(), total, atol=1e-5)

    @pytest.mark.parametrize("momentum", [0.0, 1.0, -0.1])
    def test_outside_of_its_range_is_an_error(self, momentum):
        with pytest.raises(StudyError, match="momentum: allowed is more than 0 to less than 1"):
            OneBitMomentum(momentum)

    def test_correction_is_deep_gradient_compressions(self):
        """u = m u + g; v += u; what is sent is taken out of both."""
        m, k = 0.9, 30
        ranks = taken(TopK(0.05, momentum_correction=m), 2, 4, keep=("residual", "velocity"))
        u, v = torch.zeros(2, N), torch.zeros(2, N)
        for step in range(4):
            u = m * u + gradients(2, step)
            v += u
            places = v.abs().topk(k, dim=1).indices
            sent = torch.zeros(2, N).scatter(1, places, v.gather(1, places))
            v.scatter_(1, places, 0.0)
            u.scatter_(1, places, 0.0)
            assert torch.allclose(ranks[0][step].result, sent.mean(0), atol=1e-6)
            for rank in range(2):
                assert torch.allclose(ranks[rank][step].kept["residual"], v[rank], atol=1e-6)
                assert torch.allclose(ranks[rank][step].kept["velocity"], u[rank], atol=1e-6)

    def test_correction_alone_is_plain_momentum_and_is_said_to_be_its_own(self):
        (seen,) = taken(TopK(0.05, momentum_correction=0.5), 1, 2)
        assert torch.allclose(seen[1].result, gradient_of(0, 1) + 0.5 * gradient_of(0, 0))
        assert create("top_k", {"momentum_correction": 0.9}).own_momentum() == 0.9
        assert create("top_k").own_momentum() == 0


class TestSign:
    def test_result_is_the_majority_of_the_signs(self):
        assert torch.equal(first_result(Sign(64), 3), torch.where(gradients(3) >= 0, 1.0, -1.0).sum(0).sign())

    def test_tie_is_decided_by_the_elements_owner(self):
        signs = torch.where(gradients(2) >= 0, 1.0, -1.0)
        border = 64 * stripes_of(math.ceil(N / 64), 2)[0][1]
        assert torch.equal(first_result(Sign(64), 2), torch.cat([signs[0][:border], signs[1][border:]]))

    def test_rank_of_zeros_abstains(self):
        result = first_result(Sign(64), 2, lambda rank, step: gradient_of(1, 0) * rank)
        assert torch.equal(result, gradient_of(1, 0).sign())

    @pytest.mark.parametrize("world_size", [2, 3, 7])
    @pytest.mark.parametrize(("aggregator", "sent"), [
        (EfSign(1024), lambda g: g.abs().mean(1, keepdim=True) * torch.where(g >= 0, 1.0, -1.0)),
        (TopK(0.05), lambda g: torch.where(g.abs() >= g.abs().topk(30, dim=1).values[:, -1:], g, 0)),
    ], ids=["ef_sign", "top_k"])  # fmt: skip
    def test_with_feedback_it_is_the_mean_of_what_the_ranks_send(self, aggregator, sent, world_size):
        expected = sent(gradients(world_size)).mean(0)
        assert torch.allclose(first_result(aggregator, world_size), expected, atol=1e-6)


def test_two_bits_are_the_mean_of_what_passed_the_threshold_and_small_gradients_arrive_once_they_have_grown():
    passed = 0.5 * ((gradients(3) >= 0.5).float() - (gradients(3) <= -0.5).float())
    assert torch.allclose(first_result(TwoBit(0.5), 3), passed.mean(0))
    ranks = taken(TwoBit(0.5), 2, 4, lambda rank, step: torch.full((N,), 0.2))
    assert [one.result.unique().item() for one in ranks[0]] == pytest.approx([0.0, 0.0, 0.5, 0.0])


def test_random_roundings_of_the_ranks_differ_and_their_mean_comes_near():
    gradient, errors = gradient_of(0, 0), {}
    for world_size in (2, 8):
        seen = taken(Qsgd(4, 128), world_size, 40, lambda rank, step: gradient)[0]
        results = torch.stack([one.result for one in seen])
        assert not torch.equal(results[0], results[1])
        errors[world_size] = (results - gradient).square().mean()
        assert (results.mean(0) - gradient).square().mean() < errors[world_size] / 20
    # Four times the ranks: a quarter of the variance, as only independent roundings give.
    assert errors[8].item() == pytest.approx(errors[2].item() / 4, rel=0.1)


class TestSixteenBits:
    @pytest.mark.parametrize(
        ("name", "values", "mean"),
        [
            *((name, [1.0, 2.0, -4.0, 0.5], -0.125) for name in ("fp16", "bf16")),  # sixteen bits hold it
            ("fp16", [60000.0] * 4, 60000.0),  # division comes before the sum
            ("bf16", [1e6, 0.0], pytest.approx(5e5, rel=2**-8)),
        ],
    )
    def test_mean_is_that_of_the_ranks(self, name, values, mean):
        result = first_result(create(name), len(values), lambda rank, step: torch.full((N,), values[rank]))
        assert result.unique().tolist() == [mean]

    def test_overflow_is_an_error_and_no_silent_infinity(self):
        said = r"the mean gradient in fp16 is NaN or infinite.*'first', 'second'"
        with pytest.raises(NotFiniteError, match=said):
            first_result(create("fp16"), 2, lambda rank, step: torch.full((N,), (1e6, 1.0)[rank]))


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
class TestTraffic:
    def sent(self, aggregator, num_elements, world_size):
        layout = BucketLayout.of([("flat", (num_elements,))])
        ranks = steps_of(aggregator, world_size, layout, lambda rank, step: torch.ones(num_elements))
        return [(seen[0].num_bytes, seen[0].num_messages) for seen in ranks]

    @pytest.mark.parametrize(("name", "size"), [("one_bit_flat", 16), ("one_bit_momentum", 12), ("sign", 12)])
    def test_bytes_are_the_docstrings_where_chunks_divide_evenly(self, name, size, world_size):
        found = self.sent(create(name, {"chunk_elements": 64}), 64 * 2 * world_size, world_size)
        others = 2 * (world_size - 1)
        assert found == [(others / world_size * 2 * world_size * size, others)] * world_size

    def test_two_bits_go_up_and_thirty_two_come_back(self, world_size):
        found = [num_bytes for num_bytes, _ in self.sent(TwoBit(), 1024 * world_size, world_size)]
        assert found == [(world_size - 1) * (1024 / 4 + 4 * 1024)] * world_size

    def test_ranks_without_chunks_send_their_one_stripe_and_no_sum(self, world_size):
        found = self.sent(create("one_bit_flat"), 9, world_size)
        assert found == [(12 * (world_size - 1), world_size - 1)] + [(12, 1)] * (world_size - 1)

    @pytest.mark.parametrize(
        ("aggregator", "size"), [(EfSign(64), 10 * 12), (TopK(0.05), 8 * 30), (Qsgd(4, 128), 5 * 68)]
    )
    def test_in_an_all_gather_every_rank_sends_its_encoding_to_each_other(self, aggregator, size, world_size):
        others = world_size - 1
        assert self.sent(aggregator, N, world_size) == [(others * size, others)] * world_size


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("name", [name for name in CODECS if " " not in name and "16" not in name])
def test_what_is_not_finite_on_one_rank_is_an_error_on_all_that_names_the_tensor(name, value):
    layout = BucketLayout.of([("first", (32, 96)), ("second", (1024,)), ("third", (1024,))])

    def work(group):
        aggregator = create(name)
        state = aggregator.start(layout, group, torch.float32, torch.device("cpu"))
        gradient = torch.randn(layout.num_elements)
        gradient[4000] = value if group.rank == 2 else 0.5
        aggregator.aggregate(state, gradient)
        with pytest.raises(NotFiniteError, match="in 'second':"):
            state.check()
        return True

    assert run_in_process(3, work) == [True] * 3
