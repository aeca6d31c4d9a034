"""The stripes of a bucket by Triton's kernels: tables and scratch made once, then launches only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scaling.codecs.kernels.tiles import Tables, plain_lanes, tables_of
from scaling.codecs.one_bit import Threshold
from scaling.codecs.one_bit_stripes import StripeBuffers, StripeCodec
from scaling.codecs.stripes import Matrix, elements_per_word


@dataclass(frozen=True)
class TileSize:
    """How much one program of a kernel takes. `lanes`: neighbouring words, a power of two. `iterations`:
    blocks of as many words, at most, one after the other. `rows`: elements of a word that are loaded
    together, a power of two up to 32. `num_warps`: of a program. With 128 lanes a warp each thread holds
    whole columns of a block."""

    lanes: int
    iterations: int
    rows: int
    num_warps: int


GRADIENT = TileSize(lanes=256, iterations=4, rows=8, num_warps=2)
SUMS = TileSize(lanes=512, iterations=2, rows=4, num_warps=4)
DECODE = TileSize(lanes=512, iterations=4, rows=4, num_warps=4)
FINISH_COLUMNS, FINISH_ROWS = 32, 64


@dataclass(frozen=True)
class _Source:
    """What `encode` and `encode_sums` tell the kernels apart by."""

    tables: Tables
    size: TileSize
    residual: Tensor
    received: Tensor
    received_stride: int
    num_ranks: int
    segments: Tensor  # [matrices, num_owners] int64: where each stripe is written
    num_owners: int


class TritonStripes(StripeCodec):
    """Kernels of `one_bit_triton`, on a CUDA device or, with TRITON_INTERPRET=1, interpreted on the CPU."""

    note = "one_bit in Triton's kernels"

    def __init__(
        self,
        buffers: StripeBuffers,
        threshold: Threshold,
        *,
        gradient: TileSize = GRADIENT,
        sums: TileSize = SUMS,
        decoding: TileSize = DECODE,
    ) -> None:
        super().__init__(buffers, threshold)
        from scaling.codecs.kernels import one_bit_triton

        self._kernels: Any = one_bit_triton
        stripes, rank, gathered = buffers.stripes, buffers.rank, buffers.gathered
        n, device = stripes.world_size, buffers.wire.device
        self._decoding = decoding
        whole, stripe = stripes.matrices, stripes.own(rank)
        nowhere = [0] * len(whole)
        to_owners = [*buffers.outgoing[:rank], buffers.incoming[rank], *buffers.outgoing[rank + 1 :]]
        self._gathered = self._segments(gathered, range(n))
        tables, segments = self._tables(whole, nowhere, n, gradient), self._segments(to_owners, range(n))
        self._gradient = _Source(tables, gradient, buffers.residual, buffers.wire, *(0, 0), segments, n)
        own_segments = [segments[rank] for segments in stripes.segments]
        self._sums = _Source(
            self._tables(stripe, own_segments, 1, sums),
            sums,
            buffers.stripe_residual,
            buffers.wire[buffers.incoming[0].storage_offset() :],
            buffers.row_words,
            n,
            self._segments([gathered[rank]], [rank]),
            1,
        )
        self._decode_tables = (
            self._gradient.tables if decoding == gradient else self._tables(whole, nowhere, n, decoding)
        )
        room = max(self._gradient.tables.num_partials, self._sums.tables.num_partials, 1)
        columns = max(self._gradient.tables.num_columns, self._sums.tables.num_columns, 1)
        self._partials = torch.empty(2, room, dtype=torch.float32, device=device)
        self._counts = torch.empty(room, dtype=torch.int32, device=device)
        self._thresholds = torch.empty(columns, dtype=torch.float32, device=device)
        self._found = torch.zeros(len(whole), dtype=torch.int32, device=device)
        self._levels = torch.empty(2, columns, dtype=torch.float32, device=device)

    def _tables(
        self, matrices: Sequence[Matrix], sources: Sequence[int], num_owners: int, size: TileSize
    ) -> Tables:
        return tables_of(
            matrices,
            sources,
            num_owners,
            lanes=size.lanes,
            iterations=size.iterations,
            columns_a_program=FINISH_COLUMNS,
            device=self.buffers.wire.device,
        )

    def _segments(self, messages: Sequence[Tensor], owners: Sequence[int]) -> Tensor:
        """[matrices, owners] where each stripe begins in the buffer; of each owner its message."""
        rows = [
            [part.storage_offset() + segments[owner] for part, owner in zip(messages, owners, strict=True)]
            for segments in self.buffers.stripes.segments
        ]
        return torch.tensor(rows, dtype=torch.int64).view(-1, len(owners)).to(self.buffers.wire.device)

    def encode(self, gradient: Tensor) -> None:
        self._encode(gradient, self._gradient)

    def encode_sums(self) -> None:
        self._encode(self.buffers.stripe_residual, self._sums)

    def _encode(self, values: Tensor, source: _Source) -> None:
        kernels, bits = self._kernels, self.buffers.stripes.bits
        if bits > 1:
            self._add_up(values, source, kernels.SQUARES)
        elif self.threshold == "zero":
            self._add_up(values, source, kernels.CLASSES)
        else:
            self._add_up(values, source, kernels.SUM)
            self._add_up(values, source, kernels.DEVIATION)
        for is_vector, tiles in source.tables.tiles:
            kernels.quantise[(len(tiles),)](
                values,
                source.residual,
                source.received,
                source.received_stride,
                tiles,
                self._thresholds,
                self._levels,
                self._levels.shape[1],
                source.segments,
                source.num_owners,
                self.buffers.wire,
                HAS_THRESHOLDS=bits == 1 and self.threshold == "mean",
                NUM_RANKS=source.num_ranks,
                BITS=bits,
                LANES=source.size.lanes if is_vector else plain_lanes(source.size.lanes),
                ROWS=min(source.size.rows, elements_per_word(bits)),
                VECTOR=is_vector,
                num_warps=source.size.num_warps,
                enable_fp_fusion=False,
            )

    def _add_up(self, values: Tensor, source: _Source, statistic: Any) -> None:
        kernels, bits, tables = self._kernels, self.buffers.stripes.bits, source.tables
        if not tables.tiles:
            return
        for is_vector, tiles in tables.tiles:
            kernels.statistics[(len(tiles),)](
                values,
                source.residual,
                source.received,
                source.received_stride,
                tiles,
                self._thresholds,
                self._partials,
                self._counts,
                self._partials.shape[1],
                STATISTIC=statistic,
                NUM_RANKS=source.num_ranks,
                BITS=bits,
                LANES=source.size.lanes if is_vector else plain_lanes(source.size.lanes),
                ROWS=min(source.size.rows, elements_per_word(bits)),
                VECTOR=is_vector,
                num_warps=source.size.num_warps,
                enable_fp_fusion=False,
            )
        kernels.finish[(len(tables.column_tiles),)](
            tables.column_tiles,
            self._partials,
            self._counts,
            self._partials.shape[1],
            self._thresholds,
            self._levels,
            self._levels.shape[1],
            source.segments,
            source.num_owners,
            self.buffers.wire,
            STATISTIC=statistic,
            BITS=bits,
            COLUMNS=FINISH_COLUMNS,
            ROWS=FINISH_ROWS,
            num_warps=4,
            enable_fp_fusion=False,
        )

    def decode(self, result: Tensor) -> None:
        stripes, size = self.buffers.stripes, self._decoding
        for is_vector, tiles in self._decode_tables.tiles:
            self._kernels.decode[(len(tiles),)](
                self.buffers.wire,
                tiles,
                self._gathered,
                stripes.world_size,
                float(stripes.world_size),
                result,
                self._found,
                BITS=stripes.bits,
                LANES=size.lanes if is_vector else plain_lanes(size.lanes),
                ROWS=min(size.rows, elements_per_word(stripes.bits)),
                VECTOR=is_vector,
                num_warps=size.num_warps,
                enable_fp_fusion=False,
            )
        num_matrices = len(self._found)
        if num_matrices:
            self._kernels.settle[(1,)](
                self._found,
                self.buffers.marks.view(torch.int8),
                num_matrices,
                SIZE=1 << (num_matrices - 1).bit_length(),
                num_warps=4,
            )
