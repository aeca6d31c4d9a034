"""What a codec is: how values are laid out on the wire, and which exchange that allows.

A codec says of itself whether its encodings can be summed on the wire. Where they can, the exchange is an
all-reduce; where they cannot, but any run of chunks can be decoded by itself, it is the exchange of stripes,
whose owners decode, sum and encode again, or an all-gather; where only the whole makes sense, an all-gather.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from scaling.bucket import BucketLayout
from scaling.errors import StudyError

ExchangeKind = Literal["all_reduce", "stripes", "all_gather"]

WORD_BYTES = 4


class Codec(ABC):
    """How a flat float32 gradient is written for others. `summable`: the sum of encodings decodes to the sum
    of the values; `divisible`: parts of an encoding can be decoded alone, as stripes' owners do."""

    name: ClassVar[str]
    summable: ClassVar[bool] = False
    divisible: ClassVar[bool] = False

    @abstractmethod
    def bucket_bytes(self, layout: BucketLayout) -> int:
        """Bytes of the encoding of a bucket, by its tensors' shapes."""


def exchanges_of(codec: Codec) -> tuple[ExchangeKind, ...]:
    """The exchanges that can carry its encodings, the best first."""
    if codec.summable:
        return ("all_reduce",)
    return ("stripes", "all_gather") if codec.divisible else ("all_gather",)


def require_exchange(codec: Codec, exchange: ExchangeKind) -> None:
    """Raises StudyError unless that exchange can carry the codec's encodings."""
    allowed = exchanges_of(codec)
    if exchange not in allowed:
        why = "can" if codec.summable else "cannot"
        cut = "" if codec.summable else f", and {'can' if codec.divisible else 'cannot'} be cut into stripes"
        raise StudyError(
            f"codec {codec.name!r} does not go with the exchange {exchange!r}: its encodings {why} be summed "
            f"on the wire{cut}; allowed: {', '.join(allowed)}"
        )
