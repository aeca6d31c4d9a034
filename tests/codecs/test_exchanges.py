"""Which exchange a codec allows: it follows from whether encodings can be summed, or cut."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from scaling.aggregators.gathered import Gathered
from scaling.aggregators.one_bit_flat import OneBitFlatCodec
from scaling.aggregators.qsgd import QsgdCodec
from scaling.aggregators.sign import MeanSignCodec
from scaling.aggregators.sixteen_bit import SixteenBitCodec
from scaling.aggregators.striped import Striped
from scaling.aggregators.top_k import TopKCodec
from scaling.aggregators.two_bit import TwoBitCodec
from scaling.codecs.base import exchanges_of, require_exchange
from scaling.codecs.chunks import ChunkCodec
from scaling.codecs.power_sgd import PowerSgdCodec
from scaling.errors import StudyError

SUMMABLE = [SixteenBitCodec("fp16"), SixteenBitCodec("bf16"), PowerSgdCodec(2, 2.0)]
BY_CHUNKS = [OneBitFlatCodec(64), MeanSignCodec(64), TwoBitCodec(64), QsgdCodec(64)]


@pytest.mark.parametrize(("codec", "exchanges"), [
    *((codec, ("all_reduce",)) for codec in SUMMABLE),
    *((codec, ("stripes", "all_gather")) for codec in BY_CHUNKS),
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
