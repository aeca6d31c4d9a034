"""1-bit SGD between ranks: what is lost is kept, what is sent is what the module says."""

import math
from functools import cache
from typing import NamedTuple

import pytest
import torch

from scaling.aggregators.native import AllReduce
from scaling.aggregators.one_bit import OneBit, stripes_of
from scaling.bucket import BucketLayout
from scaling.codecs import one_bit
from scaling.codecs.finite import NotFiniteError
from scaling.errors import LaunchError
from scaling.process_group import InProcessGroup, run_in_process
from scaling.workloads.networks import build_fcn_r, fcn_r
from tests.codecs.wire_words import wire_words

THRESHOLDS = ("zero", "mean")
WORLD_SIZES = (2, 3, 4, 7)

# Columns: 12 divide evenly by 2, 3, 4; 3 and 1 are fewer than many worlds have ranks.
LAYOUT = BucketLayout.of([("wide", (40, 12)), ("narrow", (33, 3)), ("bias", (40,)), ("scalar", ())])


class Step(NamedTuple):
    """What one rank saw of one step."""

    mean: torch.Tensor
    residual: torch.Tensor
    stripes: torch.Tensor  # [num_elements]: the stripe residuals at their places, nought elsewhere
    num_bytes: int
    num_messages: int


def gradient_of(rank: int, step: int, layout: BucketLayout = LAYOUT) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(layout.num_elements, generator=generator)


@cache
def steps_of(
    threshold: str, world_size: int, num_steps: int = 3, layout: BucketLayout = LAYOUT
) -> list[list[Step]]:
    """[step][rank]."""
    aggregator = OneBit(threshold)

    def work(group: InProcessGroup) -> list[Step]:
        state = aggregator.start(layout, group, torch.float32, torch.device("cpu"))
        taken = []
        for number in range(num_steps):
            group.meter.reset()
            mean = aggregator.aggregate(state, gradient_of(group.rank, number, layout))
            stripes = stripes_in_place(
                layout, state.buffers.stripes.bounds, group.rank, state.stripe_residual
            )
            meter = group.meter
            taken.append(
                Step(mean.clone(), state.residual.clone(), stripes, meter.bytes_sent, meter.messages_sent)
            )
        return taken

    return [list(step) for step in zip(*run_in_process(world_size, work), strict=True)]


def stripes_in_place(
    layout: BucketLayout, columns: list[list[tuple[int, int]]], rank: int, stripes: torch.Tensor
) -> torch.Tensor:
    flat, used = torch.zeros(layout.num_elements), 0
    for view, bounds in zip(layout.views(flat), columns, strict=True):
        matrix = one_bit.as_matrix(view)
        own = matrix[:, slice(*bounds[rank])]
        own.copy_(stripes[used : used + own.numel()].view(own.shape))
        used += own.numel()
    assert used == stripes.numel()
    return flat


