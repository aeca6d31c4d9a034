"""What the kernels of 1-bit codecs share (`one_bit_triton`): levels, limits, and places of words.

This module imports Triton; `engine` does so late.
"""

from __future__ import annotations

import triton
import triton.language as tl

SMALLEST_RANGE = tl.constexpr(1e-36)


@triton.jit
def fields_of(tile, VECTOR: tl.constexpr):  # noqa: N803
    """The first ten fields of `tiles.Tile`; all but `offset` are of 32 bits."""
    offset, rows, columns = tl.load(tile), tl.load(tile + 1).to(tl.int32), tl.load(tile + 2).to(tl.int32)
    num_words, row_stride = tl.load(tile + 3).to(tl.int32), tl.load(tile + 4).to(tl.int32)
    column_stride, at = tl.load(tile + 5).to(tl.int32), tl.load(tile + 6).to(tl.int32)
    lanes, step = tl.load(tile + 7).to(tl.int32), tl.load(tile + 8).to(tl.int32)
    iterations = tl.load(tile + 9).to(tl.int32)
    if VECTOR:
        offset, at = tl.multiple_of(offset, 4), tl.multiple_of(at, 4)
        lanes, step = tl.multiple_of(lanes, 4), tl.multiple_of(step, 4)
    return offset, rows, columns, num_words, row_stride, column_stride, at, lanes, step, iterations


@triton.jit
def lanes_of(at, columns, LANES: tl.constexpr):  # noqa: N803
    """A tile's lanes from the word `at` on; the column of each, and its first word there."""
    lane = tl.arange(0, LANES)
    return lane, (at + lane) % columns, (at + lane) // columns


@triton.jit
def word_of(i, at, lane, lanes, first_word, step, columns, num_words, VECTOR: tl.constexpr):  # noqa: N803
    """Of the lanes in iteration i: the word in the matrix, that in the column, and whether it is there."""
    j, word = at + i * step + lane, first_word + i * (step // columns)
    use = (lane < lanes) & (j < num_words * columns)
    if VECTOR:
        use = (lane < lanes) & (j < tl.multiple_of(num_words * columns, 4))
    return j, word, use


@triton.jit
def levels_of(lower, upper, BITS: tl.constexpr):  # noqa: N803
    """One bit: what either bit stands for; more bits: the lowest limit and the extent of a level."""
    extent = upper - lower
    if BITS == 1:
        quarter = tl.where(extent < SMALLEST_RANGE, 0.0, extent / 4)
        return lower + quarter, lower + 3 * quarter
    else:
        num_levels = 2.0**BITS - 1.0 + 0 * extent
        return lower, tl.where(extent < SMALLEST_RANGE, 0.0, tl.math.div_rn(extent, num_levels))


@triton.jit
def level_of(code, first, second, BITS: tl.constexpr):  # noqa: N803
    if BITS == 1:
        return tl.where(code != 0, second, first)
    else:
        return first + (code.to(tl.float32) + 0.5) * second


@triton.jit
def limits_of(received, stride, columns, column, NUM_RANKS: tl.constexpr, BITS: tl.constexpr):  # noqa: N803
    """What `levels_of` gives for the columns of the stripes of all ranks, from the limits that they sent."""
    firsts, seconds = (), ()
    for rank in tl.static_range(NUM_RANKS):
        at = received + rank * stride + column
        lower = tl.load(at).to(tl.float32, bitcast=True)
        upper = tl.load(at + columns).to(tl.float32, bitcast=True)
        first, second = levels_of(lower, upper, BITS)
        # Triton adds tuples, and does not know a star in one.
        firsts, seconds = firsts + (first,), seconds + (second,)  # noqa: RUF005
    return firsts, seconds


@triton.jit
def words_of(received, stride, columns, j, use, NUM_RANKS: tl.constexpr):  # noqa: N803
    words = ()
    for rank in tl.static_range(NUM_RANKS):
        word = tl.load(received + rank * stride + 2 * columns + j, mask=use, other=0)
        words = words + (word,)  # noqa: RUF005
    return words


@triton.jit
def values_of(
    gradient, residual, offset, address, mask, k, words, firsts, seconds,
    NUM_RANKS: tl.constexpr, BITS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Gradient + residual; or, of NUM_RANKS > 0, the sum of the received stripes in rank order + residual."""
    gradient, residual = gradient + offset, residual + offset
    left = tl.load(residual + address, mask=mask, other=0.0)
    if NUM_RANKS == 0:
        return tl.load(gradient + address, mask=mask, other=0.0).to(tl.float32) + left
    else:
        total = tl.zeros_like(left)
        for rank in tl.static_range(NUM_RANKS):
            codes = (words[rank][None, :] >> (k * BITS)) & (2**BITS - 1)
            total += level_of(codes, firsts[rank][None, :], seconds[rank][None, :], BITS)
        return tl.where(mask, total, 0.0) + left


@triton.jit
def place_of(
    j, word, column, k, rows, columns, num_words, row_stride, column_stride, use,
    VECTOR: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Addresses [k, lane] in the matrix of the elements of the words j, and whether they are there."""
    if VECTOR:
        address = j[None, :] + k * tl.multiple_of(num_words * columns, 4)
        mask = use[None, :] & (address < tl.multiple_of(rows * columns, 4))
    else:
        row = word[None, :] + k * num_words
        address = row * row_stride + (column * column_stride)[None, :]
        mask = use[None, :] & (row < rows)
    return address, mask


@triton.jit
def owner_of(column, columns_each, columns_more):
    """The stripe a column is in, where that stripe begins and how wide it is."""
    wide = columns_more * (columns_each + 1)
    late = columns_more + (column - wide) // tl.maximum(columns_each, 1)
    owner = tl.where(column < wide, column // (columns_each + 1), late)
    start = owner * columns_each + tl.minimum(owner, columns_more)
    return owner, start, tl.where(owner < columns_more, columns_each + 1, columns_each)
