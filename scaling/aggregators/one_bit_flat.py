"""1-bit SGD by chunks of the flat bucket: `scaling.codecs.one_bit_flat` by compressed stripes, both ways.

Steps, bytes and error property: `scaling.aggregators.striped`, with u = d = ceil(N / C) (8 + C / 8) bytes for
N elements in chunks of C. Both residuals. References: the codec's module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from scaling.aggregators.striped import Striped
from scaling.codecs.base import ChunkCodec
from scaling.codecs.one_bit_flat import OneBitFlatCodec


@final
@dataclass(frozen=True)
class OneBitFlat(Striped):
    """1-bit SGD with two means a chunk of the flat bucket, so that convolutions are compressed too.

    Attributes:
        chunk_elements: values that share the two means, a multiple of 32.
        error_feedback: keep what is lost for later steps; without it the training suffers.
    """

    name = "one_bit_flat"

    chunk_elements: int = 1024
    error_feedback: bool = True

    def codec(self) -> ChunkCodec:
        """Both ways."""
        return OneBitFlatCodec(self.chunk_elements)

    def feeds_back(self) -> tuple[bool, bool]:
        """Both or none."""
        return self.error_feedback, self.error_feedback
