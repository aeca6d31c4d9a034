"""MXNet's 2-bit compression: plus threshold, minus threshold or nothing, and error feedback.

Per element of v = gradient + residual, with threshold t:
1. v >= t: code 3, stands for +t; v <= -t: code 2, stands for -t; else code 0;
2. on the wire go 2 bits an element, towards the owner alone: sums come back as 32-bit values;
3. new residual = v - decoded.

A gradient reaches the wire only once it has grown to t. MXNet's gradients are sums over a batch and its t is
0.5; ours are means, so the like of 0.5 is 0.5 divided by the local batch.

Steps, bytes per rank: those of the exchange (`scaling.aggregators.striped`). Wire size of N elements: N / 4
bytes up, rounded up to whole chunks of 1024, and 4 N down. Error property: decoded + new residual = v; the
residual is not bounded where gradients stay above t.

Reference: MXNet, src/kvstore/gradient_compression.cc (quantize_2bit, dequantize_2bit) and src/kvstore/comm.h
(CommDevice::ReduceCompressed). Where we differ: stripes of the flat bucket have owners, where MXNet gives
whole tensors to them; code 1, which MXNet never writes, stands for a value that was not a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scaling.aggregators.striped import Striped
from scaling.codecs.chunks import ChunkCodec, Kernel, PlainChunks
from scaling.errors import StudyError

CODE_PLUS, CODE_MINUS, CODE_NOT_FINITE = 3, 2, 1


@dataclass(frozen=True)
class TwoBitCodec(ChunkCodec):
    """Codes of two bits, no head; `threshold`, more than 0, is what a code stands for."""

    name: ClassVar[str] = "two_bit"
    kernel: ClassVar[Kernel] = "TWO"
    head: ClassVar[int] = 0
    bits: ClassVar[int] = 2

    threshold: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.threshold < float("inf"):
            raise StudyError(f"codec 'two_bit': threshold: allowed is more than 0, got {self.threshold}")

    def kernel_kind(self) -> tuple[str, float]:
        return "TWO", self.threshold

    def quantise(self, values: Tensor, valid: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        plus = (values >= self.threshold).to(torch.uint8).mul_(CODE_PLUS)
        minus = (values <= -self.threshold).to(torch.uint8).mul_(CODE_MINUS)
        strange = values.isfinite().logical_not_()
        codes = plus.add_(minus).masked_fill_(strange, CODE_NOT_FINITE)
        return values[:, :0], codes

    def restore(self, heads: Tensor, codes: Tensor) -> Tensor:
        values = (codes == CODE_PLUS).to(torch.float32).sub_((codes == CODE_MINUS).to(torch.float32))
        return values.mul_(self.threshold).masked_fill_(codes == CODE_NOT_FINITE, float("nan"))


@final
@dataclass(frozen=True)
class TwoBit(Striped):
    """MXNet's 2-bit compression on the way to the rank that sums; sums come back as 32-bit values.

    `threshold`: what a code stands for; MXNet's default, for gradients that are sums over a batch."""

    name = "two_bit"

    threshold: float = 0.5
    chunk_elements: ClassVar[int] = 1024  # stripes are cut there; a code has no company

    def codec(self) -> ChunkCodec:
        return TwoBitCodec(self.chunk_elements, self.threshold)

    def codec_back(self) -> ChunkCodec:
        return PlainChunks(self.chunk_elements)

    def feeds_back(self) -> tuple[bool, bool]:
        return True, False
