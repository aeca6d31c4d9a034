"""A codec by chunks at work on one bucket of a rank: residual, encoding and new residual in one call.

`TorchChunks` is plain torch, runs everywhere and is the reference; `scaling.codecs.kernels` has the one for
CUDA devices. Rows are a codec's: [chunks, row_words] int32, a head and codes a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scaling.codecs.chunks import ChunkCodec, ChunkCoder, Chunks, Momentum
from scaling.codecs.finite import FiniteWatch
from scaling.codecs.noise import Noise


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
        self,
        rows: Tensor,
        divisor: int,
        result: Tensor,
        watch: FiniteWatch,
        momentum: Momentum | None = None,
    ) -> None:
        n, back = result.numel(), self.back
        total = back.decode(rows[0])
        for row in rows[1:]:
            total.add_(back.decode(row))
        watch.note(back.heads(rows).transpose(0, 1) if back.head else total.sum(1))
        torch.div(total.reshape(-1)[:n], divisor, out=result)
        if momentum is not None:
            momentum.values[:n].copy_(result)
