"""Codecs by chunks: what is decoded, filling and strange values included; which exchange a codec allows."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from scaling.aggregators.gathered import Gathered
from scaling.aggregators.one_bit_adam import NormSignCodec
from scaling.aggregators.one_bit_flat import OneBitFlatCodec
from scaling.aggregators.qsgd import QsgdCodec
from scaling.aggregators.sign import MeanSignCodec, VoteCodec, majority
from scaling.aggregators.sixteen_bit import SixteenBitCodec
from scaling.aggregators.striped import Striped
from scaling.aggregators.top_k import TopKCodec
from scaling.aggregators.two_bit import TwoBitCodec
from scaling.codecs.base import exchanges_of, require_exchange
from scaling.codecs.chunks import ChunkCodec
from scaling.codecs.power_sgd import PowerSgdCodec
from scaling.errors import StudyError

CPU = torch.device("cpu")
SIZE = 64
CODECS = [one(SIZE) for one in (OneBitFlatCodec, MeanSignCodec, NormSignCodec, VoteCodec)]
CODECS += [TwoBitCodec(SIZE, 0.5), QsgdCodec(SIZE, 2), QsgdCodec(SIZE, 4, "max"), QsgdCodec(SIZE, 8)]


def through(codec, flat):
    """Encodes and decodes a flat tensor: (decoded, rows)."""
    chunks = codec.chunks(flat.numel())
    values = torch.zeros(chunks.padded)
    values[: flat.numel()] = flat
    matrix = chunks.matrix(values)
    noise = torch.rand(matrix.shape, generator=torch.Generator().manual_seed(1))
    rows = torch.zeros(chunks.num_chunks, codec.row_words(chunks.chunk_elements), dtype=torch.int32)
    codec.encode(matrix, chunks.valid(CPU), rows, noise if codec.needs_noise else None)
    return codec.decode(rows).reshape(-1)[: flat.numel()], rows


def normal(num, seed=0):
    return torch.randn(num, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("codec", CODECS, ids=str)
class TestEveryCodec:
    @pytest.mark.parametrize("num", [1, 31, 64, 65, 640, 1000])
    def test_rows_have_the_bytes_that_the_formula_says(self, codec, num):
        _, rows = through(codec, normal(num))
        assert rows.nbytes == codec.wire_bytes(num)
        size = codec.chunks(num).chunk_elements
        per_chunk = 4 * codec.head + size * codec.code_bits() / 8
        assert codec.wire_bytes(num) == math.ceil(num / size) * per_chunk

    @pytest.mark.parametrize("num", [1, 64, 100])
    def test_zeros_stay_zeros(self, codec, num):
        decoded, _ = through(codec, torch.zeros(num))
        assert bool((decoded == 0).all())

    @pytest.mark.parametrize("num", [40, 65, 100])
    def test_filling_changes_nothing(self, codec, num):
        """The values of a chunk that is not full are those of a codec whose chunk it fills."""
        flat = normal(num).abs_().neg_()  # negative: zeros of the filling would be another class
        whole = num // SIZE * SIZE
        if not isinstance(codec, QsgdCodec):  # random numbers differ
            assert torch.allclose(through(codec, flat)[0][whole:], through(codec, flat[whole:])[0])

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    @pytest.mark.parametrize("place", [0, 70, 99])
    def test_what_is_not_finite_stays_so_in_its_own_chunk_alone(self, codec, place, value):
        flat = normal(100)
        flat[place] = value
        decoded, rows = through(codec, flat)
        chunk = slice(place // SIZE * SIZE, (place // SIZE + 1) * SIZE)
        assert not bool(decoded[chunk].isfinite().all())
        if codec.head:
            finite = codec.heads(rows).isfinite().all(1).tolist()
            assert finite == [index != place // SIZE for index in range(2)]
        assert bool(torch.cat([decoded[: chunk.start], decoded[chunk.stop :]]).isfinite().all())

    def test_several_ranks_rows_are_decoded_at_once(self, codec):
        encoded = [through(codec, normal(200, seed)) for seed in range(3)]
        together = codec.decode(torch.stack([rows for _, rows in encoded]))
        for decoded, whole in zip(encoded, together, strict=True):
            assert torch.equal(decoded[0], whole.reshape(-1)[:200])


@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e15])
class TestValues:
    def test_one_bit_flat_sends_the_means_of_both_classes(self, scale):
        flat = normal(SIZE) * scale
        decoded, _ = through(CODECS[0], flat)
        assert torch.allclose(decoded[flat >= 0], flat[flat >= 0].mean())
        assert torch.allclose(decoded[flat < 0], flat[flat < 0].mean())

    def test_signs_have_the_mean_magnitude_the_root_mean_square_or_one(self, scale):
        flat = normal(SIZE) * scale
        expected = (flat.abs().mean(), flat.square().mean().sqrt(), torch.tensor(1.0))
        for codec, magnitude in zip(CODECS[1:4], expected, strict=True):
            decoded, _ = through(codec, flat)
            assert torch.allclose(decoded, magnitude * torch.where(flat >= 0, 1.0, -1.0), rtol=1e-5)

    def test_levels_are_next_to_the_value(self, scale):
        flat = normal(SIZE) * scale
        for codec in CODECS[5:]:
            decoded, _ = through(codec, flat)
            norm = flat.norm() if codec.norm == "two" else flat.abs().max()
            assert bool(((decoded - flat).abs() <= norm / codec.num_levels * 1.0001).all())


def test_one_class_alone_is_its_mean_and_the_other_zero():
    decoded, rows = through(OneBitFlatCodec(SIZE), torch.full((40,), -2.0))
    assert torch.equal(decoded, torch.full((40,), -2.0))
    assert OneBitFlatCodec(SIZE).heads(rows).tolist() == [[-2.0, 0.0]]


def test_two_bits_are_plus_minus_or_nothing_at_the_threshold():
    decoded, _ = through(TwoBitCodec(SIZE, 0.5), torch.tensor([0.5, 0.49, 0.0, -0.49, -0.5, 7.0, -7.0]))
    assert decoded.tolist() == [0.5, 0.0, 0.0, 0.0, -0.5, 0.5, -0.5]


def test_majority_decides_and_the_owner_breaks_ties():
    votes = torch.tensor([[1.0, 1.0, -1.0, 0.0], [1.0, -1.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0]])
    assert majority(votes, votes[1]).sign().tolist() == [1.0, -1.0, 1.0, 0.0]


@pytest.mark.parametrize("threshold", [0.0, -1.0, float("inf"), float("nan")])
def test_threshold_that_means_nothing_is_an_error(threshold):
    with pytest.raises(StudyError, match="threshold: allowed is more than 0"):
        TwoBitCodec(SIZE, threshold)


@pytest.mark.parametrize(("codec", "exchanges"), [
    *((codec, ("all_reduce",))
      for codec in (SixteenBitCodec("fp16"), SixteenBitCodec("bf16"), PowerSgdCodec(2, 2.0))),
    *((codec(64), ("stripes", "all_gather"))
      for codec in (OneBitFlatCodec, MeanSignCodec, TwoBitCodec, QsgdCodec)),
    (TopKCodec(0.1), ("all_gather",)),
], ids=str)  # fmt: skip
def test_exchanges_follow_from_whether_encodings_can_be_summed_or_cut(codec, exchanges):
    assert exchanges_of(codec) == exchanges


@pytest.mark.parametrize(("codec", "exchange", "message"), [
    (TopKCodec(0.1), "stripes", "'top_k' does not go with .*cannot be cut into stripes; .*: all_gather"),
    (QsgdCodec(64), "all_reduce", "cannot be summed on the wire.*allowed: stripes, all_gather"),
    (SixteenBitCodec("fp16"), "all_gather", "can be summed on the wire; allowed: all_reduce"),
])  # fmt: skip
def test_wrong_pair_is_an_error_that_names_the_rule(codec, exchange, message):
    with pytest.raises(StudyError, match=message):
        require_exchange(codec, exchange)


def test_aggregator_of_a_wrong_pair_cannot_be_made():
    @dataclass(frozen=True)
    class SummedByOwners(Striped):
        name = "summed_by_owners"

        def codec(self):
            return TopKCodec(0.1)

    @dataclass(frozen=True)
    class GatheredSums(Gathered):
        name = "gathered_sums"

        def codec(self):
            return SixteenBitCodec("bf16")

        encode = decode = bytes_moved = wire_shape = None

    for wrong in (SummedByOwners, GatheredSums):
        with pytest.raises(StudyError, match="does not go with the exchange"):
            wrong()


@pytest.mark.parametrize("chunk_elements", [0, -32, 33, 16])
def test_chunks_of_other_than_multiples_of_32_are_an_error(chunk_elements):
    @dataclass(frozen=True)
    class Any(MeanSignCodec):
        name: ClassVar[str] = "any"

    assert issubclass(Any, ChunkCodec)
    with pytest.raises(StudyError, match="a multiple of 32 from 32"):
        Any(chunk_elements)
