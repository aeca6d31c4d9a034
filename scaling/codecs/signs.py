"""Signs with one scale a chunk: what the codecs `sign`, `ef_sign` and `one_bit_momentum` have in common.

A bit an element says v >= 0; a float a chunk says by what to multiply the sign. Wire size of N elements in
chunks of C: ceil(N / C) (4 + C / 8) bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from scaling.codecs.chunks import ChunkCodec


@dataclass(frozen=True)
class SignCodec(ChunkCodec):
    """Base of codecs that send signs."""

    head: ClassVar[int] = 1
    bits: ClassVar[int] = 1

    @abstractmethod
    def scale(self, values: Tensor, valid: Tensor) -> Tensor:
        """[chunks, 1]: what a chunk's signs are multiplied by; 0 for zeros, not finite for what is not."""

    def quantise(self, values: Tensor, valid: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.scale(values, valid), values >= 0

    def restore(self, heads: Tensor, codes: Tensor) -> Tensor:
        return heads * codes.mul(2).to(heads.dtype).sub_(1)
