"""QSGD: each value is rounded at random to one of few levels, so that its expectation is the value.

Per chunk ("bucket" in the paper) of v = gradient, with s = 2**(bits - 1) - 1 levels besides zero:
1. norm = |v| in the 2-norm, or the largest magnitude (`norm: max`), as the paper's experiments have it;
2. x = s |v| / norm; level = floor(x + u), u uniform in [0, 1): up with the probability that x has behind the
   point; a chunk of zeros has norm 0 and levels 0;
3. on the wire go the norm and a code of `bits` bits an element: the level, and the sign as highest bit;
4. decoding gives sign * norm * level / s.

Steps, bytes per rank: those of the exchange (`scaling.aggregators.gathered`). Wire size of N elements in
chunks of C: ceil(N / C) (4 + C bits / 8) bytes. Error property: unbiased, and no residual is kept;
every rank rounds with random numbers of its own; with the 2-norm the variance is at most
min(C / s^2, sqrt(C) / s) |v|^2.

Reference: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via
Gradient Quantization and Encoding", NeurIPS 2017. Where we differ: codes have a fixed length, where the paper
has Elias codes too; random numbers come from `scaling.codecs.noise`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from scaling.aggregators.gathered import GatheredChunks
from scaling.codecs.chunks import ChunkCodec, Kernel
from scaling.codecs.noise import Noise

LevelBits = Literal[2, 4, 8]
Norm = Literal["two", "max"]


@dataclass(frozen=True)
class QsgdCodec(ChunkCodec):
    name: ClassVar[str] = "qsgd"
    kernel: ClassVar[Kernel] = "LEVELS"
    head: ClassVar[int] = 1
    bits: ClassVar[int] = 4
    needs_noise: ClassVar[bool] = True

    level_bits: LevelBits = 4
    norm: Norm = "two"

    def code_bits(self) -> int:
        return self.level_bits

    def kernel_kind(self) -> tuple[str, float]:
        return "LEVELS" if self.norm == "two" else "LEVELS_OF_LARGEST", float(self.num_levels)

    @property
    def num_levels(self) -> int:
        return int(2 ** (self.level_bits - 1) - 1)

    def level(self, values: Tensor) -> Tensor:
        """[n] float64: the distance between two levels, for each of the values [n]."""
        chunks = self.chunks(values.numel())
        padded = torch.zeros(chunks.padded, dtype=torch.float64, device=values.device)
        padded[: values.numel()] = values
        rows = chunks.matrix(padded)
        norms = torch.linalg.vector_norm(rows, self._order, dim=1, keepdim=True) if len(rows) else rows
        return (norms / self.num_levels).expand(rows.shape).reshape(-1)[: values.numel()]

    @property
    def _order(self) -> float:
        return 2.0 if self.norm == "two" else float("inf")

    def quantise(self, values: Tensor, valid: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        assert noise is not None, "levels are rounded at random"
        norms = (
            torch.linalg.vector_norm(values, self._order, dim=1, keepdim=True)
            if values.shape[0]
            else values[:, :1]
        )
        factor = torch.where(norms > 0, self.num_levels / norms, 0.0)
        levels = (values.abs() * factor).add_(noise).floor_()
        # Rounding may lift the largest of all by one too many.
        levels = levels.clamp_(max=self.num_levels).nan_to_num_(0.0).to(torch.uint8)
        signs = torch.signbit(values).to(torch.uint8) << (self.level_bits - 1)
        return norms, levels.bitwise_or_(signs)

    def restore(self, heads: Tensor, codes: Tensor) -> Tensor:
        levels = (codes & self.num_levels).to(heads.dtype)
        negative = (codes >> (self.level_bits - 1)).bool()
        levels = torch.where(negative, -levels, levels)
        return levels.mul_(heads / self.num_levels)


@final
@dataclass(frozen=True)
class Qsgd(GatheredChunks):
    """QSGD: random rounding to a few levels of a chunk's norm, without bias and without a residual.

    `bits`: of a code: a sign and 2**(bits - 1) - 1 levels besides zero. `chunk_elements`: values that share a
    norm, a multiple of 32; the paper's bucket size. `norm`: "two" as in the paper's theory, "max" as in its
    experiments."""

    name = "qsgd"

    bits: LevelBits = 4
    chunk_elements: int = 128
    norm: Norm = "two"
    seed: int = 0

    def codec(self) -> QsgdCodec:
        return QsgdCodec(self.chunk_elements, self.bits, self.norm)

    def feeds_back(self) -> bool:
        return False

    def error_bound(self, gradient: Tensor, world_size: int) -> Tensor:
        """One level of each chunk's norm, by which rounding may miss, as a part of the mean."""
        return self.codec().level(gradient).div(world_size)

    def noise(self, num_elements: int, rank: int, device: torch.device) -> Noise | None:
        return Noise(num_elements, 1_000_003 * self.seed + rank, device)
