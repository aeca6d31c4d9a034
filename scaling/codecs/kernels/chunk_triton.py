"""Codecs by chunks in a launch or two, in Triton; the reference is `scaling.codecs.chunks.TorchChunks`.

What is read and written of device memory for each element of 4 bytes, besides its code and chunk's head:
1. `encode`, of chunks that fit a program: reads the gradient and the residual, takes the chunk's statistics,
   writes head, codes and the new residual: 12, without a residual 4. The common momentum or the words of the
   random numbers add 4. The sums of stripes are decoded and added in place of the gradient: 8.
2. `measure` and `quantise`, of larger chunks: the same, with twice the reads; a program takes a part of a
   chunk, and `quantise` adds up what `measure` found of its chunk's parts, in their order.
3. `decode`: reads all ranks' codes, adds up what they stand for in rank order and writes it, divided: 4.
   Heads that are not finite raise their chunk's flag. `divide` does so for sums that came back in 32 bits: 8.

No step waits for the host, allocates, or depends on the data in its shapes or order of sums: the launches can
be captured in a CUDA graph, and equal inputs give equal bits. Codes and residuals are those of the reference
for the same heads; heads differ by the rounding of sums in another order.

A program's elements form a block [chunk, k, lane]. Byte b of a chunk's B holds the elements b, b + B, b + 2 B
and so on (`scaling.codecs.chunks`): a lane is a byte, and element k B + lane is its bits from k times the
bits of a code on. Neighbouring threads read neighbouring groups of 4 elements, and each has all elements of
its bytes; Triton's compiler lays out axes in that order so. Rows are read and written by bytes; where they
begin is given in words from an aligned address, without which it would not take 4 bytes at once.

This module imports Triton; `chunk_engine` does so late.
"""

from __future__ import annotations

import triton
import triton.language as tl

from scaling.codecs.kernels.chunk_blocks import (
    FLAT,
    LARGEST,
    LEVELS_OF_LARGEST,
    VOTE,
    add_received,
    block_axes,
    heads_from,
    places_of,
    read_values,
    statistics_of,
    write_rows,
)


