"""Kernels of codecs by chunks are their reference: on a GPU, or interpreted (`test_kernels_interpreted`)."""

import os

import pytest
import torch

from scaling.aggregators.one_bit_adam import NormSignCodec
from scaling.aggregators.one_bit_flat import OneBitFlatCodec
from scaling.aggregators.qsgd import QsgdCodec
from scaling.aggregators.sign import MeanSignCodec, VoteCodec
from scaling.aggregators.two_bit import TwoBitCodec
from scaling.bucket import BucketLayout
from scaling.codecs.chunks import Momentum, PlainChunks, TorchChunks, unpack
from scaling.codecs.finite import FiniteWatch, NotFiniteError
from scaling.codecs.kernels import chunk_engine, triton_problem
from scaling.codecs.kernels.chunk_engine import BlockSize, TritonChunks
from scaling.codecs.noise import Noise

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CPU = torch.device("cpu")
DEVICE = CPU if IS_INTERPRETED else torch.device("cuda")

# Without a GPU they run interpreted, from test_kernels_interpreted.
pytestmark = [
    *([pytest.mark.sampled(12)] if IS_INTERPRETED else [pytest.mark.gpu]),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy's, of the interpreter: division by zero
    pytest.mark.skipif(triton_problem(DEVICE) is not None, reason="needs Triton"),
]

TWO_WAYS = [OneBitFlatCodec(64), OneBitFlatCodec(96), MeanSignCodec(64), NormSignCodec(64), VoteCodec(64)]
CODECS = [*TWO_WAYS, OneBitFlatCodec(1024), TwoBitCodec(64, 0.5)]
CODECS += [QsgdCodec(64, 2), QsgdCodec(96, 4), QsgdCodec(64, 8), QsgdCodec(128, 4, "max")]
KEEPS_RESIDUAL = (OneBitFlatCodec, MeanSignCodec, NormSignCodec, TwoBitCodec)
ENDS = [0.0, 1e-37, 1e30]
SHARED = BlockSize(elements=512, whole=512)
"""Larger chunks are shared by programs."""


def normal(num, seed=0, scale=1.0):
    return torch.randn(num, generator=torch.Generator().manual_seed(seed)) * scale


def restored(codec, rows):
    """As `decode`, with one of the two means to the bit, as on a GPU."""
    if not isinstance(codec, OneBitFlatCodec):
        return codec.decode(rows)
    heads = codec.heads(rows)
    return torch.where(codes_of(codec, rows).bool(), heads[..., 1:2], heads[..., 0:1])


def codes_of(codec, rows):
    return unpack(rows[..., codec.head :].contiguous().view(torch.uint8), codec.code_bits())


def same_heads(ours, theirs):
    """To rounding; not finite in the same chunks."""
    finite = theirs.isfinite().all(1)
    assert torch.equal(ours.isfinite().all(1), finite)
    assert torch.allclose(ours[finite], theirs[finite], rtol=1e-5, atol=1e-43)


def check(codec, values, uniform, rows, residual, valid):
    """Heads to rounding; for these heads, codes and residual to the bit."""
    expected = torch.zeros_like(rows)
    codec.encode(values, valid, expected, uniform)
    heads, codes = codec.heads(rows), codes_of(codec, rows)
    same_heads(heads, codec.heads(expected))
    if isinstance(codec, QsgdCodec):
        factor = torch.where(heads > 0, codec.num_levels / heads, 0.0)
        levels = (values.abs() * factor + uniform).floor().clamp(max=codec.num_levels).nan_to_num(0.0)
        signs = torch.signbit(values).to(torch.uint8) << (codec.level_bits - 1)
        assert torch.equal(codes, levels.to(torch.uint8) | signs)
    else:
        assert torch.equal(rows[:, codec.head :], expected[:, codec.head :])
    if residual is not None:
        finite = heads.isfinite().all(1) & (codes != 1).all(1) if codec.bits == 2 else heads.isfinite().all(1)
        left = values - restored(codec, rows)
        filling = residual.numel() - int(valid.sum())
        left.view(-1)[left.numel() - filling :] = 0
        assert torch.equal(residual[finite], left[finite])
        assert bool((residual.view(-1)[residual.numel() - filling :] == 0).all())