def message_words(layout: BucketLayout, world_size: int, owner: int) -> int:
    """Words of one rank's stripes, by the formula of the wire."""
    words = 0
    for shape in layout.shapes:
        rows, columns = one_bit.matrix_shape(shape)
        start, stop = stripes_of(columns, world_size)[owner]
        words += (stop - start) * (2 + math.ceil(rows / 32))
    return words


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("threshold", THRESHOLDS)
class TestErrorFeedback:
    def test_mean_and_new_residuals_are_gradients_and_old_residuals(self, threshold, world_size):
        old = torch.zeros(LAYOUT.num_elements, dtype=torch.float64)
        for number, ranks in enumerate(steps_of(threshold, world_size)):
            gradients = sum(gradient_of(rank, number).double() for rank in range(world_size))
            new = sum(step.residual.double() + step.stripes.double() for step in ranks)
            got = world_size * ranks[0].mean.double() + new
            assert torch.allclose(got, gradients + old, rtol=0, atol=1e-5)
            old = new

    def test_nothing_is_lost_over_many_steps(self, threshold, world_size):
        steps = steps_of(threshold, world_size, num_steps=6)
        gradients = sum(
            gradient_of(rank, number).double() for number in range(6) for rank in range(world_size)
        )
        delivered = sum(world_size * ranks[0].mean.double() for ranks in steps)
        owed = sum(step.residual.double() + step.stripes.double() for step in steps[-1])
        assert torch.allclose(delivered + owed, gradients, rtol=0, atol=1e-4)

    def test_every_rank_has_the_same_bits(self, threshold, world_size):
        for ranks in steps_of(threshold, world_size):
            assert all(torch.equal(step.mean, ranks[0].mean) for step in ranks)

    def test_mean_has_two_values_a_column(self, threshold, world_size):
        for view in LAYOUT.views(steps_of(threshold, world_size, 1)[0][0].mean):
            matrix = one_bit.as_matrix(view)
            assert all(len(matrix[:, i].unique()) <= 2 for i in range(matrix.shape[1]))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestTraffic:
    def test_rank_sends_its_peers_their_stripes_and_then_its_own_sum(self, world_size):
        (ranks,) = steps_of("zero", world_size, num_steps=1)
        words = [message_words(LAYOUT, world_size, owner) for owner in range(world_size)]
        for rank, step in enumerate(ranks):
            stripes = sum(words) - words[rank]
            assert step.num_bytes == 4 * (stripes + (world_size - 1) * words[rank])

    def test_messages_are_two_a_peer_less_those_that_are_empty(self, world_size):
        (ranks,) = steps_of("zero", world_size, num_steps=1)
        words = [message_words(LAYOUT, world_size, owner) for owner in range(world_size)]
        for rank, step in enumerate(ranks):
            stripes = sum(bool(words[peer]) for peer in range(world_size) if peer != rank)
            assert step.num_messages == stripes + (world_size - 1) * bool(words[rank])

    def test_bytes_are_the_docstrings_where_columns_divide_evenly(self, world_size):
        layout = BucketLayout.of([("a", (40, 2 * world_size)), ("b", (7, world_size))])
        (ranks,) = steps_of("zero", world_size, num_steps=1, layout=layout)
        whole = 2 * world_size * (8 + 4 * math.ceil(40 / 32)) + world_size * (8 + 4)
        for step in ranks:
            assert step.num_bytes == 2 * (world_size - 1) * whole // world_size
            assert step.num_messages == 2 * (world_size - 1)

    def test_traffic_is_the_same_in_every_step(self, world_size):
        steps = steps_of("mean", world_size)
        traffic = [[(step.num_bytes, step.num_messages) for step in ranks] for ranks in steps]
        assert traffic[0] == traffic[1] == traffic[2]


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
        layout = BucketLayout.of([("bias", (9,))])
        (ranks,) = steps_of("zero", 4, num_steps=1, layout=layout)
        # The owner sends its sum to three peers; the others send it their stripes.
        assert [step.num_messages for step in ranks] == [3, 1, 1, 1]
        assert [step.num_bytes for step in ranks] == [36, 12, 12, 12]
        assert [bool(step.stripes.any()) for step in ranks[1:]] == [False] * 3


def test_alone_nothing_is_quantised_nor_sent():
    (first, *_), *_ = steps_of("zero", 1)
    assert torch.equal(first.mean, gradient_of(0, 0))
    assert (first.num_bytes, first.num_messages) == (0, 0)


def test_first_step_is_the_codecs_own_result():
    ranks = steps_of("zero", 2, num_steps=1)[0]

    def quantised(values: torch.Tensor) -> torch.Tensor:
        return one_bit.decode(one_bit.encode(values, "zero"), values.shape[0])

    gradients = [LAYOUT.views(gradient_of(rank, 0)) for rank in range(2)]
    for index, view in enumerate(LAYOUT.views(ranks[0].mean)):
        first, second = (quantised(one_bit.as_matrix(views[index])) for views in gradients)
        # A stripe's sums over rows may be taken in another order than the matrix's.
        expected = quantised(first + second) / 2
        assert torch.allclose(one_bit.as_matrix(view), expected, rtol=1e-5, atol=1e-6)


def test_fcn_r_is_compressed_30_8_times():
    with torch.device("meta"):
        module = build_fcn_r(fcn_r.shape)
    shapes = [tuple(parameter.shape) for parameter in module.parameters()]
    assert shapes[0] == (2048, 784)  # torch keeps weights as (outputs, inputs)
    matrices = [one_bit.matrix_shape(shape) for shape in shapes]
    num_elements = sum(rows * columns for rows, columns in matrices)
    wire_bytes = sum(columns * (8 + 4 * math.ceil(rows / 32)) for rows, columns in matrices)
    assert num_elements == 14_205_962
    assert wire_bytes == 4 * sum(wire_words(*matrix) for matrix in matrices) == 1_842_212
    assert round(4 * num_elements / wire_bytes, 1) == 30.8


