"""How 1-bit codes are laid out: planes, views of tensors as matrices, packed bits."""

import pytest
import torch

from scaling.bucket import BucketLayout
from scaling.codecs import one_bit_stripes
from scaling.codecs.chunks import pack, unpack
from scaling.codecs.finite import FiniteWatch, NotFiniteError
from scaling.codecs.one_bit import as_matrix, matrix_shape
from scaling.codecs.one_bit_stripes import PlaneStripes, StripeBuffers, TorchStripes
from scaling.codecs.stripes import StripeLayout

CPU = torch.device("cpu")
SHAPES = {"a": (100, 17), "b": (33, 5), "c": (1, 9), "d": (40,), "e": (), "f": (3, 2, 5, 4), "g": (0, 4)}
LAYOUT = BucketLayout.of(list(SHAPES.items()))
WORLD_SIZE = 3


@pytest.fixture(autouse=True)
def every_matrix_is_large(monkeypatch):
    monkeypatch.setattr(one_bit_stripes, "MIN_ELEMENTS", 0)


def pair(threshold, view="torch", bits=1):
    stripes = StripeLayout.of(LAYOUT, view, bits, WORLD_SIZE)
    return [
        [kind(StripeBuffers(stripes, rank, CPU), threshold) for rank in range(WORLD_SIZE)]
        for kind in (PlaneStripes, TorchStripes)
    ]


def limits_and_words(codec):
    """All messages of a rank: (limits, words)."""
    buffers, limits, words = codec.buffers, [], []
    for owner in range(WORLD_SIZE):
        message = buffers.incoming[owner] if owner == buffers.rank else buffers.outgoing[owner]
        for number in range(len(LAYOUT.names)):
            lower, upper, packed = buffers.stripes.parts(message, number, owner)
            limits += [lower, upper]
            words.append(packed.flatten())
    return torch.cat(limits), torch.cat(words)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("view", ["torch", "cntk"])
@pytest.mark.parametrize("threshold", ["zero", "mean"])
@pytest.mark.parametrize("scale", [0.0, 1e-37, 1.0, 1e30])
def test_a_step_is_the_reference(threshold, view, scale):
    ours, theirs = pair(threshold, view)
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(LAYOUT.num_elements, generator=generator) * scale for _ in range(WORLD_SIZE)]
    close = {"rtol": 1e-5, "atol": 1e-5 * scale + 1e-44}
    for rank in range(WORLD_SIZE):
        for codec in (ours[rank], theirs[rank]):
            codec.encode(gradients[rank])
        (limits, words), (expected, expected_words) = map(limits_and_words, (ours[rank], theirs[rank]))
        torch.testing.assert_close(limits, expected, **close)
        assert torch.equal(words, expected_words)
        torch.testing.assert_close(ours[rank].buffers.residual, theirs[rank].buffers.residual, **close)
        ours[rank].buffers.wire.copy_(theirs[rank].buffers.wire)
    for sender in range(WORLD_SIZE):
        for codecs in (ours, theirs):
            for owner in range(WORLD_SIZE):
                if owner != sender:
                    codecs[owner].buffers.incoming[sender].copy_(theirs[sender].buffers.outgoing[owner])
    for rank in range(WORLD_SIZE):
        for codec in (ours[rank], theirs[rank]):
            codec.encode_sums()
        residuals = [codec.buffers.stripe_residual for codec in (ours[rank], theirs[rank])]
        torch.testing.assert_close(*residuals, **close)
        for codecs in (ours, theirs):
            codecs[0].buffers.gathered[rank].copy_(theirs[rank].buffers.gathered[rank])
    results = [torch.empty(LAYOUT.num_elements) for _ in range(2)]
    for codec, result in zip((ours[0], theirs[0]), results, strict=True):
        codec.decode(result)
    assert torch.equal(*results)


def test_negative_zero_is_not_negative():
    ours, theirs = pair("zero")
    for codec in (ours[0], theirs[0]):
        codec.buffers.residual.fill_(-0.0)
        codec.encode(torch.full((LAYOUT.num_elements,), -0.0))
    assert torch.equal(limits_and_words(ours[0])[1], limits_and_words(theirs[0])[1])


@pytest.mark.parametrize("kind", [PlaneStripes, TorchStripes])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_named(kind, value):
    watch = FiniteWatch.of_tensors(LAYOUT, CPU)
    codec = kind(StripeBuffers(StripeLayout.of(LAYOUT, "torch", 1, 1), 0, CPU, watch.marks), "zero")
    gradient, result = torch.randn(LAYOUT.num_elements), torch.empty(LAYOUT.num_elements)
    LAYOUT.views(gradient)[1][20, 3] = value
    for _ in range(2):
        codec.encode(gradient)
        codec.encode_sums()
        codec.decode(result)
        gradient.fill_(float("nan"))  # everything else, one step later: says nothing of where it began
    with pytest.raises(NotFiniteError, match="in 'b':"):
        watch.raise_if_marked()


@pytest.mark.parametrize("view", ["torch", "cntk"])
@pytest.mark.parametrize("shape", [
    (), (7,), (0,), (40, 12), (0, 3), (3, 0), (2, 3, 4), (6, 4, 5, 3), (0, 4, 5, 3), (6, 4, 5, 0),
    (1, 1, 1, 1),
], ids=str)  # fmt: skip
def test_matrix_is_a_view_of_its_shape_in_which_nothing_is_lost(shape, view):
    tensor = torch.arange(float(torch.Size(shape).numel())).view(shape)
    matrix = as_matrix(tensor, view)
    assert tuple(matrix.shape) == matrix_shape(shape, view)
    assert sorted(matrix.flatten().tolist()) == tensor.flatten().tolist()
    matrix.fill_(-3)
    assert tensor.eq(-3).all()


class TestCntk:
    def test_columns_of_a_filter_are_its_rows_in_cntks_order(self):
        # torch's [K, C, H, W] is CNTK's W x H x C x K, whose first axes vary fastest.
        tensor = torch.arange(2 * 3 * 5 * 4.0).view(2, 3, 5, 4)
        matrix = as_matrix(tensor, "cntk")
        assert tuple(matrix.shape) == (4, 5 * 3 * 2)
        columns = iter(range(30))
        for k in range(2):
            for c in range(3):
                for h in range(5):
                    assert torch.equal(matrix[:, next(columns)], tensor[k, c, h])

    @pytest.mark.parametrize("shape", [(), (7,), (40, 12), (2, 3, 4)], ids=str)
    def test_all_others_are_as_before(self, shape):
        assert matrix_shape(shape, "cntk") == matrix_shape(shape, "torch")
        tensor = torch.randn(shape)
        assert torch.equal(as_matrix(tensor, "cntk"), as_matrix(tensor))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(0, 32), (1, 32), (3, 64), (2, 5, 96)])
def test_unpack_gives_what_pack_took_in_bits_eighths_of_the_bytes(bits, shape):
    codes = torch.randint(0, 2**bits, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    packed = pack(codes, bits)
    assert (packed.dtype, packed.shape) == (torch.uint8, (*shape[:-1], shape[-1] * bits // 8))
    assert torch.equal(unpack(packed, bits), codes)


def test_booleans_are_codes_of_one_bit_and_byte_b_holds_every_bth_element():
    codes = torch.zeros(1, 32, dtype=torch.bool)
    codes[0, [0, 4, 5]] = True  # byte 0 of 4 holds elements 0, 4, 8, ...; byte 1 holds 1, 5, 9, ...
    assert pack(codes, 1).tolist() == [[0b11, 0b10, 0, 0]]
