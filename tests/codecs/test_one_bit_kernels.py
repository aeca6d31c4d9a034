"""Triton's kernels are their reference: on a GPU, or interpreted, started by `test_kernels_interpreted`."""

import os

import pytest
import torch

from scaling.bucket import BucketLayout
from scaling.codecs import one_bit
from scaling.codecs.finite import FiniteWatch, NotFiniteError
from scaling.codecs.kernels import triton_problem
from scaling.codecs.one_bit import Encoded, as_matrix
from scaling.codecs.one_bit_stripes import StripeBuffers, TorchStripes
from scaling.codecs.stripes import StripeLayout

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")

# Without a GPU they run interpreted, from test_kernels_interpreted.
pytestmark = [
    *([pytest.mark.sampled(12)] if IS_INTERPRETED else [pytest.mark.gpu]),
    pytest.mark.skipif(triton_problem(DEVICE) is not None, reason="needs Triton"),
]

# Aligned and odd rows, wider than a tile, folded, tall, one row, one column, one element, none; a filter.
LAYOUT = BucketLayout.of(
    [
        ("wide", (40, 132)), ("odd", (33, 67)), ("wider", (3, 300)), ("narrow", (70, 3)), ("bias", (129,)),
        ("tall", (1120, 4)), ("scalar", ()), ("row", (1, 20)), ("column", (50, 1)), ("filter", (3, 2, 5, 3)),
        ("nothing", (0, 4)), ("aligned", (64, 8)),
    ]
)  # fmt: skip
WATCHED = BucketLayout.of([("wide", (40, 12)), ("bias", (129,)), ("tall", (1120, 4))])
SMALL = BucketLayout.of([("odd", (33, 7)), ("row", (1, 20))])
ENDS = [0.0, 1e-37, "largest"]
KINDS = [("zero", 1), ("mean", 1), ("zero", 4), ("zero", 16)]
RANK, WORLD_SIZE = 1, 3


def scale_of(end: float | str, bits: int) -> float:
    """Where `end` is "largest", with several bits the squares must have room in 32 bits too."""
    if end == "largest":
        return 1e30 if bits == 1 else 1e15
    return end