def encoded(codec, num, scale=1.0, size=None, gradient=None):
    """One step of the kernels: (values, uniform, rows, residual, valid) on the CPU."""
    chunks = codec.chunks(num)
    gradient = normal(num, 1, scale) if gradient is None else gradient
    left = torch.zeros(chunks.padded)
    if isinstance(codec, KEEPS_RESIDUAL):
        left[:num] = normal(num, 2, scale)
    residual = left.clone().to(DEVICE) if isinstance(codec, KEEPS_RESIDUAL) else torch.zeros(0, device=DEVICE)
    rows = torch.zeros(chunks.num_chunks, codec.row_words(chunks.chunk_elements), dtype=torch.int32)
    rows = rows.to(DEVICE)
    uniform, noise = None, None
    if codec.needs_noise:
        uniform = chunks.matrix(Noise(chunks.padded, 3, CPU).uniform())
        noise = Noise(chunks.padded, 3, DEVICE)
    coder = TritonChunks(codec, codec, chunks, DEVICE, size=size)
    coder.encode(gradient.to(DEVICE), residual, rows, noise=noise)
    left[:num] = left[:num] + gradient if residual.numel() else gradient
    after = chunks.matrix(residual.cpu()) if residual.numel() else None
    return chunks.matrix(left), uniform, rows.cpu(), after, chunks.valid(CPU)