@triton.jit
def encode(
    gradient, residual, momentum, factor, received, received_bytes, stride, own, words, drawn,
    rows, row_bytes, rows_at, num_elements, num_chunks, num_words, parameter,
    KIND: tl.constexpr, BITS: tl.constexpr, HEAD: tl.constexpr, NUM_RANKS: tl.constexpr,  # noqa: N803
    HAS_RESIDUAL: tl.constexpr, HAS_MOMENTUM: tl.constexpr, HAS_REST: tl.constexpr,  # noqa: N803
    CHUNKS: tl.constexpr, LANES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    block = tl.program_id(0)
    chunk, k, lane = block_axes(block, 0, BITS, CHUNKS, LANES)
    values = read_values(
        gradient, residual, momentum, factor, received, received_bytes, stride, own, num_elements,
        num_chunks, num_words, parameter, block == tl.num_programs(0) - 1, chunk, k, lane,
        KIND, BITS, HEAD, NUM_RANKS, HAS_RESIDUAL, HAS_MOMENTUM, HAS_REST,
    )  # fmt: skip
    size = num_words * (32 // BITS)
    begin = (block * CHUNKS + tl.arange(0, CHUNKS)) * size
    num_valid = tl.minimum(tl.maximum(num_elements - begin, 1), size)
    first, second, count = statistics_of(values, KIND)
    first, second = heads_from(first, second, count, num_valid, KIND)
    write_rows(
        rows, row_bytes, rows_at, residual, words, drawn, values, first, second, block, 0, num_elements,
        num_chunks, num_words, parameter, KIND, BITS, HEAD, HAS_RESIDUAL, CHUNKS, LANES,
    )  # fmt: skip


@triton.jit
def measure(
    gradient, residual, momentum, factor, received, received_bytes, stride, own, partials, counts,
    num_parts, num_elements, num_chunks, num_words, parameter,
    KIND: tl.constexpr, BITS: tl.constexpr, HEAD: tl.constexpr, NUM_RANKS: tl.constexpr,  # noqa: N803
    HAS_RESIDUAL: tl.constexpr, HAS_MOMENTUM: tl.constexpr, HAS_REST: tl.constexpr,  # noqa: N803
    NUM_BLOCKS: tl.constexpr, LANES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """One program (part, chunk): statistics of `NUM_BLOCKS` blocks of lanes."""
    part, number = tl.program_id(0), tl.program_id(1)
    first = tl.zeros([1], tl.float32)
    second = tl.zeros([1], tl.float32)
    count = tl.zeros([1], tl.int32)
    for step in tl.range(0, NUM_BLOCKS):
        block = part * NUM_BLOCKS + step
        chunk, k, lane = block_axes(number, block, BITS, 1, LANES)
        values = read_values(
            gradient, residual, momentum, factor, received, received_bytes, stride, own,
            num_elements, num_chunks, num_words, parameter, number == num_chunks - 1, chunk, k, lane,
            KIND, BITS, HEAD, NUM_RANKS, HAS_RESIDUAL, HAS_MOMENTUM, HAS_REST,
        )  # fmt: skip
        one, other, num = statistics_of(values, KIND)
        if KIND == VOTE or KIND == LEVELS_OF_LARGEST:  # noqa: SIM109
            first = tl.maximum(first, one)
        else:
            first += one
        second += other
        count += num
    at = (number * num_parts + part) + tl.arange(0, 1)
    tl.store(partials + at, first)
    if KIND == FLAT:
        tl.store(partials + num_chunks * num_parts + at, second)
        tl.store(counts + at, count)


@triton.jit
def quantise(
    gradient, residual, momentum, factor, received, received_bytes, stride, own, words, drawn,
    rows, row_bytes, rows_at, partials, counts, num_parts, num_elements, num_chunks, num_words,
    parameter,
    KIND: tl.constexpr, BITS: tl.constexpr, HEAD: tl.constexpr, NUM_RANKS: tl.constexpr,  # noqa: N803
    HAS_RESIDUAL: tl.constexpr, HAS_MOMENTUM: tl.constexpr, HAS_REST: tl.constexpr,  # noqa: N803
    NUM_BLOCKS: tl.constexpr, PARTS: tl.constexpr, LANES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """One program (part, chunk), the last first, of which the cache may still hold some."""
    part = num_parts - 1 - tl.program_id(0)
    number = num_chunks - 1 - tl.program_id(1)
    first = tl.zeros([1], tl.float32)
    second = tl.zeros([1], tl.float32)
    if HEAD > 0:
        at = number * num_parts + tl.arange(0, PARTS)
        has = tl.arange(0, PARTS) < num_parts
        found = tl.load(partials + at, mask=has, other=0.0)
        if KIND == VOTE or KIND == LEVELS_OF_LARGEST:  # noqa: SIM109
            first += tl.max(found, axis=0)
        else:
            first += tl.sum(found, axis=0)
        count = tl.zeros([1], tl.int32)
        if KIND == FLAT:
            others = tl.load(partials + num_chunks * num_parts + at, mask=has, other=0.0)
            second += tl.sum(others, axis=0)
            count += tl.sum(tl.load(counts + at, mask=has, other=0), axis=0)
        size = num_words * (32 // BITS)
        num_valid = tl.minimum(tl.maximum(num_elements - number * size, 1), size) + tl.zeros([1], tl.int32)
        first, second = heads_from(first, second, count, num_valid, KIND)
    for step in tl.range(0, NUM_BLOCKS):
        block = part * NUM_BLOCKS + step
        chunk, k, lane = block_axes(number, block, BITS, 1, LANES)
        values = read_values(
            gradient, residual, momentum, factor, received, received_bytes, stride, own,
            num_elements, num_chunks, num_words, parameter, number == num_chunks - 1, chunk, k, lane,
            KIND, BITS, HEAD, NUM_RANKS, HAS_RESIDUAL, HAS_MOMENTUM, HAS_REST,
        )  # fmt: skip
        write_rows(
            rows, row_bytes, rows_at, residual, words, drawn, values, first, second, number, block,
            num_elements, num_chunks, num_words, parameter, KIND, BITS, HEAD, HAS_RESIDUAL, 1, LANES,
        )  # fmt: skip


@triton.jit
def _divided(values, divisor, IS_FACTOR: tl.constexpr):  # noqa: N803
    """values / divisor, rounded once; a product where the divisor's reciprocal is given, which is exact then.
    A division that may be subnormal or zero takes a slow path, for which its whole warp waits; sums of codes
    are full of zeros."""
    if IS_FACTOR:
        return values * divisor
    else:
        return tl.math.div_rn(values, divisor + 0 * values)


@triton.jit
def decode(
    received, received_bytes, stride, divisor, IS_FACTOR: tl.constexpr, result, momentum, flags,  # noqa: N803
    num_elements, num_chunks, num_words, parameter, lane_blocks,
    KIND: tl.constexpr, BITS: tl.constexpr, HEAD: tl.constexpr, NUM_RANKS: tl.constexpr,  # noqa: N803
    HAS_MOMENTUM: tl.constexpr, HAS_REST: tl.constexpr,  # noqa: N803
    CHUNKS: tl.constexpr, LANES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """One program some chunks, or a part of one: all ranks' rows, added in rank order and divided."""
    chunk_block, lane_block = tl.program_id(0) // lane_blocks, tl.program_id(0) % lane_blocks
    chunk, k, lane = block_axes(chunk_block, lane_block, BITS, CHUNKS, LANES)
    total, bad = add_received(
        received, received_bytes, stride, -1, chunk, k, lane, num_chunks, num_words, parameter,
        KIND, BITS, HEAD, NUM_RANKS,
    )  # fmt: skip
    if HEAD > 0:
        is_row = (chunk < num_chunks) & (lane_block + 0 * chunk == 0)
        tl.store(flags + chunk, bad.to(tl.int8), mask=is_row)
    mean = _divided(total, divisor, IS_FACTOR).to(result.dtype.element_ty)
    address, group, use = places_of(chunk, k, lane, num_chunks, num_words, BITS)
    whole = use & (group < num_elements // 4)
    tl.store(result + address, mean, mask=whole)
    if HAS_MOMENTUM:
        tl.store(momentum + address, mean.to(tl.float32), mask=whole)
    if HAS_REST:  # noqa: SIM102
        if chunk_block == (num_chunks - 1) // CHUNKS:
            rest = use & (group == num_elements // 4) & (address < num_elements)
            tl.store(result + address, mean, mask=rest)
            if HAS_MOMENTUM:
                tl.store(momentum + address, mean.to(tl.float32), mask=rest)


@triton.jit
def divide(
    rows, divisor, IS_FACTOR: tl.constexpr, result, flags, num_elements, num_chunks, size,  # noqa: N803
    NUM_BLOCKS: tl.constexpr, HAS_REST: tl.constexpr, CHUNKS: tl.constexpr, LANES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """`decode` of rows [chunks, size] that are 32-bit sums: one program some chunks, watched by value."""
    chunk = tl.program_id(0) * CHUNKS + tl.arange(0, CHUNKS)[:, None]
    bad = tl.zeros([CHUNKS], tl.int32)
    for block in tl.range(0, NUM_BLOCKS):
        lane = block * LANES + tl.arange(0, LANES)[None, :]
        address = chunk * size + lane
        group = chunk * (size // 4) + lane // 4
        use = (chunk < num_chunks) & (lane // 4 < size // 4)
        values = tl.load(rows + address, mask=use, other=0.0)
        bad = tl.maximum(bad, tl.max((tl.abs(values) <= LARGEST).to(tl.int32) ^ 1, axis=1))
        mean = _divided(values, divisor, IS_FACTOR).to(result.dtype.element_ty)
        tl.store(result + address, mean, mask=use & (group < num_elements // 4))
        if HAS_REST:  # noqa: SIM102
            if tl.program_id(0) == tl.num_programs(0) - 1:
                rest = use & (group == num_elements // 4) & (address < num_elements)
                tl.store(result + address, mean, mask=rest)
    number = tl.program_id(0) * CHUNKS + tl.arange(0, CHUNKS)
    tl.store(flags + number, bad.to(tl.int8), mask=number < num_chunks)
