"""Codecs by chunks, and what encodes a rank's bucket: residual, encoding and new residual in one.

`TorchChunks` is plain torch, runs everywhere and is the reference; `scaling.codecs.kernels` has the one for
CUDA devices. Rows are a codec's: [chunks, row_words] int32, a head and codes a chunk.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, Union

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.codecs.base import WORD_BYTES, Codec
from scaling.codecs.finite import FiniteWatch
from scaling.codecs.noise import Noise
from scaling.errors import StudyError

BITS_PER_BYTE = 8


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes [..., n] uint8 or bool, each below 2**bits -> bytes [..., n bits / 8], which is whole, uint8."""
    codes = codes.view(torch.uint8) if codes.dtype == torch.bool else codes
    per_byte = BITS_PER_BYTE // bits
    if per_byte == 1:
        return codes
    parts = codes.reshape(*codes.shape[:-1], per_byte, codes.shape[-1] // per_byte)
    # Distinct bits: the sum is their union.
    return (parts << _shifts(bits, codes.device)).sum(-2, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The codes [..., n] uint8 that `pack` took."""
    per_byte = BITS_PER_BYTE // bits
    if per_byte == 1:
        return packed
    parts = (packed.unsqueeze(-2) >> _shifts(bits, packed.device)).bitwise_and_((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], per_byte * packed.shape[-1])


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, BITS_PER_BYTE, bits, dtype=torch.uint8, device=device).unsqueeze(-1)


KernelKind = Literal["FLAT", "MEAN", "ROOT", "VOTE", "TWO", "LEVELS", "LEVELS_OF_LARGEST"]
"""The kernels of `scaling.codecs.kernels.chunk_blocks`, which is imported where Triton is."""

Kernel = Union[KernelKind, "type[ChunkCoder]", None]  # evaluated when the module is imported

CHUNK_MULTIPLE = 32  # Elements of a chunk come in multiples: whole words, whatever the bits of an element


@dataclass(frozen=True)
class Chunks:
    """A flat buffer cut into chunks of equal size, the last one filled up."""

    num_elements: int
    chunk_elements: int

    @property
    def num_chunks(self) -> int:
        return math.ceil(self.num_elements / self.chunk_elements)

    @property
    def padded(self) -> int:
        return self.num_chunks * self.chunk_elements

    def matrix(self, flat: Tensor) -> Tensor:
        """[num_chunks, chunk_elements] view of a flat tensor of `padded` elements."""
        return flat.view(self.num_chunks, self.chunk_elements)

    def valid(self, device: torch.device) -> Tensor:
        """[num_chunks, 1] float32: elements of each chunk that are no filling."""
        counts = torch.full((self.num_chunks, 1), float(self.chunk_elements), device=device)
        counts[-1:] -= self.padded - self.num_elements
        return counts


@dataclass(frozen=True)
class ChunkCodec(Codec):
    """A codec by chunks: a row of the wire is a chunk's head, some floats, and then a code an element.
    `needs_noise`: `encode` takes uniform random numbers. `kernel`: its kernel on CUDA devices: a kind of
    `scaling.codecs.kernels.chunk_blocks`, or a `ChunkCoder` of its own; None: plain torch. A subclass may
    compute otherwise, so it does not inherit it."""

    chunk_elements: int
    head: ClassVar[int]
    bits: ClassVar[int]
    divisible = True
    needs_noise: ClassVar[bool] = False
    kernel: ClassVar[Kernel] = None

    def __post_init__(self) -> None:
        if self.chunk_elements < CHUNK_MULTIPLE or self.chunk_elements % CHUNK_MULTIPLE:
            raise StudyError(
                f"codec {self.name!r}: chunk_elements: allowed is a multiple of {CHUNK_MULTIPLE} from "
                f"{CHUNK_MULTIPLE}, got {self.chunk_elements}"
            )

    def chunks(self, num_elements: int) -> Chunks:
        """Chunks of that size, or one smaller one where the buffer is smaller."""
        rounded = CHUNK_MULTIPLE * math.ceil(max(1, num_elements) / CHUNK_MULTIPLE)
        return Chunks(num_elements, min(self.chunk_elements, rounded))

    def code_bits(self) -> int:
        return self.bits

    def kernel_kind(self) -> tuple[str, float]:
        """The name of its kernel and the number that it takes; overridden where a parameter decides."""
        return str(self.kernel), 0.0

    def row_words(self, chunk_elements: int) -> int:
        """32-bit words of a row."""
        return self.head + chunk_elements * self.code_bits() // (BITS_PER_BYTE * WORD_BYTES)

    def bucket_bytes(self, layout: BucketLayout) -> int:
        return self.wire_bytes(layout.num_elements)

    def wire_bytes(self, num_elements: int) -> int:
        chunks = self.chunks(num_elements)
        return WORD_BYTES * chunks.num_chunks * self.row_words(chunks.chunk_elements)

    @abstractmethod
    def quantise(self, values: Tensor, valid: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Heads [chunks, head] float32 and codes [chunks, n] uint8 or bool. `values`: [chunks, n] float32,
        zeros in the filling; `valid`: [chunks, 1] float32, elements that are no filling; `noise`: [chunks, n]
        float32 uniform in [0, 1), where `needs_noise`."""

    @abstractmethod
    def restore(self, heads: Tensor, codes: Tensor) -> Tensor:
        """Values [..., chunks, n] float32 of heads [..., chunks, head] and codes [..., chunks, n] uint8."""

    def combine(self, decoded: Tensor, rank: int) -> Tensor:
        """What the owner of a stripe, `rank`, makes of all ranks' decoded copies [ranks, chunks, n]: [chunks,
        n], new. To be overridden where it is not their sum."""
        return decoded.sum(0)

    def encode(self, values: Tensor, valid: Tensor, rows: Tensor, noise: Tensor | None = None) -> None:
        """Writes `quantise`'s heads and codes to `rows` [chunks, row_words] int32."""
        heads, codes = self.quantise(values, valid, noise)
        rows[:, : self.head].view(torch.float32).copy_(heads)
        rows[:, self.head :].view(torch.uint8).copy_(pack(codes, self.code_bits()))

    def decode(self, rows: Tensor) -> Tensor:
        """Values [..., chunks, n] float32 of rows [..., chunks, row_words] int32; filling holds anything."""
        codes = unpack(rows[..., self.head :].view(torch.uint8), self.code_bits())
        return self.restore(self.heads(rows), codes)

    def heads(self, rows: Tensor) -> Tensor:
        """[..., chunks, head] float32: not finite where a chunk was not."""
        return rows[..., : self.head].view(torch.float32)


@dataclass(frozen=True)
class PlainChunks(ChunkCodec):
    """Values as they are, for a direction that is not compressed."""

    name: ClassVar[str] = "float32"
    head: ClassVar[int] = 0
    bits: ClassVar[int] = 32

    def quantise(self, values: Tensor, valid: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("values are copied, not quantised")

    def restore(self, heads: Tensor, codes: Tensor) -> Tensor:
        raise NotImplementedError("values are copied, not restored")

    def encode(self, values: Tensor, valid: Tensor, rows: Tensor, noise: Tensor | None = None) -> None:
        rows.view(torch.float32).copy_(values)

    def decode(self, rows: Tensor) -> Tensor:
        return rows.view(torch.float32)


@dataclass(frozen=True)
class Momentum:
    """The common momentum, of which every rank makes its own. `values`: [padded] float32, what `decode` gave
    last; `factor`: by which it is multiplied before the gradient is added."""

    values: Tensor
    factor: float


class ChunkCoder(ABC):
    """Encodes and decodes one rank's bucket, in the order of the current stream. Residuals are empty where
    there are none."""

    note: str

    def __init__(self, codec: ChunkCodec, back: ChunkCodec, chunks: Chunks, device: torch.device) -> None:
        self.codec, self.back, self.chunks, self.device = codec, back, chunks, device

    @abstractmethod
    def encode(
        self,
        gradient: Tensor,
        residual: Tensor,
        rows: Tensor,
        momentum: Momentum | None = None,
        noise: Noise | None = None,
    ) -> None:
        """The gradient with what is added to it into rows; new residual. `gradient`: [num_elements], of any
        floating type. `residual`: [padded] float32; zeros in the filling, which stay. `rows`: [num_chunks,
        row_words] int32 of the codec. `momentum`: what is added too; there is a residual then."""

    @abstractmethod
    def encode_sums(self, received: Tensor, residual: Tensor, rows: Tensor, first: int, rank: int) -> None:
        """What the codec's `combine` makes of all ranks' stripes, with the residual, into rows; new residual.
        `received`: [ranks, own chunks, row_words] int32 of the codec; `residual`: [own chunks,
        chunk_elements] float32; `rows`: [own chunks, row_words] int32 of the codec for sums."""

    @abstractmethod
    def decode(
        self, rows: Tensor, divisor: int, result: Tensor, watch: FiniteWatch, momentum: Momentum | None = None
    ) -> None:
        """The sum over `rows` in their order, divided; marks chunks that were not finite. `rows`: [ranks,
        num_chunks, row_words] int32 of the codec for sums, which is the codec itself where there is more than
        one rank; `result`: [num_elements], of any floating type, filled."""

    def own_elements(self, num_chunks: int, first: int) -> int:
        """Elements of some chunks that are no filling, the first being number `first`."""
        size = self.chunks.chunk_elements
        return max(0, min(self.chunks.num_elements - first * size, num_chunks * size))


class TorchChunks(ChunkCoder):
    """Plain torch, operation by operation: the reference."""

    def __init__(self, codec: ChunkCodec, back: ChunkCodec, chunks: Chunks, device: torch.device) -> None:
        super().__init__(codec, back, chunks, device)
        self.note = f"{codec.name} in plain torch operations"
        self._values = torch.zeros(chunks.padded, device=device)
        self._valid = chunks.valid(device)

    def encode(
        self,
        gradient: Tensor,
        residual: Tensor,
        rows: Tensor,
        momentum: Momentum | None = None,
        noise: Noise | None = None,
    ) -> None:
        n = gradient.numel()
        values, matrix = self._values[:n], self.chunks.matrix(self._values)
        if momentum is not None:
            torch.add(residual[:n], momentum.values[:n], alpha=momentum.factor, out=values)
            values.add_(gradient)
        elif residual.numel():
            torch.add(residual[:n], gradient, out=values)
        else:
            values.copy_(gradient)
        uniform = None if noise is None else self.chunks.matrix(noise.uniform())
        self.codec.encode(matrix, self._valid, rows, uniform)
        if residual.numel():
            torch.sub(matrix, self.codec.decode(rows), out=self.chunks.matrix(residual))
            residual[n:].zero_()

    def encode_sums(self, received: Tensor, residual: Tensor, rows: Tensor, first: int, rank: int) -> None:
        sums = self.codec.combine(self.codec.decode(received), rank)
        if residual.numel():
            sums.add_(residual)
        num_chunks = rows.shape[0]
        sums.view(-1)[self.own_elements(num_chunks, first) :].zero_()
        self.back.encode(sums, self._valid[first : first + num_chunks], rows)
        if residual.numel():
            torch.sub(sums, self.back.decode(rows), out=residual)

    def decode(
        self, rows: Tensor, divisor: int, result: Tensor, watch: FiniteWatch, momentum: Momentum | None = None
    ) -> None:
        n, back = result.numel(), self.back
        total = back.decode(rows[0])
        for row in rows[1:]:
            total.add_(back.decode(row))
        watch.note(back.heads(rows).transpose(0, 1) if back.head else total.sum(1))
        torch.div(total.reshape(-1)[:n], divisor, out=result)
        if momentum is not None:
            momentum.values[:n].copy_(result)


@dataclass(frozen=True)
class SignCodec(ChunkCodec):
    """Base of codecs that send signs."""

    head: ClassVar[int] = 1
    bits: ClassVar[int] = 1

    @abstractmethod
    def scale(self, values: Tensor, valid: Tensor) -> Tensor:
        """[chunks, 1]: what a chunk's signs are multiplied by; 0 for zeros, not finite for what is not."""

    def quantise(self, values: Tensor, valid: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.scale(values, valid), values >= 0

    def restore(self, heads: Tensor, codes: Tensor) -> Tensor:
        return heads * codes.mul(2).to(heads.dtype).sub_(1)
