"""MXNet's 2-bit compression (`scaling.codecs.two_bit`): codes to the owners, 32-bit sums back.

Steps, bytes and error property: `scaling.aggregators.striped`, with u = N / 4 and d = 4 N bytes for N
elements, in whole chunks of 1024. A residual of the gradient alone. References: the codec's module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from scaling.aggregators.striped import Striped
from scaling.codecs.base import ChunkCodec, PlainChunks
from scaling.codecs.two_bit import TwoBitCodec


@final
@dataclass(frozen=True)
class TwoBit(Striped):
    """MXNet's 2-bit compression towards the owners; sums come back as 32-bit values.

    Attributes:
        threshold: what a code stands for; MXNet's default, for gradients that are sums over a batch.
    """

    name = "two_bit"

    threshold: float = 0.5
    chunk_elements: ClassVar[int] = 1024  # stripes are cut there; a code has no company

    def codec(self) -> ChunkCodec:
        """Up."""
        return TwoBitCodec(self.chunk_elements, self.threshold)

    def codec_back(self) -> ChunkCodec:
        """Down: 32 bits."""
        return PlainChunks(self.chunk_elements)

    def feeds_back(self) -> tuple[bool, bool]:
        """Of the gradient alone."""
        return True, False