@pytest.mark.parametrize("codec", CODECS, ids=str)
class TestEncode:
    @pytest.mark.parametrize("num", [1, 31, 64, 1027])
    def test_is_the_reference(self, codec, num):
        check(codec, *encoded(codec, num))

    @pytest.mark.parametrize("scale", ENDS)
    def test_is_the_reference_at_the_ends_of_the_range(self, codec, scale):
        check(codec, *encoded(codec, 1001, scale))

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    def test_what_is_not_finite_shows_in_its_own_chunk_alone(self, codec, value):
        gradient = normal(1001, 1)
        gradient[999] = value
        values, uniform, rows, residual, valid = encoded(codec, 1001, gradient=gradient)
        check(codec, values, uniform, rows, residual, valid)
        size = codec.chunks(1001).chunk_elements
        finite = [index != 999 // size for index in range(rows.shape[0])]
        seen = codec.heads(rows) if codec.head else codec.decode(rows)
        assert seen.isfinite().all(1).tolist() == finite

    def test_all_of_one_sign_and_zeros(self, codec):
        for gradient in (normal(100, 1).abs(), -normal(100, 1).abs(), torch.full((100,), -0.0)):
            check(codec, *encoded(codec, 100, gradient=gradient))

    def test_equal_gradients_give_equal_bits(self, codec):
        first, second = encoded(codec, 1000), encoded(codec, 1000)
        assert torch.equal(first[2], second[2])


@pytest.mark.parametrize(
    "large", [OneBitFlatCodec, MeanSignCodec, NormSignCodec, VoteCodec, TwoBitCodec, QsgdCodec]
)
class TestChunksThatProgramsShare:
    def test_encode_is_the_reference(self, large):
        check(large(1024), *encoded(large(1024), 1501, size=SHARED))

    def test_parts_of_several_blocks_are_the_reference(self, large, monkeypatch):
        monkeypatch.setattr(chunk_engine, "MAX_PARTS", 4)
        check(large(3072), *encoded(large(3072), 3500, size=SHARED))


@pytest.mark.parametrize("value", [5.0, float("nan"), float("inf")])
def test_largest_magnitude_and_not_finite_ones_of_a_shared_chunk(value):
    gradient = normal(2048, 1)
    gradient[1300] = value
    for codec in (QsgdCodec(2048, 4, "max"), VoteCodec(2048), OneBitFlatCodec(2048)):
        check(codec, *encoded(codec, 2048, size=SHARED, gradient=gradient))


class TestMomentum:
    @pytest.mark.parametrize("num", [100, 1027])
    def test_it_is_added_before_the_gradient(self, num):
        codec = NormSignCodec(64)
        chunks = codec.chunks(num)
        ours, theirs = TritonChunks(codec, codec, chunks, DEVICE), TorchChunks(codec, codec, chunks, CPU)
        found = []
        for coder, device in ((ours, DEVICE), (theirs, CPU)):
            residual, momentum = torch.zeros(2, chunks.padded).unbind()
            residual[:num], momentum[:num] = normal(num, 1), normal(num, 2)
            residual = residual.clone().to(device)
            rows = torch.zeros(chunks.num_chunks, codec.row_words(64), dtype=torch.int32, device=device)
            common = Momentum(momentum.clone().to(device), 0.9)
            coder.encode(normal(num, 3).to(device), residual, rows, common)
            found.append((codec.heads(rows).cpu(), codes_of(codec, rows.cpu()), residual.cpu()))
        (heads, codes, residual), (their_heads, their_codes, their_residual) = found
        same_heads(heads, their_heads)
        assert torch.equal(codes, their_codes)
        assert torch.allclose(residual, their_residual, atol=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_it_takes_over_the_result(self, dtype):
        codec = NormSignCodec(64)
        rows, watch = stacked(codec, 203, 1)
        result = torch.zeros(203, dtype=dtype, device=DEVICE)
        momentum = torch.full((codec.chunks(203).padded,), 7.0, device=DEVICE)
        coder = TritonChunks(codec, codec, codec.chunks(203), DEVICE)
        coder.decode(rows.to(DEVICE), 3, result, watch, Momentum(momentum, 0.9))
        assert torch.equal(momentum[:203], result.float())
        assert bool((momentum[203:] == 7).all()), "the filling is left alone"


def stacked(codec, num, num_ranks, scale=1.0, bad=None):
    """Rows [ranks, chunks, words] of the reference, on the CPU; a watch on the device."""
    chunks = codec.chunks(num)
    every = []
    for rank in range(num_ranks):
        values = torch.zeros(chunks.padded)
        values[:num] = normal(num, 30 + rank, scale)
        if bad is not None and rank == num_ranks - 1:
            values[bad] = float("nan")
        rows = torch.zeros(chunks.num_chunks, codec.row_words(chunks.chunk_elements), dtype=torch.int32)
        uniform = chunks.matrix(Noise(chunks.padded, rank, CPU).uniform()) if codec.needs_noise else None
        codec.encode(chunks.matrix(values), chunks.valid(CPU), rows, uniform)
        every.append(rows)
    layout = BucketLayout.of([("first", (num // 2,)), ("second", (num - num // 2,))])
    return torch.stack(every), FiniteWatch.of_chunks(layout, chunks.chunk_elements, DEVICE)


def check_sums(codec, num, first, stop, scale=1.0):
    """The owner of chunks first to stop sums what three ranks sent, and encodes it."""
    chunks, size = codec.chunks(num), codec.chunk_elements
    received = stacked(codec, num, 3, scale)[0][:, first:stop].contiguous()
    residual = torch.zeros(0)
    if isinstance(codec, KEEPS_RESIDUAL):
        residual = normal((stop - first) * size, 9, scale).view(-1, size)
    coder = TritonChunks(codec, codec, chunks, DEVICE, size=SHARED if size == 1024 else None)
    sums = torch.zeros(chunks.num_chunks, codec.row_words(size), dtype=torch.int32, device=DEVICE)
    after = residual.clone().to(DEVICE)
    coder.encode_sums(received.to(DEVICE), after, sums[first:stop], first, 1)
    decoded = restored(codec, received)
    if isinstance(codec, VoteCodec):
        total = codec.combine(decoded, 1)
    else:
        total = decoded[0] + decoded[1] + decoded[2] + residual
    valid = chunks.valid(CPU)[first:stop]
    total.view(-1)[coder.own_elements(stop - first, first) :] = 0
    check(codec, total, None, sums[first:stop].cpu(), after.cpu() if residual.numel() else None, valid)
    assert not bool(sums[:first].any() | sums[stop:].any()), "others' stripes are left alone"


@pytest.mark.parametrize("codec", [*TWO_WAYS, OneBitFlatCodec(1024)], ids=str)
@pytest.mark.parametrize(("first", "stop"), [(0, 8), (8, 16), (15, 16), (3, 3)])
def test_sums_are_the_reference(codec, first, stop):
    check_sums(codec, 16 * codec.chunk_elements - 29, first, stop)


@pytest.mark.parametrize("codec", TWO_WAYS, ids=str)
@pytest.mark.parametrize("scale", ENDS)
def test_sums_are_the_reference_at_the_ends_of_the_range(codec, scale):
    check_sums(codec, 4 * codec.chunk_elements - 29, 2, 4, scale)


def test_sums_that_go_back_as_they_are():
    codec, num = TwoBitCodec(64, 0.5), 16 * 64 - 29
    chunks = codec.chunks(num)
    back = PlainChunks(64)
    received = stacked(codec, num, 3)[0][:, 9:].contiguous()
    for coder in (TritonChunks(codec, back, chunks, DEVICE), TorchChunks(codec, back, chunks, CPU)):
        sums = torch.zeros(chunks.num_chunks, 64, dtype=torch.int32, device=coder.device)
        coder.encode_sums(received.to(coder.device), torch.zeros(0), sums[9:], 9, 0)
        expected = codec.decode(received).sum(0).view(-1)
        expected[7 * 64 - 29 :] = 0
        assert torch.equal(sums[9:].view(torch.float32).view(-1).cpu(), expected)
        result = torch.zeros(num, device=coder.device)
        watch = FiniteWatch.of_chunks(BucketLayout.of([("flat", (num,))]), 64, coder.device)
        coder.decode(sums[None], 2, result, watch)
        assert torch.equal(result[9 * 64 :].cpu(), expected[: 7 * 64 - 29] / 2)
        watch.raise_if_marked()


@pytest.mark.parametrize("divisor", [3, 4])
@pytest.mark.parametrize("size", [64, 96, 8192])
@pytest.mark.parametrize("value", [1e30, float("nan"), float("inf")])
def test_sums_in_32_bits_are_divided_and_watched(size, value, divisor):
    num = 3 * size - 9
    codec, layout = TwoBitCodec(size), BucketLayout.of([("first", (size,)), ("second", (num - size,))])
    chunks = codec.chunks(num)
    watch = FiniteWatch.of_chunks(layout, size, DEVICE)
    sums = torch.zeros(chunks.padded)
    sums[:num] = normal(num)
    sums[num - 2] = value
    sums[:3] = torch.tensor([-0.0, 3e-45, 1e-38])  # a zero, and what is or becomes subnormal
    result = torch.zeros(num, device=DEVICE)
    coder = TritonChunks(codec, PlainChunks(size), chunks, DEVICE)
    coder.decode(chunks.matrix(sums).view(torch.int32).to(DEVICE)[None], divisor, result, watch)
    assert torch.equal(result[: num - 2].cpu(), sums[: num - 2] / divisor)
    assert bool(result[0].signbit())
    if value == 1e30:
        watch.raise_if_marked()
    else:
        with pytest.raises(NotFiniteError, match="in 'second':"):
            watch.raise_if_marked()


@pytest.mark.parametrize("codec", [one for one in CODECS if one.head] + [MeanSignCodec(1536)], ids=str)
class TestDecode:
    @pytest.mark.parametrize(("num_ranks", "divisor"), [(1, 3), (3, 3), (3, 4)])
    @pytest.mark.parametrize("num", [1, 63, 2051])
    def test_is_the_mean_in_rank_order_to_the_bit(self, codec, num, num_ranks, divisor):
        self.check_decoded(codec, num, num_ranks, divisor)

    @pytest.mark.parametrize("scale", ENDS)
    def test_is_the_mean_to_the_bit_at_the_ends_of_the_range(self, codec, scale):
        self.check_decoded(codec, 203, 3, 3, scale)

    def check_decoded(self, codec, num, num_ranks, divisor, scale=1.0):
        rows, watch = stacked(codec, num, num_ranks, scale)
        result = torch.full((num,), 7.0, device=DEVICE)
        coder = TritonChunks(codec, codec, codec.chunks(num), DEVICE, size=SHARED)
        coder.decode(rows.to(DEVICE), divisor, result, watch)
        total = torch.zeros(codec.chunks(num).padded)
        for one in restored(codec, rows):
            total += one.reshape(-1)
        expected = total[:num] / divisor
        finite = expected.isfinite()
        assert torch.equal(result.cpu().isfinite(), finite)
        assert torch.equal(result.cpu()[finite], expected[finite])
        if bool(finite.all()):
            watch.raise_if_marked()
        else:  # norms of what is so large overflow
            assert scale == 1e30
            with pytest.raises(NotFiniteError):
                watch.raise_if_marked()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_result_has_the_gradients_type(self, codec, dtype):
        rows, watch = stacked(codec, 203, 2)
        result, plain = torch.zeros(203, dtype=dtype, device=DEVICE), torch.zeros(203, device=DEVICE)
        coder = TritonChunks(codec, codec, codec.chunks(203), DEVICE)
        for target in (result, plain):
            coder.decode(rows.to(DEVICE), 2, target, watch)
        if IS_INTERPRETED and dtype == torch.bfloat16:  # the interpreter cuts it off
            assert torch.allclose(result.float(), plain, rtol=2**-7)
        else:
            assert torch.equal(result, plain.to(dtype))

    def test_what_any_rank_sent_that_is_not_finite_is_named(self, codec):
        num = 4 * codec.chunk_elements
        rows, watch = stacked(codec, num, 3, bad=num - 5)
        coder = TritonChunks(codec, codec, codec.chunks(num), DEVICE)
        result = torch.zeros(num, device=DEVICE)
        coder.decode(rows.to(DEVICE), 3, result, watch)
        with pytest.raises(NotFiniteError, match="in 'second':"):
            watch.raise_if_marked()
        assert bool(result[: num // 2].isfinite().all())


@pytest.mark.skipif(IS_INTERPRETED, reason="there are no graphs without a GPU")
@pytest.mark.parametrize("codec", [*TWO_WAYS, QsgdCodec(128)], ids=str)
def test_a_captured_step_is_the_eager_one(codec):
    num = 5000
    chunks = codec.chunks(num)
    layout = BucketLayout.of([("flat", (num,))])
    gradient = normal(num, 1).to(DEVICE)

    class Side:
        def __init__(self):
            self.coder = TritonChunks(codec, codec, chunks, DEVICE)
            keeps = isinstance(codec, KEEPS_RESIDUAL)
            self.residual = torch.zeros(chunks.padded if keeps else 0, device=DEVICE)
            self.noise = Noise(chunks.padded, 3, DEVICE) if codec.needs_noise else None
            words = codec.row_words(chunks.chunk_elements)
            self.rows = torch.zeros(1, chunks.num_chunks, words, dtype=torch.int32, device=DEVICE)
            self.result = torch.zeros(num, device=DEVICE)
            self.watch = FiniteWatch.of_chunks(layout, chunks.chunk_elements, DEVICE)

        def step(self):
            self.coder.encode(gradient, self.residual, self.rows[0], noise=self.noise)
            self.coder.decode(self.rows, 3, self.result, self.watch)

    eager, captured = Side(), Side()
    captured.step()  # Triton compiles at the first call
    captured.residual.zero_()
    if captured.noise is not None:
        captured.noise.drawn.copy_(eager.noise.drawn)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    for _ in range(3):
        eager.step()
        graph.replay()
        assert torch.equal(eager.result, captured.result)
    assert torch.equal(eager.residual, captured.residual)
