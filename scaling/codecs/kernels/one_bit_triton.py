"""1-bit (and k-bit) quantisation of a bucket in a few launches, in Triton; the reference is `one_bit.encode`.

What is read and written of device memory for each element of 4 bytes:
1. `statistics`: reads the gradient and the residual (8), and adds up each tile's share of each column;
2. `finish`: adds the tiles' shares of a column in their order and writes the column's limits on the wire;
3. `quantise`: reads both again (8), writes the bits (1/8) and the new residual (4).
So 20 bytes. The threshold "mean" needs steps 1 and 2 twice, as the mean deviation needs the mean: 28. For the
sums of stripes the same kernels decode and add the n received stripes in place of the gradient: 12 + 3 n / 8.
4. `decode` reads the bits of all stripes and writes the mean: 4. Limits that are not finite raise a flag,
   which `settle` keeps if it is the first step with any.

No step waits for the host, allocates, or depends on the data in its shapes or order of sums: the launches can
be captured in a CUDA graph, and equal inputs give equal bits. Matrices, stripes and tiles are tables on the
device (`tiles`), so one launch serves all tensors of a bucket. Bits and residuals are those of the reference
for the same limits; the limits differ by the rounding of sums in another order.

This module imports Triton; `engine` does so late.
"""

from __future__ import annotations

import triton
import triton.language as tl

from scaling.codecs.kernels.one_bit_blocks import (
    fields_of,
    lanes_of,
    level_of,
    levels_of,
    limits_of,
    owner_of,
    place_of,
    values_of,
    word_of,
    words_of,
)

TILE_FIELDS = tl.constexpr(16)
COLUMN_FIELDS = tl.constexpr(9)
LARGEST = tl.constexpr(3.4028234663852886e38)
DEVIATIONS = tl.constexpr(4.0)

CLASSES = tl.constexpr(0)  # Statistic: sums of the negative and of the other elements, and how many others
SUM = tl.constexpr(1)
DEVIATION = tl.constexpr(2)  # of the elements from the column's mean, absolutely
SQUARES = tl.constexpr(3)


