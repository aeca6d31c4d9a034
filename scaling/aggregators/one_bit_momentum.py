"""The compressed all-reduce of 1-bit Adam, applied to SGD's momentum.

1. Every rank makes its own momentum of the common one: v = momentum * (the last step's result) + gradient.
2. v + residual, in chunks of C elements, goes as signs and one scale a chunk through compressed stripes
   (`scaling.aggregators.striped`), with both residuals. The scale is |v| / sqrt(C) in the 2-norm, so decoded
   values have the norm of v; the new residual = v - decoded.
3. The result is the new common momentum, by which the optimizer steps as by a gradient: its own is 0.

Steps and bytes: those of the stripes, with u = d = ceil(N / C) (4 + C / 8) for N elements in chunks of C.
Error property: n times the result + the new residuals = the sum of v + the old residuals. A rank alone
encodes nothing: its momentum is torch.optim.SGD's.

Reference: H. Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
Speed", ICML 2021; DeepSpeed, deepspeed/runtime/comm/nccl.py (compressed_allreduce). Where we differ: one
scale a chunk of the flat bucket, where DeepSpeed has one a rank's whole message; 1-bit Adam's momentum is
(1 - beta) times as large; its steps without compression at the start, which settle the variance that SGD has
not, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scaling.aggregators.own_momentum import check_momentum
from scaling.aggregators.striped import Striped
from scaling.codecs.chunks import ChunkCodec, Kernel, SignCodec


@dataclass(frozen=True)
class NormSignCodec(SignCodec):
    """Signs that are multiplied by the root mean square."""

    name: ClassVar[str] = "one_bit_momentum"
    kernel: ClassVar[Kernel] = "ROOT"

    def scale(self, values: Tensor, valid: Tensor) -> Tensor:
        """|v| / sqrt(C)."""
        norms: Tensor = torch.linalg.vector_norm(values, dim=1, keepdim=True)
        return norms / valid.sqrt()


@final
@dataclass(frozen=True)
class OneBitMomentum(Striped):
    """1-bit Adam's compressed all-reduce of the momentum, for SGD; the optimizer's momentum must be 0.

    Attributes:
        momentum: of the result, from 0 to less than 1.
        chunk_elements: values that share a scale, a multiple of 32.
    """

    name = "one_bit_momentum"

    momentum: float = 0.9
    chunk_elements: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check_momentum(self.name, "momentum", self.momentum, may_be_zero=False)

    def codec(self) -> ChunkCodec:
        return NormSignCodec(self.chunk_elements)

    def own_momentum(self) -> float:
        return self.momentum