def normal(layout: BucketLayout, seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(layout.num_elements, generator=torch.Generator().manual_seed(seed)) * scale


def codecs(threshold="zero", bits=1, view="torch", layout=LAYOUT, world_size=WORLD_SIZE, rank=RANK):
    """The kernels' codec on the device, and the reference on the CPU."""
    from scaling.codecs.kernels.engine import TritonStripes

    stripes = StripeLayout.of(layout, view, bits, world_size)
    ours = TritonStripes(StripeBuffers(stripes, rank, DEVICE), threshold)
    return ours, TorchStripes(StripeBuffers(stripes, rank, torch.device("cpu")), threshold)


def encoded_parts(codec, number, messages):
    """A whole matrix from its stripes in the owners' messages."""
    stripes = codec.buffers.stripes
    parts = [stripes.parts(messages[owner].cpu(), number, owner) for owner in range(stripes.world_size)]
    return Encoded(*(torch.cat(pieces, -1) for pieces in zip(*parts, strict=True)))


def check(values, encoded, residual, threshold, bits):
    """Limits to rounding; codes, for these limits, and residual exactly."""
    expected = one_bit.encode(values, threshold, bits)
    size = values.abs().double().mean(0).float() if values.numel() else 0.0
    for ours, theirs in ((encoded.lower, expected.lower), (encoded.upper, expected.upper)):
        assert bool(((ours - theirs).abs() <= 4e-6 * size + 1e-43).all())
    rows = values.shape[0]
    codes, decoded = (one_bit.unpack(encoded.words, rows, bits), one_bit.decode(encoded, rows, bits))
    if bits > 1:
        extent = encoded.upper - encoded.lower
        level = torch.where(extent < 1e-36, 0, extent / (2**bits - 1))
        factor = torch.where(level > 0, 1 / level, 0)
        assert torch.equal(codes, ((values - encoded.lower) * factor).clamp(0, 2**bits - 2).int())
    elif threshold == "zero":
        assert torch.equal(codes, values >= 0)
    else:
        differs = codes != (values >= values.mean(0))
        assert bool((((values - values.mean(0)).abs() <= 4e-6 * size) | ~differs).all())
    assert torch.equal(residual, values - decoded)
    assert torch.equal(encoded.words, one_bit.pack(codes, bits)), "no bits beyond the last row"


def fill(codec, seed, scale=1.0):
    """Residuals as if there had been steps before."""
    for number, tensor in enumerate((codec.buffers.residual, codec.buffers.stripe_residual)):
        values = torch.randn(tensor.numel(), generator=torch.Generator().manual_seed(seed + number))
        tensor.copy_(values * scale)


class TestEncode:
    @pytest.mark.parametrize(("threshold", "bits"), KINDS)
    def test_is_the_reference(self, threshold, bits):
        self.check_encode(threshold, bits, "torch", 1.0)

    @pytest.mark.parametrize(("threshold", "bits"), [("zero", 1), ("zero", 4)])
    def test_is_the_reference_in_cntks_columns(self, threshold, bits):
        self.check_encode(threshold, bits, "cntk", 1.0)

    @pytest.mark.parametrize(
        ("threshold", "scale"),
        [("zero", 0.0), ("zero", 1e-37), ("zero", 1e30), ("mean", 0.0), ("mean", 1e30)],
    )
    def test_is_the_reference_at_the_ends_of_the_range(self, threshold, scale):
        self.check_encode(threshold, 1, "torch", scale)

    @pytest.mark.parametrize("end", ENDS)
    @pytest.mark.parametrize(("threshold", "bits"), [("mean", 1), ("zero", 4), ("zero", 16)])
    def test_small_tensors_are_the_reference_there_too(self, threshold, bits, end):
        self.check_encode(threshold, bits, "torch", scale_of(end, bits), SMALL)

    def check_encode(self, threshold, bits, view, scale, layout=LAYOUT):
        ours, _ = codecs(threshold, bits, view, layout)
        fill(ours, 10, scale)
        gradient, before = normal(layout, 1, scale), ours.buffers.residual.cpu().clone()
        ours.encode(gradient.to(DEVICE))
        messages = list(ours.buffers.outgoing)
        messages[RANK] = ours.buffers.incoming[RANK]
        after = ours.buffers.residual.cpu()
        tensors = zip(*(layout.views(flat) for flat in (gradient, before, after)), strict=True)
        for number, (values, old, new) in enumerate(tensors):
            encoded = encoded_parts(ours, number, messages)
            check(as_matrix(values + old, view), encoded, as_matrix(new, view), threshold, bits)

    def test_equal_gradients_give_equal_bits(self):
        seen = []
        for _ in range(2):
            ours, _ = codecs()
            ours.encode(normal(LAYOUT, 1).to(DEVICE))
            seen.append((ours.buffers.wire.clone(), ours.buffers.residual.clone()))
        assert all(torch.equal(first, second) for first, second in zip(*seen, strict=True))


@pytest.mark.parametrize(("threshold", "bits"), KINDS)
class TestSumsAndDecode:
    def filled(self, threshold, bits, scale=1.0, layout=LAYOUT):
        """Both codecs, with the same messages of three ranks."""
        ours, reference = codecs(threshold, bits, layout=layout)
        fill(reference, 20, scale)
        ours.buffers.stripe_residual.copy_(reference.buffers.stripe_residual)
        stripes = ours.buffers.stripes
        for rank in range(WORLD_SIZE):
            gradient = normal(layout, 30 + rank, scale)
            for number, values in enumerate(layout.views(gradient)):
                encoded, bounds = one_bit.encode(as_matrix(values), threshold, bits), stripes.bounds[number]
                incoming, gathered = reference.buffers.incoming[rank], reference.buffers.gathered[rank]
                reference._write(incoming, number, RANK, encoded, *bounds[RANK])
                reference._write(gathered, number, rank, encoded, *bounds[rank])
        ours.buffers.wire.copy_(reference.buffers.wire)
        return ours, reference

    def test_sums_are_the_reference(self, threshold, bits):
        self.check_sums(*self.filled(threshold, bits), threshold, bits)

    @pytest.mark.parametrize("end", ENDS)
    def test_sums_are_the_reference_at_the_ends_of_the_range(self, threshold, bits, end):
        self.check_sums(*self.filled(threshold, bits, scale_of(end, bits), SMALL), threshold, bits)

    def check_sums(self, ours, reference, threshold, bits):
        buffers = reference.buffers
        totals = []
        for number, left in enumerate(buffers.own_stripes(buffers.stripe_residual)):
            total = reference._read(buffers.incoming[0], number, RANK)
            for message in buffers.incoming[1:]:
                total = total + reference._read(message, number, RANK)
            totals.append(total + left)
        ours.encode_sums()
        residuals = buffers.own_stripes(ours.buffers.stripe_residual.cpu())
        for number, (total, residual) in enumerate(zip(totals, residuals, strict=True)):
            encoded = Encoded(*ours.buffers.stripes.parts(ours.buffers.gathered[RANK].cpu(), number, RANK))
            check(total, encoded, residual, threshold, bits)

    def test_decoded_is_the_reference_to_the_bit(self, threshold, bits):
        self.check_decoded(*self.filled(threshold, bits), LAYOUT)

    @pytest.mark.parametrize("end", ENDS)
    def test_decoded_is_the_reference_to_the_bit_at_the_ends_of_the_range(self, threshold, bits, end):
        self.check_decoded(*self.filled(threshold, bits, scale_of(end, bits), SMALL), SMALL)

    def check_decoded(self, ours, reference, layout):
        expected, result = torch.zeros(layout.num_elements), torch.zeros(layout.num_elements, device=DEVICE)
        reference.decode(expected)
        ours.decode(result)
        assert torch.equal(result.cpu(), expected)


class TestWatch:
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    def test_what_is_not_finite_is_named(self, value):
        ours, watch = self.started()
        gradient = normal(WATCHED, 1)
        WATCHED.views(gradient)[WATCHED.names.index("tall")][1000, 2] = value
        self.step(ours, gradient)
        with pytest.raises(NotFiniteError, match="in 'tall':"):
            watch.raise_if_marked()

    def test_only_the_first_step_that_is_not_finite_is_told_of(self):
        ours, watch = self.started()
        self.step(ours, normal(WATCHED, 1))
        watch.raise_if_marked()
        for name in ("bias", "wide"):
            gradient = normal(WATCHED, 1)
            WATCHED.views(gradient)[WATCHED.names.index(name)].fill_(float("nan"))
            self.step(ours, gradient)
        with pytest.raises(NotFiniteError, match="in 'bias':"):
            watch.raise_if_marked()

    @pytest.mark.parametrize("bits", [4, 16])
    def test_squares_that_overflow_are_an_error_and_no_garbage(self, bits):
        ours, watch = self.started(bits)
        gradient = normal(WATCHED, 1)
        WATCHED.views(gradient)[WATCHED.names.index("bias")].fill_(1e30)
        self.step(ours, gradient)
        with pytest.raises(NotFiniteError, match="in 'bias':"):
            watch.raise_if_marked()

    def started(self, bits=1):
        from scaling.codecs.kernels.engine import TritonStripes

        watch = FiniteWatch.of_tensors(WATCHED, DEVICE)
        stripes = StripeLayout.of(WATCHED, "torch", bits, 1)
        return TritonStripes(StripeBuffers(stripes, 0, DEVICE, watch.marks), "zero"), watch

    def step(self, ours, gradient):
        ours.encode(gradient.to(DEVICE))
        ours.encode_sums()
        ours.decode(torch.zeros(WATCHED.num_elements, device=DEVICE))


@pytest.mark.skipif(IS_INTERPRETED, reason="there are no graphs without a GPU")
def test_a_captured_step_is_the_eager_one():
    first, second = codecs(world_size=1, rank=0)[0], codecs(world_size=1, rank=0)[0]
    gradient = normal(LAYOUT, 1).to(DEVICE)
    results = [torch.zeros(LAYOUT.num_elements, device=DEVICE) for _ in range(2)]

    def step(codec, result):
        codec.encode(gradient)
        codec.encode_sums()
        codec.decode(result)

    step(second, results[1])  # Triton compiles at the first call
    for tensor in (second.buffers.residual, second.buffers.stripe_residual):
        tensor.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(second, results[1])
    for _ in range(3):
        step(first, results[0])
        graph.replay()
        assert torch.equal(results[0], results[1])
    assert torch.equal(first.buffers.residual, second.buffers.residual)
