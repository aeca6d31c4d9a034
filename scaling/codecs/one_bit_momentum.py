"""The quantiser of 1-bit Adam: signs with the root mean square.

Per chunk of v = momentum + residual, with C elements:
1. scale = |v| / sqrt(C), in the 2-norm;
2. on the wire go the scale and a bit an element: v >= 0;
3. decoding gives + or - scale;
4. new residual = v - decoded.

How momentum is made of gradients, and the two residuals: `scaling.aggregators.one_bit_momentum`. Wire
size of N elements in chunks of C: ceil(N / C) (4 + C / 8) bytes. Error property: decoded + new residual = v;
the decoded values have the norm of v.

Reference: H. Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
Speed", ICML 2021; DeepSpeed, deepspeed/runtime/comm/nccl.py (compressed_allreduce). Where we differ: one
scale a chunk of the flat bucket, where DeepSpeed has one a rank's whole message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from scaling.codecs.signs import SignCodec


@dataclass(frozen=True)
class NormSignCodec(SignCodec):
    """Signs that are multiplied by the root mean square."""

    name: ClassVar[str] = "one_bit_momentum"

    def scale(self, values: Tensor, valid: Tensor) -> Tensor:
        """|v| / sqrt(C)."""
        norms: Tensor = torch.linalg.vector_norm(values, dim=1, keepdim=True)
        return norms / valid.sqrt()
