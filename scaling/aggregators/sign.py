"""By the signs of values alone: signSGD with majority vote, and EF-signSGD.

`sign`: a bit an element to the stripe's owner, a bit an element back.
1. Every rank sends the signs of its gradient; zero counts as positive.
2. The owner of an element adds the ranks' signs and sends back the sign of that sum. Where as many ranks vote
   for either, its own sign decides, which favours neither direction.
3. Every rank steps by that sign: the result is -1, 0 or 1 for each element, whatever the gradient's size, so
   a learning rate is some hundred times smaller than for the gradient itself.

Steps, bytes per rank: those of the exchange (`scaling.aggregators.striped`). Wire size of N elements: ceil(N
/ C) (4 + C / 8) bytes each way. The float of a chunk of C is 1, or 0 where a rank has nothing but zeros there
and abstains; the chunk's result is 0 where all abstain. Error property: no residual is kept, so what the
signs lose is lost; gradients with skewed noise can stall it.

Reference: J. Bernstein, Y.-X. Wang, K. Azizzadenesheli, A. Anandkumar, "signSGD: Compressed Optimisation for
Non-Convex Problems", ICML 2018. Where we differ: abstention by chunks; ties, which the paper leaves open.

`ef_sign`: signs with the mean magnitude and error feedback, by a compressed all-gather
(`scaling.aggregators.gathered`). Per chunk of v = gradient + residual the scale mean |v| goes on the wire and
a bit an element: v >= 0; decoding gives + or - scale; new residual = v - decoded. Wire size of N elements in
chunks of C: ceil(N / C) (4 + C / 8) bytes. Error property: decoded + new residual = v; |v - decoded|^2 <= (1
- delta) |v|^2 with delta = (sum |v|)^2 / (C sum v^2), so what is withheld stays bounded.

Reference: S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other
Gradient Compression Schemes", ICML 2019. Where we differ: one scale a chunk of the flat bucket, where the
paper has one a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scaling.aggregators.gathered import GatheredChunks
from scaling.aggregators.striped import Striped
from scaling.codecs.chunks import ChunkCodec, Kernel, SignCodec


@dataclass(frozen=True)
class VoteCodec(SignCodec):
    """Signs that are multiplied by 1, or by 0 in a chunk of zeros."""

    name: ClassVar[str] = "sign"
    kernel: ClassVar[Kernel] = "VOTE"

    def scale(self, values: Tensor, valid: Tensor) -> Tensor:
        """1; 0 for a chunk of zeros; not finite where a value is not."""
        largest = values.abs().amax(1, keepdim=True) if values.shape[0] else values[:, :1]
        # x - x is 0 for finite x and NaN else.
        return (largest > 0).to(torch.float32) + (largest - largest)

    def combine(self, decoded: Tensor, rank: int) -> Tensor:
        return majority(decoded, decoded[rank])


def majority(votes: Tensor, own_sign: Tensor) -> Tensor:
    """The sign of the sum of votes [ranks, ...] of -1, 0 or 1; where that is 0, `own_sign` [...]."""
    total = votes.sum(0)
    return torch.where(total == 0, own_sign, total)


@final
@dataclass(frozen=True)
class Sign(Striped):
    """signSGD with majority vote: the result is -1, 0 or 1 for each element, so learning rates are small.

    `chunk_elements`: elements for which a rank without any gradient abstains together, a multiple of 32."""

    name = "sign"

    chunk_elements: int = 1024

    def codec(self) -> ChunkCodec:
        return VoteCodec(self.chunk_elements)

    def feeds_back(self) -> tuple[bool, bool]:
        return False, False

    def error_bound(self, gradient: Tensor, world_size: int) -> Tensor:
        """The result is between -1 and 1, and the mean no larger than the mean magnitude."""
        return gradient.abs().add_(1.0).div_(world_size)

    def divisor(self, world_size: int) -> int:
        return 1


@dataclass(frozen=True)
class MeanSignCodec(SignCodec):
    """Signs that are multiplied by the mean magnitude."""

    name: ClassVar[str] = "ef_sign"
    kernel: ClassVar[Kernel] = "MEAN"

    def scale(self, values: Tensor, valid: Tensor) -> Tensor:
        return values.abs().sum(1, keepdim=True) / valid


@final
@dataclass(frozen=True)
class EfSign(GatheredChunks):
    """EF-signSGD: signs with the mean magnitude of a chunk, and error feedback.

    `chunk_elements`: values that share a magnitude, a multiple of 32. `error_feedback`: keep what is lost for
    later steps; without it the training suffers."""

    name = "ef_sign"

    chunk_elements: int = 1024
    error_feedback: bool = True

    def codec(self) -> ChunkCodec:
        return MeanSignCodec(self.chunk_elements)

    def feeds_back(self) -> bool:
        return self.error_feedback
