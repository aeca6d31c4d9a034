"""1-bit SGD by chunks of the flat gradient, so that convolutions and biases are compressed too.

CNTK's quantiser has two values for each column of a matrix, and columns are short in convolutions. Here a
pair stands for a chunk of the flat bucket, whatever tensors it holds.

Per chunk of v = gradient + residual, with C elements:
1. m0 = mean of the negative elements, m1 = mean of the others (0 where a class is empty);
2. on the wire go m0, m1 and a bit an element: v >= 0;
3. decoding gives m0 or m1;
4. new residual = v - decoded.

Steps, bytes per rank: those of the exchange (`scaling.aggregators.striped`). Wire size of N elements:
ceil(N / C) (8 + C / 8) bytes, 30.1 times less than 32-bit values for C = 1024; a bucket below C elements is
one chunk of the next multiple of 32. Error property: decoded + new residual = v, element by element, and the
squared error is never larger than that of any other pair of values with the same bits.

Reference: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-bit stochastic gradient descent and its application
to data-parallel distributed training of speech DNNs", Interspeech 2014 (the quantiser, by columns). Where we
differ: chunks cross tensors, so a small tensor shares its pair with its neighbours in the bucket; the two
values travel themselves, not limits from which they are reckoned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scaling.aggregators.striped import Striped
from scaling.codecs.chunks import ChunkCodec, Kernel


@dataclass(frozen=True)
class OneBitFlatCodec(ChunkCodec):
    """Two means and a bit an element."""

    name: ClassVar[str] = "one_bit_flat"
    kernel: ClassVar[Kernel] = "FLAT"
    head: ClassVar[int] = 2
    bits: ClassVar[int] = 1

    def quantise(self, values: Tensor, valid: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Means of the negative elements and of the others; bits: not negative."""
        bits = values >= 0
        filling = values.shape[1] - valid
        # Summing bytes to int32 is ten times as fast on a CPU as summing booleans.
        num_ones = bits.view(torch.uint8).sum(1, keepdim=True, dtype=torch.int32) - filling
        ones = values.clamp(min=0).sum(1, keepdim=True)
        zeros = values.clamp(max=0).sum(1, keepdim=True)
        heads = [zeros / (valid - num_ones).clamp(min=1), ones / num_ones.clamp(min=1)]
        return torch.cat(heads, 1), bits

    def restore(self, heads: Tensor, codes: Tensor) -> Tensor:
        """One of the two means; on a CPU the upper one up to rounding."""
        lower, upper = heads[..., 0:1], heads[..., 1:2]
        if codes.is_cuda:
            return torch.where(codes.bool(), upper, lower)
        return codes.to(heads.dtype).mul_(upper - lower).add_(lower)  # five times as fast there


@final
@dataclass(frozen=True)
class OneBitFlat(Striped):
    """1-bit SGD with two means a chunk of the flat bucket, so that convolutions are compressed too.

    `chunk_elements`: values that share the two means, a multiple of 32. `error_feedback`: keep what is lost
    for later steps; without it the training suffers."""

    name = "one_bit_flat"

    chunk_elements: int = 1024
    error_feedback: bool = True

    def codec(self) -> ChunkCodec:
        return OneBitFlatCodec(self.chunk_elements)

    def feeds_back(self) -> tuple[bool, bool]:
        return self.error_feedback, self.error_feedback