class TestBits:
    @pytest.mark.parametrize("bits", [2, 4, 8, 16])
    @pytest.mark.parametrize("world_size", [2, 3])
    def test_mean_and_new_residuals_are_gradients_and_old_residuals(self, bits, world_size):
        def work(group):
            state = (aggregator := OneBit(bits=bits)).start(LAYOUT, group, torch.float32, torch.device("cpu"))
            total = torch.zeros(LAYOUT.num_elements, dtype=torch.float64)
            for number in range(3):
                total += aggregator.aggregate(state, gradient_of(group.rank, number)).double()
            sent = group.meter.bytes_sent
            assert sent == 3 * aggregator.wire_bytes(LAYOUT, world_size, group.rank, 4)
            return total, state.total_residual().double()

        ranks = run_in_process(world_size, work)
        given = sum(gradient_of(rank, number).double() for rank in range(world_size) for number in range(3))
        assert torch.allclose(world_size * ranks[0][0] + sum(left for _, left in ranks), given, atol=1e-4)
        assert all(torch.equal(mean, ranks[0][0]) for mean, _ in ranks)

    def test_more_bits_lose_less(self):
        def error(bits):
            def work(group):
                aggregator = OneBit(bits=bits)
                state = aggregator.start(LAYOUT, group, torch.float32, torch.device("cpu"))
                return aggregator.aggregate(state, gradient_of(group.rank, 0)).clone()

            mean = sum(gradient_of(rank, 0) for rank in range(2)) / 2
            return float((run_in_process(2, work)[0] - mean).norm())

        errors = [error(bits) for bits in (1, 2, 4, 8, 16, 32)]
        assert errors[1:] == sorted(errors[1:], reverse=True)
        assert errors[0] > errors[2]

    @pytest.mark.parametrize("world_size", [1, 2, 3])
    def test_with_32_it_is_the_plain_all_reduce(self, world_size):
        def work(group):
            results = []
            for aggregator in (OneBit(bits=32), AllReduce()):
                group.meter.reset()
                state = aggregator.start(LAYOUT, group, torch.float32, torch.device("cpu"))
                mean = aggregator.aggregate(state, gradient_of(group.rank, 0).clone()).clone()
                left = state.total_residual()
                assert left is None or not left.any()
                results.append((mean, group.meter.bytes_sent))
            return results

        for (ours, our_bytes), (theirs, their_bytes) in run_in_process(world_size, work):
            assert torch.equal(ours, theirs)
            assert our_bytes == their_bytes


@pytest.mark.parametrize("bits", [1, 32])
class TestDoubleBuffering:
    def results(self, bits, num_steps=4, *, double_buffering, stop_after=None):
        def work(group):
            aggregator = OneBit(bits=bits, double_buffering=double_buffering)

            def started():
                return aggregator.start(LAYOUT, group, torch.float32, torch.device("cpu"))

            state, means = started(), []
            for number in range(num_steps):
                means.append(aggregator.aggregate(state, gradient_of(group.rank, number)).clone())
                if number == stop_after:
                    saved, state = state.state_dict(), started()
                    state.load_state_dict(saved)
            return means, state.total_residual()

        return run_in_process(2, work)

    def test_a_call_gives_the_mean_of_the_call_before(self, bits):
        plain, late = (self.results(bits, double_buffering=late)[0][0] for late in (False, True))
        assert not late[0].any()
        assert all(torch.equal(one, other) for one, other in zip(late[1:], plain[:-1], strict=True))

    def test_what_is_late_is_left_over(self, bits):
        ranks = self.results(bits, double_buffering=True)
        given = sum(gradient_of(rank, number).double() for rank in range(2) for number in range(4))
        got = 2 * sum(mean.double() for mean in ranks[0][0]) + sum(left.double() for _, left in ranks)
        assert torch.allclose(got, given, atol=1e-4)

    def test_it_goes_on_from_a_saved_state(self, bits):
        plain = self.results(bits, double_buffering=True)
        resumed = self.results(bits, double_buffering=True, stop_after=1)
        assert all(torch.equal(a, b) for a, b in zip(plain[0][0], resumed[0][0], strict=True))


def test_residuals_are_kept_by_parameter():
    def work(group):
        state = OneBit().start(LAYOUT, group, torch.float32, torch.device("cpu"))
        OneBit().aggregate(state, gradient_of(group.rank, 0))
        return state.state_dict(), state.residual

    for kept, residual in run_in_process(2, work):
        assert set(kept) == {
            f"{kind}/{name}" for kind in ("residual", "stripe_residual") for name in LAYOUT.names
        }
        assert torch.equal(kept["residual/narrow"], LAYOUT.views(residual)[1])


def test_triton_where_it_cannot_run_is_an_error():
    def work(group):
        OneBit(kernels="triton").start(LAYOUT, group, torch.float32, torch.device("cpu"))

    with pytest.raises(LaunchError, match=r"kernels: triton: .*use kernels: auto or torch"):
        run_in_process(2, work)


def test_a_gradient_that_is_not_a_number_is_named_by_every_rank():
    def work(group):
        state = OneBit().start(LAYOUT, group, torch.float32, torch.device("cpu"))
        gradient = gradient_of(group.rank, 0)
        if group.rank == 1:
            LAYOUT.views(gradient)[1][3, 2] = float("nan")
        OneBit().aggregate(state, gradient)
        with pytest.raises(NotFiniteError, match="'narrow'"):
            state.check()

    run_in_process(3, work)
