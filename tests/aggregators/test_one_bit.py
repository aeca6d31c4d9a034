"""1-bit SGD between ranks: what is lost is kept, what is sent is what the module says.

Its laws are checked with those of the other codecs (test_compression_laws.py).
"""

import math

import pytest
import torch

from scaling.aggregators.native import AllReduce
from scaling.aggregators.one_bit import OneBit
from scaling.bucket import BucketLayout
from scaling.codecs import one_bit
from scaling.codecs.stripes import stripes_of
from scaling.conformance.drawn import check_drawn
from scaling.errors import LaunchError
from scaling.process_group import run_in_process
from tests.aggregators.conftest import steps_of

THRESHOLDS = ("zero", "mean")
WORLD_SIZES = (2, 3, 4, 7)
CPU = torch.device("cpu")

# Columns: 12 divide evenly by 2, 3, 4; 3 and 1 are fewer than many worlds have ranks.
LAYOUT = BucketLayout.of([("wide", (40, 12)), ("narrow", (33, 3)), ("bias", (40,)), ("scalar", ())])


def gradient_of(rank, step, layout=LAYOUT):
    return torch.randn(layout.num_elements, generator=torch.Generator().manual_seed(100 * step + rank))


def taken(world_size, num_steps=1, layout=LAYOUT, keep=(), **fields):
    def gradient(rank, step):
        return gradient_of(rank, step, layout)

    return steps_of(OneBit(**fields), world_size, layout, gradient, num_steps, keep)


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_mean_has_two_values_a_column(world_size, threshold):
    for view in LAYOUT.views(taken(world_size, threshold=threshold)[0][0].result):
        assert all(len(column.unique()) <= 2 for column in one_bit.as_matrix(view).t())


@pytest.mark.parametrize("world_size", [1, *WORLD_SIZES])
def test_rank_sends_its_peers_their_stripes_and_then_its_own_sum_and_nothing_empty(world_size):
    words, peers = [0] * world_size, world_size - 1
    for shape in LAYOUT.shapes:
        rows, columns = one_bit.matrix_shape(shape)
        for owner, (start, stop) in enumerate(stripes_of(columns, world_size)):
            words[owner] += (stop - start) * (2 + math.ceil(rows / 32))
    expected = [
        (4 * (sum(words) - own + peers * own), sum(map(bool, words)) - bool(own) + peers * bool(own))
        for own in words
    ]
    for threshold in THRESHOLDS:
        for ranks in zip(*taken(world_size, 3, threshold=threshold), strict=True):
            assert [(step.num_bytes, step.num_messages) for step in ranks] == expected


class TestStripes:
    @pytest.mark.parametrize("num_columns", [0, 1, 3, 7, 8, 100])
    @pytest.mark.parametrize("world_size", [1, 2, 3, 7, 8])
    def test_stripes_are_the_columns_and_differ_by_one_at_most(self, num_columns, world_size):
        stripes = stripes_of(num_columns, world_size)
        widths = [stop - start for start, stop in stripes]
        assert [column for stripe in stripes for column in range(*stripe)] == list(range(num_columns))
        assert widths == sorted(widths, reverse=True)
        assert max(widths) - min(widths) <= 1

    def test_last_ranks_own_nothing_where_columns_are_fewer(self):
        assert stripes_of(2, 4) == [(0, 1), (1, 2), (2, 2), (2, 2)]
        ranks = taken(4, layout=BucketLayout.of([("bias", (9,))]), keep=["stripe_residual"])
        # The owner sends its sum to three peers; the others send it their stripes.
        assert [(s.num_bytes, s.num_messages) for (s,) in ranks] == [(36, 3), (12, 1), (12, 1), (12, 1)]
        assert [s.kept["stripe_residual"].numel() for (s,) in ranks] == [9, 0, 0, 0]


def test_first_step_is_the_codecs_own_result():
    def quantised(values):
        return one_bit.decode(one_bit.encode(values, "zero"), values.shape[0])

    gradients = [LAYOUT.views(gradient_of(rank, 0)) for rank in range(2)]
    for index, view in enumerate(LAYOUT.views(taken(2)[0][0].result)):
        first, second = (quantised(one_bit.as_matrix(views[index])) for views in gradients)
        # A stripe's sums over rows may be taken in another order than the matrix's.
        expected = quantised(first + second) / 2
        assert torch.allclose(one_bit.as_matrix(view), expected, rtol=1e-5, atol=1e-6)


class TestBits:
    def test_more_bits_lose_less(self):
        mean = (gradient_of(0, 0) + gradient_of(1, 0)) / 2
        errors = [float((taken(2, bits=n)[0][0].result - mean).norm()) for n in (1, 2, 4, 8, 16, 32)]
        assert errors[1:] == sorted(errors[1:], reverse=True)
        assert errors[0] > errors[2]

    @pytest.mark.parametrize("world_size", [1, 2, 3])
    def test_with_32_it_is_the_plain_all_reduce(self, world_size):
        plain = steps_of(AllReduce(), world_size, LAYOUT, gradient_of)
        for (ours,), (theirs,) in zip(taken(world_size, bits=32), plain, strict=True):
            assert torch.equal(ours.result, theirs.result)
            assert ours.num_bytes == theirs.num_bytes
            assert ours.withheld is None or not ours.withheld.any()


@pytest.mark.parametrize("bits", [1, 32])
class TestDoubleBuffering:
    def results(self, bits, stop_after=None):
        def work(group):
            aggregator = OneBit(bits=bits, double_buffering=True)
            state, means = aggregator.start(LAYOUT, group, torch.float32, CPU), []
            for number in range(4):
                means.append(aggregator.aggregate(state, gradient_of(group.rank, number)).clone())
                if number == stop_after:
                    saved, state = state.state_dict(), aggregator.start(LAYOUT, group, torch.float32, CPU)
                    state.load_state_dict(saved)
            return means

        return run_in_process(2, work)

    def test_a_call_gives_the_mean_of_the_call_before_also_from_a_saved_state(self, bits):
        late, resumed = (self.results(bits, stop_after)[0] for stop_after in (None, 1))
        assert not late[0].any()
        plain = [step.result for step in taken(2, 3, bits=bits)[0]]
        assert all(torch.equal(one, other) for one, other in zip(late[1:], plain, strict=True))
        assert all(torch.equal(one, other) for one, other in zip(late, resumed, strict=True))

    @pytest.mark.parametrize("world_size", [2, 3])
    def test_it_keeps_the_contract_in_every_type(self, bits, world_size):
        assert check_drawn(OneBit(bits=bits, double_buffering=True), world_size, 3)


def test_triton_where_it_cannot_run_is_an_error():
    with pytest.raises(LaunchError, match=r"kernels: triton: .*use kernels: auto or torch"):
        taken(2, kernels="triton")
