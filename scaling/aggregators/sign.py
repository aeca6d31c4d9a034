"""signSGD with majority vote (`scaling.codecs.sign`): signs to the owners, the majority's signs back.

Steps and bytes: `scaling.aggregators.striped`, with u = d = ceil(N / C) (4 + C / 8) bytes for N elements in
chunks of C. Nothing is kept, and nothing divided. References: the codec's module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from scaling.aggregators.striped import Striped
from scaling.codecs.base import ChunkCodec
from scaling.codecs.sign import VoteCodec


@final
@dataclass(frozen=True)
class Sign(Striped):
    """signSGD with majority vote: the result is -1, 0 or 1 for each element, so learning rates are small.

    Attributes:
        chunk_elements: elements for which a rank without any gradient abstains together, a multiple of 32.
    """

    name = "sign"

    chunk_elements: int = 1024

    def codec(self) -> ChunkCodec:
        """Both ways."""
        return VoteCodec(self.chunk_elements)

    def feeds_back(self) -> tuple[bool, bool]:
        """Nothing is kept."""
        return False, False

    def error_bound(self, gradient: Tensor, world_size: int) -> Tensor:
        """The result is between -1 and 1, and the mean no larger than the mean magnitude."""
        return gradient.abs().add_(1.0).div_(world_size)

    def divisor(self, world_size: int) -> int:
        """A sign is a sign."""
        return 1