@triton.jit
def statistics(
    gradient, residual, received, received_stride, tiles, thresholds, sums, counts, num_partials,
    STATISTIC: tl.constexpr, NUM_RANKS: tl.constexpr, BITS: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr, ROWS: tl.constexpr, VECTOR: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """One program a tile: its part of the sums over its columns."""
    tile = tiles + tl.program_id(0) * TILE_FIELDS
    offset, rows, columns, num_words, row_stride, column_stride, at, lanes, step, iterations = fields_of(
        tile, VECTOR
    )
    lane, column, first_word = lanes_of(at, columns, LANES)
    centre = tl.zeros([LANES], tl.float32)
    if STATISTIC == DEVIATION:
        centre = tl.load(thresholds + tl.load(tile + 11) + column)
    negatives = tl.zeros([LANES], tl.float32)
    others = tl.zeros([LANES], tl.float32)
    num_others = tl.zeros([LANES], tl.int32)
    received += tl.load(tile + 15)
    firsts, seconds = limits_of(received, received_stride, columns, column, NUM_RANKS, BITS)
    i = 0
    while i < iterations:
        j, word, use = word_of(i, at, lane, lanes, first_word, step, columns, num_words, VECTOR)
        words = words_of(received, received_stride, columns, j, use, NUM_RANKS)
        for begin in tl.range(0, 32 // BITS, ROWS):
            k = begin + tl.arange(0, ROWS)[:, None]
            address, mask = place_of(
                j, word, column, k, rows, columns, num_words, row_stride, column_stride, use, VECTOR
            )
            values = values_of(
                gradient, residual, offset, address, mask, k, words, firsts, seconds, NUM_RANKS, BITS
            )
            if STATISTIC == CLASSES:
                is_one = values >= 0
                negatives += tl.sum(tl.where(is_one, 0.0, values), axis=0)
                others += tl.sum(tl.where(is_one, values, 0.0), axis=0)
                num_others += tl.sum((is_one & mask).to(tl.int32), axis=0)
            elif STATISTIC == SUM:
                others += tl.sum(values, axis=0)
            elif STATISTIC == DEVIATION:
                others += tl.sum(tl.where(mask, tl.abs(values - centre[None, :]), 0.0), axis=0)
            else:
                others += tl.sum(values * values, axis=0)
        i += 1
    partial = tl.load(tile + 10) + lane
    tl.store(sums + partial, others, mask=lane < lanes)
    if STATISTIC == CLASSES:
        tl.store(sums + num_partials + partial, negatives, mask=lane < lanes)
        tl.store(counts + partial, num_others, mask=lane < lanes)


@triton.jit
def finish(
    column_tiles, sums, counts, num_partials, thresholds, levels, num_columns, segments, num_owners, wire,
    STATISTIC: tl.constexpr, BITS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr, ROWS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """One program a block of columns: adds what the tiles have summed, and writes what comes of it."""
    tile = column_tiles + tl.program_id(0) * COLUMN_FIELDS
    partial, num_rows, columns = tl.load(tile), tl.load(tile + 1).to(tl.int32), tl.load(tile + 2).to(tl.int32)
    column = tl.load(tile + 3).to(tl.int32) + tl.arange(0, COLUMNS)
    use = column < columns
    others = tl.zeros([COLUMNS], tl.float32)
    negatives = tl.zeros([COLUMNS], tl.float32)
    num_others = tl.zeros([COLUMNS], tl.int32)
    begin = 0
    while begin < num_rows:
        row = begin + tl.arange(0, ROWS)[:, None]
        mask = use[None, :] & (row < num_rows)
        at = partial + row * columns + column[None, :]
        others += tl.sum(tl.load(sums + at, mask=mask, other=0.0), axis=0)
        if STATISTIC == CLASSES:
            negatives += tl.sum(tl.load(sums + num_partials + at, mask=mask, other=0.0), axis=0)
            num_others += tl.sum(tl.load(counts + at, mask=mask, other=0), axis=0)
        begin += ROWS
    num_elements = tl.load(tile + 4).to(tl.int32)
    number = tl.load(tile + 5) + column
    matrix = tl.load(tile + 6)
    if STATISTIC == SUM:
        tl.store(thresholds + number, tl.math.div_rn(others, num_elements.to(tl.float32)), mask=use)
    else:
        if STATISTIC == CLASSES:
            num_negatives = num_elements - num_others
            low = tl.math.div_rn(negatives, tl.maximum(num_negatives, 1).to(tl.float32))
            high = tl.math.div_rn(others, tl.maximum(num_others, 1).to(tl.float32))
            middle, half = (low + high) / 2, high - low
        elif STATISTIC == DEVIATION:
            mean = tl.load(thresholds + number, mask=use, other=0.0)
            deviation = tl.math.div_rn(others, num_elements.to(tl.float32))
            low, high = mean - deviation, mean + deviation
            middle, half = (low + high) / 2, high - low
        else:
            half = DEVIATIONS * tl.math.sqrt_rn(tl.math.div_rn(others, num_elements.to(tl.float32)))
            middle = half * 0
        lower, upper = middle - half, middle + half
        owner, start, width = owner_of(column, tl.load(tile + 7).to(tl.int32), tl.load(tile + 8).to(tl.int32))
        place = tl.load(segments + matrix * num_owners + owner, mask=use, other=0) + column - start
        tl.store(wire + place, lower.to(tl.int32, bitcast=True), mask=use)
        tl.store(wire + place + width, upper.to(tl.int32, bitcast=True), mask=use)
        first, second = levels_of(lower, upper, BITS)
        tl.store(levels + number, first, mask=use)
        tl.store(levels + num_columns + number, second, mask=use)


@triton.jit
def quantise(
    gradient, residual, received, received_stride, tiles, thresholds, levels, num_columns, segments,
    num_owners, wire, HAS_THRESHOLDS: tl.constexpr, NUM_RANKS: tl.constexpr, BITS: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr, ROWS: tl.constexpr, VECTOR: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """One program a tile, the last first, of which the cache may still hold some: bits and residual."""
    tile = tiles + (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE_FIELDS
    offset, rows, columns, num_words, row_stride, column_stride, at, lanes, step, iterations = fields_of(
        tile, VECTOR
    )
    lane, column, first_word = lanes_of(at, columns, LANES)
    number = tl.load(tile + 11) + column
    first = tl.load(levels + number)
    second = tl.load(levels + num_columns + number)
    threshold = tl.zeros([LANES], tl.float32)
    if HAS_THRESHOLDS:
        threshold = tl.load(thresholds + number)
    owner, start, width = owner_of(column, tl.load(tile + 13).to(tl.int32), tl.load(tile + 14).to(tl.int32))
    segment = tl.load(segments + tl.load(tile + 12) * num_owners + owner)
    target = wire + segment + 2 * width + (column - start)
    received += tl.load(tile + 15)
    firsts, seconds = limits_of(received, received_stride, columns, column, NUM_RANKS, BITS)
    i = 0
    while i < iterations:
        j, word, use = word_of(i, at, lane, lanes, first_word, step, columns, num_words, VECTOR)
        words = words_of(received, received_stride, columns, j, use, NUM_RANKS)
        packed = tl.zeros([LANES], tl.int32)
        for begin in tl.range(0, 32 // BITS, ROWS):
            k = begin + tl.arange(0, ROWS)[:, None]
            address, mask = place_of(
                j, word, column, k, rows, columns, num_words, row_stride, column_stride, use, VECTOR
            )
            values = values_of(
                gradient, residual, offset, address, mask, k, words, firsts, seconds, NUM_RANKS, BITS
            )
            if BITS == 1:
                codes = (values >= threshold[None, :]).to(tl.int32)
            else:
                factor = tl.where(second > 0, tl.math.div_rn(1.0 + 0 * second, second), 0.0)
                scaled = (values - first[None, :]) * factor[None, :]
                codes = tl.minimum(tl.maximum(scaled, 0.0), 2.0**BITS - 2.0).to(tl.int32)
            lost = values - level_of(codes, first[None, :], second[None, :], BITS)
            tl.store(residual + offset + address, lost, mask=mask)
            packed += tl.sum(tl.where(mask, codes, 0) << (k * BITS), axis=0)
        tl.store(target + word * width, packed, mask=use)
        i += 1


@triton.jit
def decode(
    wire, tiles, segments, num_owners, divisor, result, found,
    BITS: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, VECTOR: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """One program a tile: what all owners' messages stand for, divided by `divisor`."""
    tile = tiles + tl.program_id(0) * TILE_FIELDS
    offset, rows, columns, num_words, row_stride, column_stride, at, lanes, step, iterations = fields_of(
        tile, VECTOR
    )
    lane, column, first_word = lanes_of(at, columns, LANES)
    owner, start, width = owner_of(column, tl.load(tile + 13).to(tl.int32), tl.load(tile + 14).to(tl.int32))
    segment = tl.load(segments + tl.load(tile + 12) * num_owners + owner)
    source = wire + segment + (column - start)
    lower = tl.load(source).to(tl.float32, bitcast=True)
    upper = tl.load(source + width).to(tl.float32, bitcast=True)
    is_finite = (tl.abs(lower) <= LARGEST) & (tl.abs(upper) <= LARGEST)
    tl.store(found + tl.load(tile + 12) + lane * 0, 1, mask=(lane < lanes) & (is_finite == 0))
    first, second = levels_of(lower, upper, BITS)
    if BITS == 1:
        first, second = (
            tl.math.div_rn(first, divisor + 0 * first),
            tl.math.div_rn(second, divisor + 0 * second),
        )
    i = 0
    while i < iterations:
        j, word, use = word_of(i, at, lane, lanes, first_word, step, columns, num_words, VECTOR)
        packed = tl.load(source + 2 * width + word * width, mask=use, other=0)
        for begin in tl.range(0, 32 // BITS, ROWS):
            k = begin + tl.arange(0, ROWS)[:, None]
            address, mask = place_of(
                j, word, column, k, rows, columns, num_words, row_stride, column_stride, use, VECTOR
            )
            codes = (packed[None, :] >> (k * BITS)) & (2**BITS - 1)
            values = level_of(codes, first[None, :], second[None, :], BITS)
            if BITS > 1:
                values = tl.math.div_rn(values, divisor + 0 * values)
            tl.store(result + offset + address, values.to(result.dtype.element_ty), mask=mask)
        i += 1


@triton.jit
def settle(found, marks, num_matrices, SIZE: tl.constexpr):  # noqa: N803
    """One program: what was found becomes marks, unless there are some already."""
    at = tl.arange(0, SIZE)
    marked = tl.load(marks + at, mask=at < num_matrices, other=0)
    new = tl.load(found + at, mask=at < num_matrices, other=0)
    is_first = tl.max(marked.to(tl.int32), axis=0) == 0
    tl.store(marks + at, tl.where(is_first & (new != 0), 1, marked).to(tl.int8), mask=at < num_matrices)
    tl.store(found + at, 0, mask=at < num_matrices)
