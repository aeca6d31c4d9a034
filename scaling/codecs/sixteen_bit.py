"""16-bit floats on the wire: `fp16` (5 bits of exponent, 10 of mantissa) and `bf16` (8 and 7).

1. Cast the gradient to 16 bits and divide it by the number of ranks, before the sum, which could overflow.
2. All-reduce in 16 bits.
3. Copy back.

Steps, bytes per rank: those of the all-reduce of 2 N bytes (`scaling.aggregators.sixteen_bit`). Error
property: no residual; each value is rounded once, and the sum after each of its additions, by at most 2**-11
(fp16) or 2**-8 (bf16) of it; fp16 overflows beyond 65504, which is an error, and loses what is below 6e-8.

Reference: PyTorch, torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py (fp16_compress_hook,
bf16_compress_hook), whose bits these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.codecs.base import Codec

SixteenBits = Literal["fp16", "bf16"]
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class SixteenBitCodec(Codec):
    """A cast.

    Attributes:
        form: of the 16 bits.
    """

    name: ClassVar[str] = "16 bits"
    summable: ClassVar[bool] = True
    divisible: ClassVar[bool] = True

    form: SixteenBits

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self.form]

    def bucket_bytes(self, layout: BucketLayout) -> int:
        return 2 * layout.num_elements

    def error_bound(self, values: Tensor) -> Tensor:
        """What one rank's values [n] add at most to the error of the mean, float64: twice a rounding of them,
        for every rank's cast, division and additions, and the smallest number where they are below it."""
        info = torch.finfo(self.dtype)
        return values.double().abs().mul_(info.eps).add_(2 * info.smallest_normal * info.eps)

    def encode(self, values: Tensor, world_size: int, wire: Tensor) -> None:
        """Writes values [n] / world_size to `wire` [n]."""
        wire.copy_(values)
        wire.div_(world_size)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Writes the sum of all ranks' wires, which is the mean, to `out` [n]."""
        out.copy_(wire)
