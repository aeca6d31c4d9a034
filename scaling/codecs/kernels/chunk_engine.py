"""A codec by chunks by Triton's kernels: sizes and scratch made once, then launches only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from scaling.codecs.base import WORD_BYTES
from scaling.codecs.chunks import BITS_PER_BYTE, ChunkCodec, ChunkCoder, Chunks, Kernel, KernelKind, Momentum
from scaling.codecs.finite import FiniteWatch
from scaling.codecs.noise import Noise

LARGEST_BUCKET = 2**31 - 2**16
"""Elements of a bucket with its filling, and bytes of its rows: kernels count them in 32 bits."""
ALIGNED_WORDS = 4  # Between addresses from which Triton takes 16 bytes at once
MAX_PARTS = 1024  # of a chunk that programs share: each of them adds up what all have found
MAX_SHARED = 65535  # Chunks that programs share: a launch of CUDA has no more along its second axis


def kernel_of(codec: ChunkCodec) -> Kernel:
    kernel: Kernel = vars(type(codec)).get("kernel")
    return kernel


def kernel_problem(codec: ChunkCodec, chunks: Chunks) -> str | None:
    """Why there is no kernel for a codec on such a bucket; None if there is one."""
    kernel = kernel_of(codec)
    if kernel is None:
        return f"there is no kernel for the codec {codec.name!r}"
    if not isinstance(kernel, str):
        return None  # a coder of its own
    if kernel not in get_args(KernelKind):
        known = ", ".join(get_args(KernelKind))
        return f"codec {codec.name!r} names the kernel {kernel!r}; allowed: {known}, or a ChunkCoder"
    if chunks.padded > LARGEST_BUCKET:
        return f"a bucket has {chunks.padded} elements, and the kernels count {LARGEST_BUCKET} at most"
    num_bytes = codec.wire_bytes(chunks.num_elements)
    if num_bytes > LARGEST_BUCKET:
        return f"a bucket is encoded in {num_bytes} bytes, and the kernels count {LARGEST_BUCKET} at most"
    if chunks.chunk_elements > BlockSize.whole and chunks.num_chunks > MAX_SHARED:
        return (
            f"a bucket has {chunks.num_chunks} chunks of more than {BlockSize.whole} elements, and the "
            f"kernels take {MAX_SHARED} of these at most"
        )
    return None


@dataclass(frozen=True)
class BlockSize:
    """How much one program takes. `elements`: of a block; a multiple of 128 and a power of two. `whole`: the
    largest block of one chunk that a program takes whole; a larger one is shared. `elements_a_warp`: of which
    each of 32 threads has its part."""

    elements: int = 4096
    whole: int = 16384
    elements_a_warp: int = 1024


@dataclass(frozen=True)
class _Shape:
    chunks: int
    words: int
    num_warps: int


class TritonChunks(ChunkCoder):
    """Kernels of `chunk_triton`, on a CUDA device or, with TRITON_INTERPRET=1, interpreted on the CPU."""

    def __init__(
        self,
        codec: ChunkCodec,
        back: ChunkCodec,
        chunks: Chunks,
        device: torch.device,
        *,
        size: BlockSize | None = None,
    ) -> None:
        super().__init__(codec, back, chunks, device)
        from scaling.codecs.kernels import chunk_blocks, chunk_triton

        self.note = f"{codec.name} in Triton's kernels"
        self._kernels: Any = chunk_triton
        self._size = size or BlockSize()
        self._bits = codec.code_bits()
        self._num_words = chunks.chunk_elements * self._bits // (BITS_PER_BYTE * WORD_BYTES)
        kind, self._parameter = codec.kernel_kind()
        self._kind: Any = getattr(chunk_blocks, kind)
        self._flags = torch.zeros(chunks.num_chunks, dtype=torch.int8, device=device)
        whole = self._block(self._size.whole, chunks.num_chunks)
        self._whole = self._block(self._size.elements, chunks.num_chunks)
        self._is_shared = whole.words < self._num_words
        if not self._is_shared and self._whole.words < self._num_words:
            self._whole = whole
        blocks = math.ceil(self._num_words / self._whole.words)
        self._num_blocks = math.ceil(blocks / MAX_PARTS)
        self._num_parts = math.ceil(blocks / self._num_blocks)
        room = chunks.num_chunks * self._num_parts if self._is_shared else 0
        self._partials = torch.zeros(2 * room, dtype=torch.float32, device=device)
        self._counts = torch.zeros(room, dtype=torch.int32, device=device)
        self._nothing = torch.zeros(0, dtype=torch.float32, device=device)
        self._no_words = torch.zeros(0, dtype=torch.int32, device=device)

    def _block(self, elements: int, num_chunks: int) -> _Shape:
        all_words = elements * self._bits // (BITS_PER_BYTE * WORD_BYTES)
        words = min(_power_of_two(self._num_words), all_words)
        chunks = min(all_words // words, _power_of_two(num_chunks))
        used = chunks * words * BITS_PER_BYTE * WORD_BYTES // self._bits
        return _Shape(chunks, words, max(1, used // self._size.elements_a_warp))

    def encode(
        self,
        gradient: Tensor,
        residual: Tensor,
        rows: Tensor,
        momentum: Momentum | None = None,
        noise: Noise | None = None,
    ) -> None:
        if noise is not None:
            noise.advance()
        drawn = (self._no_words, self._no_words) if noise is None else (noise.words, noise.drawn)
        added = (gradient, residual, self._nothing, 0.0)
        if momentum is not None:
            added = (gradient, residual, momentum.values, momentum.factor)
        self._encode(added, self._no_words, 0, drawn, rows, self.chunks.num_elements)

    def encode_sums(self, received: Tensor, residual: Tensor, rows: Tensor, first: int, rank: int) -> None:
        if not rows.shape[0]:
            return
        num_elements = self.own_elements(rows.shape[0], first)
        if self.back.head or type(self.back) is type(self.codec):
            added, drawn = (self._nothing, residual, self._nothing, 0.0), (self._no_words, self._no_words)
            self._encode(added, received, rank, drawn, rows, num_elements)
        else:
            sums = rows.view(torch.float32).view(-1)[:num_elements]
            self._decode(received, 1, sums, None)

    def _encode(
        self,
        added: tuple[Tensor, Tensor, Tensor, float],
        received: Tensor,
        rank: int,
        drawn: tuple[Tensor, Tensor],
        rows: Tensor,
        num_elements: int,
    ) -> None:
        """`added`: gradient, residual, momentum and its factor; `drawn`: the words of the random numbers."""
        num_chunks = rows.shape[0]
        kernels, shape, (_, residual, momentum, _) = self._kernels, self._whole, added
        sent = (*_received(received), rank)
        written = _written(rows)
        numbers = (num_elements, num_chunks, self._num_words, self._parameter)
        constants: dict[str, Any] = {
            **self._constants(num_elements),
            "NUM_RANKS": received.shape[0],
            "HAS_RESIDUAL": bool(residual.numel()),
            "HAS_MOMENTUM": bool(momentum.numel()),
            "LANES": shape.words * WORD_BYTES,
            "num_warps": shape.num_warps,
        }
        if not self._is_shared:
            blocks = math.ceil(num_chunks / shape.chunks)
            kernels.encode[(blocks,)](
                *added, *sent, *drawn, *written, *numbers, CHUNKS=shape.chunks, **constants
            )
            return
        grid = (self._num_parts, num_chunks)
        buffers = (self._partials, self._counts, self._num_parts)
        constants["NUM_BLOCKS"] = self._num_blocks
        if self.codec.head:
            kernels.measure[grid](*added, *sent, *buffers, *numbers, **constants)
        kernels.quantise[grid](
            *added, *sent, *drawn, *written, *buffers, *numbers,
            PARTS=_power_of_two(self._num_parts), **constants,
        )  # fmt: skip

    def decode(
        self, rows: Tensor, divisor: int, result: Tensor, watch: FiniteWatch, momentum: Momentum | None = None
    ) -> None:
        if self.back.head:
            self._decode(rows, divisor, result, momentum)
        else:
            self._divide(rows[0], divisor, result)
            if momentum is not None:
                momentum.values[: result.numel()].copy_(result)
        watch.mark(self._flags.view(torch.bool))

    def _decode(self, rows: Tensor, divisor: int, result: Tensor, momentum: Momentum | None) -> None:
        num_chunks = rows.shape[1]
        shape = self._block(self._size.elements, num_chunks)
        lane_blocks = math.ceil(self._num_words / shape.words)
        self._kernels.decode[(math.ceil(num_chunks / shape.chunks) * lane_blocks,)](
            *_received(rows),
            *_divided_by(divisor),
            result,
            self._nothing if momentum is None else momentum.values,
            self._flags,
            result.numel(),
            num_chunks,
            self._num_words,
            self._parameter,
            lane_blocks,
            **self._constants(result.numel()),
            NUM_RANKS=rows.shape[0],
            HAS_MOMENTUM=momentum is not None,
            CHUNKS=shape.chunks,
            LANES=shape.words * WORD_BYTES,
            num_warps=shape.num_warps,
        )

    def _divide(self, rows: Tensor, divisor: int, result: Tensor) -> None:
        num_chunks, size = rows.shape
        lanes = min(_power_of_two(size), self._size.elements)
        chunks = self._size.elements // lanes
        self._kernels.divide[(math.ceil(num_chunks / chunks),)](
            rows.view(torch.float32),
            *_divided_by(divisor),
            result,
            self._flags,
            result.numel(),
            num_chunks,
            size,
            NUM_BLOCKS=math.ceil(size / lanes),
            HAS_REST=result.numel() % 4 != 0,
            CHUNKS=chunks,
            LANES=lanes,
            num_warps=4,
        )

    def _constants(self, num_elements: int) -> dict[str, Any]:
        return {
            "KIND": self._kind,
            "BITS": self._bits,
            "HEAD": self.codec.head,
            "HAS_REST": num_elements % 4 != 0,
            "enable_fp_fusion": False,
        }


def _divided_by(divisor: int) -> tuple[float, bool]:
    """The divisor, or its reciprocal where that is exact, and whether it is that."""
    return (float(divisor), False) if divisor & (divisor - 1) else (1 / divisor, True)


def _received(rows: Tensor) -> tuple[Tensor, Tensor, int]:
    return rows, rows.view(torch.int8), rows[0].numel() if rows.numel() else 0


def _written(rows: Tensor) -> tuple[Tensor, Tensor, int]:
    """Rows from an aligned address on, as words and as bytes, and where they begin there, in words. Not from
    the storage's own beginning: other ranks' rows before them would not be counted in 32 bits."""
    at = int(rows.storage_offset())
    begin = at % ALIGNED_WORDS
    near = rows.as_strided((begin + rows.numel(),), (1,), at - begin)
    return near, near.view(torch.int8), begin


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
