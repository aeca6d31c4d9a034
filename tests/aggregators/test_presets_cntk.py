"""CNTK's 1-bit SGD with its own columns, and its 32-bit aggregation."""

import math

import pytest
import torch

from scaling.aggregators.one_bit import OneBit
from scaling.aggregators.presets.cntk import PACK_THRESHOLD_BYTES, Cntk, Cntk32Bit
from scaling.bucket import BucketLayout
from scaling.codecs import one_bit
from scaling.codecs.stripes import stripes_of
from tests.aggregators.conftest import NETWORK, layout_of, of_states, one_step
from tests.codecs.test_one_bit import wire_words

WORLD_SIZES = (1, 2, 3, 4, 7)
FILTER = BucketLayout.of([("conv.weight", (6, 4, 5, 3)), ("conv.bias", (6,))])


def ratio(model, view):
    """Bytes of 32-bit gradients over bytes on the wire: 4 R a column over 8 + 4 ceil(R / 32)."""
    matrices = [one_bit.matrix_shape(shape, view) for shape in layout_of(model).shapes]
    plain = sum(4 * rows * columns for rows, columns in matrices)
    wire = sum(columns * (8 + 4 * math.ceil(rows / 32)) for rows, columns in matrices)
    assert wire == 4 * sum(wire_words(*matrix) for matrix in matrices)
    return plain / wire


class TestCompression:
    @pytest.mark.parametrize(("model", "view", "expected"), [
        ("fcn-r", "cntk", 30.85), ("fcn-r", "torch", 30.85), ("alexnet-r", "cntk", 1.73),
        ("alexnet-r", "torch", 11.25), ("resnet-56", "cntk", 1.00), ("resnet-56", "torch", 13.36),
    ])  # fmt: skip
    def test_ratio_is_that_of_the_columns(self, model, view, expected):
        assert round(ratio(model, view), 2) == expected

    @pytest.mark.parametrize("world_size", WORLD_SIZES)
    def test_traffic_is_the_stripes_in_cntks_columns(self, world_size):
        words = [0] * world_size
        for shape in NETWORK.shapes:
            rows, columns = one_bit.matrix_shape(shape, "cntk")
            for owner, (start, stop) in enumerate(stripes_of(columns, world_size)):
                words[owner] += wire_words(rows, stop - start)
        for rank, outcome in enumerate(one_step(Cntk(), world_size, NETWORK)):
            expected = 4 * (sum(words) - words[rank] + (world_size - 1) * words[rank])
            assert outcome.num_bytes == (expected if world_size > 1 else 0)


class TestColumns:
    def test_mean_has_two_values_in_each_row_of_a_filter(self):
        mean = one_step(Cntk(), 3, FILTER)[0].mean
        rows = FILTER.views(mean)[0].reshape(-1, 3)
        assert all(len(row.unique()) <= 2 for row in rows)
        assert len(FILTER.views(mean)[0][:, 0, 0, 0].unique()) > 2

    def test_matrices_are_those_of_one_bit_and_filters_those_of_its_view(self):
        matrices = BucketLayout.of([("weight", (40, 12)), ("bias", (40,)), ("scale", ())])
        for layout, other in ((matrices, OneBit()), (FILTER, OneBit(view="cntk"))):
            pairs = zip(one_step(Cntk(), 3, layout), one_step(other, 3, layout), strict=True)
            assert all(torch.equal(a.mean, b.mean) for a, b in pairs)
        assert not torch.equal(one_step(Cntk(), 3, FILTER)[0].mean, one_step(OneBit(), 3, FILTER)[0].mean)


class Test32Bit:
    @pytest.mark.parametrize("transport", ["host", "device"])
    @pytest.mark.parametrize("world_size", WORLD_SIZES)
    def test_traffic_is_one_packed_message_and_one_a_large_tensor(self, world_size, transport):
        sizes = [4 * math.prod(shape) for shape in NETWORK.shapes]
        small = sum(size for size in sizes if size <= PACK_THRESHOLD_BYTES)
        large = [size for size in sizes if size > PACK_THRESHOLD_BYTES]
        assert len(large) == 1
        rounds = 2 * (world_size - 1)
        num_bytes = sum(size * rounds // world_size for size in [small, *large])
        # Both messages also go to host memory and back.
        copies = (2 * sum(sizes), 4) if transport == "host" and world_size > 1 else (0, 0)
        for outcome in one_step(Cntk32Bit(transport), world_size, NETWORK):
            assert outcome.aggregate_traffic == (num_bytes + copies[0], 2 * rounds + copies[1])

    def test_32_kib_are_packed_and_one_element_more_is_not(self):
        layout = BucketLayout.of([("a", (8192,)), ("b", (8193,)), ("c", (5,)), ("d", (0,))])

        def spans(state):
            return state.packed_spans, state.spans, [buffer.numel() for buffer in state.on_host]

        expected = [(0, 8192), (16385, 16390)], [(8192, 16385)], [8197, 8193]
        assert of_states(Cntk32Bit(), layout, 1, spans) == [expected]

    def test_both_transports_sum_alike(self):
        host, device = (one_step(Cntk32Bit(transport), 3, NETWORK) for transport in ("host", "device"))
        assert all(torch.equal(a.mean, b.mean) for a, b in zip(host, device, strict=True))
