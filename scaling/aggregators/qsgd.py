"""QSGD (`scaling.codecs.qsgd`) by a compressed all-gather.

Steps and bytes: `scaling.aggregators.gathered`, with s = ceil(N / C) (4 + C bits / 8) bytes for N elements in
chunks of C. Unbiased; nothing is kept. Every rank rounds with random numbers of its own. References: the
codec's module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.gathered import GatheredChunks
from scaling.codecs.noise import Noise
from scaling.codecs.qsgd import LevelBits, Norm, QsgdCodec


@final
@dataclass(frozen=True)
class Qsgd(GatheredChunks):
    """QSGD: random rounding to a few levels of a chunk's norm, without bias and without a residual.

    Attributes:
        bits: of a code: a sign and 2**(bits - 1) - 1 levels beside zero.
        chunk_elements: values that share a norm, a multiple of 32; the paper's bucket size.
        norm: "two" as in the paper's theory, "max" as in its experiments.
        seed: of the random numbers.
    """

    name = "qsgd"

    bits: LevelBits = 4
    chunk_elements: int = 128
    norm: Norm = "two"
    seed: int = 0

    def codec(self) -> QsgdCodec:
        """Of what goes to all."""
        return QsgdCodec(self.chunk_elements, self.bits, self.norm)

    def feeds_back(self) -> bool:
        """Nothing is kept."""
        return False

    def error_bound(self, gradient: Tensor, world_size: int) -> Tensor:
        """One level of each chunk's norm, by which rounding may miss, as a part of the mean."""
        return self.codec().level(gradient).div(world_size)

    def noise(self, num_elements: int, rank: int, device: torch.device) -> Noise | None:
        """Other numbers on every rank."""
        return Noise(num_elements, 1_000_003 * self.seed + rank, device)
