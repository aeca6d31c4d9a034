"""EF-signSGD: signs with the mean magnitude and error feedback, by a compressed all-gather.

Per chunk of v = gradient + residual:
1. scale = mean |v|;
2. on the wire go the scale and a bit an element: v >= 0;
3. decoding gives + or - scale;
4. new residual = v - decoded.

Steps, bytes per rank: those of the exchange (`scaling.aggregators.gathered`). Wire size of N elements in
chunks of C: ceil(N / C) (4 + C / 8) bytes. Error property: decoded + new residual = v; |v - decoded|^2 <=
(1 - delta) |v|^2 with delta = (sum |v|)^2 / (C sum v^2), so what is withheld stays bounded.

Reference: S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other
Gradient Compression Schemes", ICML 2019. Where we differ: one scale a chunk of the flat bucket, where the
paper has one a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from scaling.aggregators.gathered import GatheredChunks
from scaling.codecs.chunks import ChunkCodec, Kernel, SignCodec


@dataclass(frozen=True)
class MeanSignCodec(SignCodec):
    """Signs that are multiplied by the mean magnitude."""

    name: ClassVar[str] = "ef_sign"
    kernel: ClassVar[Kernel] = "MEAN"

    def scale(self, values: Tensor, valid: Tensor) -> Tensor:
        """mean |v|."""
        return values.abs().sum(1, keepdim=True) / valid


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
        return MeanSignCodec(self.chunk_elements)

    def feeds_back(self) -> bool:
        return self.error_feedback
