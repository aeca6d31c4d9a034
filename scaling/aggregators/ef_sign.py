"""EF-signSGD (`scaling.codecs.ef_sign`) by a compressed all-gather.

Steps, bytes and error property: `scaling.aggregators.gathered`, with s = ceil(N / C) (4 + C / 8) bytes for N
elements in chunks of C. A residual. References: the codec's module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from scaling.aggregators.gathered import GatheredChunks
from scaling.codecs.base import ChunkCodec
from scaling.codecs.ef_sign import MeanSignCodec


@final
@dataclass(frozen=True)
class EfSign(GatheredChunks):
    """EF-signSGD: signs with the mean magnitude of a chunk, and error feedback.

    Attributes:
        chunk_elements: values that share a magnitude, a multiple of 32.
        error_feedback: keep what is lost for later steps; without it the training suffers.
    """

    name = "ef_sign"

    chunk_elements: int = 1024
    error_feedback: bool = True

    def codec(self) -> ChunkCodec:
        """Of what goes to all."""
        return MeanSignCodec(self.chunk_elements)

    def feeds_back(self) -> bool:
        """As `error_feedback` says."""
        return self.error_feedback
