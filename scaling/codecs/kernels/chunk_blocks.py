"""What the kernels of codecs by chunks do with one block of elements, in Triton: see `chunk_triton`.

A block has the axes [chunk, k, lane]. Functions here read values, take statistics, make heads and codes,
restore, and write rows; which of a codec's ways is taken is decided when a kernel is compiled, by `KIND`.

This module imports Triton; `chunk_engine` does so late.
"""

from __future__ import annotations

import triton
import triton.language as tl

FLAT = tl.constexpr(0)  # Kind: two means and a bit; `one_bit_flat`
MEAN = tl.constexpr(1)  # Mean magnitude and a sign; `ef_sign`
ROOT = tl.constexpr(2)  # Root mean square and a sign; `one_bit_momentum`
VOTE = tl.constexpr(3)  # Whether there is any value but zero, and a sign; `sign`
TWO = tl.constexpr(4)  # No head; `two_bit`
LEVELS = tl.constexpr(5)  # 2-norm, sign and level; `qsgd`
LEVELS_OF_LARGEST = tl.constexpr(6)  # the same with the largest magnitude

LARGEST = tl.constexpr(3.4028234663852886e38)
PLUS, MINUS, NOT_FINITE = tl.constexpr(3), tl.constexpr(2), tl.constexpr(1)  # Codes of `two_bit`
UPPER_BITS = tl.constexpr(0xFFFFFF)
UPPER_UNIT = tl.constexpr(2.0**-24)


@triton.jit
def block_axes(chunk_block, lane_block, BITS: tl.constexpr, CHUNKS: tl.constexpr, LANES: tl.constexpr):  # noqa: N803
    """The block's axes chunk, k and lane, each with 3 dimensions."""
    chunk = chunk_block * CHUNKS + tl.arange(0, CHUNKS)[:, None, None]
    k = tl.arange(0, 8 // BITS)[None, :, None]
    lane = lane_block * LANES + tl.arange(0, LANES)[None, None, :]
    return chunk, k, lane


@triton.jit
def places_of(chunk, k, lane, num_chunks, num_words, BITS: tl.constexpr):  # noqa: N803
    """Addresses, the groups of 4 that they are in, and whether there are such elements, by groups."""
    first = (chunk * (8 // BITS) + k) * num_words
    use = (chunk < num_chunks) & (lane // 4 < num_words) & (k >= 0)
    return first * 4 + lane, first + lane // 4, use


@triton.jit
def _sum(values):
    """[chunk, k, lane] -> [chunk]; what a thread has itself first."""
    return tl.sum(tl.sum(values, axis=1), axis=1)


@triton.jit
def _max(values):
    return tl.max(tl.max(values, axis=1), axis=1)


@triton.jit
def _heads_of(at, use, HEAD: tl.constexpr):  # noqa: N803
    if HEAD == 0:
        first = tl.zeros([1, 1, 1], tl.float32)
        second = first
    elif HEAD == 1:
        first = tl.load(at, mask=use, other=0).to(tl.float32, bitcast=True)
        second = first
    else:
        first = tl.load(at, mask=use, other=0).to(tl.float32, bitcast=True)
        second = tl.load(at + 1, mask=use, other=0).to(tl.float32, bitcast=True)
    return first, second


@triton.jit
def restored(codes, first, second, parameter, KIND: tl.constexpr, BITS: tl.constexpr):  # noqa: N803
    """What codes stand for; `parameter` is the threshold, or the number of levels."""
    if KIND == FLAT:
        return tl.where(codes != 0, second, first)
    elif KIND == TWO:
        sign = (codes == PLUS).to(tl.float32) - (codes == MINUS).to(tl.float32)
        return tl.where(codes == NOT_FINITE, float("nan"), sign * parameter)
    elif KIND == LEVELS or KIND == LEVELS_OF_LARGEST:  # noqa: SIM109  # Triton has no `in`
        level = (codes & (2 ** (BITS - 1) - 1)).to(tl.float32)
        is_negative = (codes & (2 ** (BITS - 1))) != 0
        return tl.where(is_negative, -level, level) * tl.math.div_rn(first, parameter + 0 * first)
    else:
        return tl.where(codes != 0, first, -first)


@triton.jit
def add_received(
    received, received_bytes, stride, own, chunk, k, lane, num_chunks, num_words, parameter,
    KIND: tl.constexpr, BITS: tl.constexpr, HEAD: tl.constexpr, NUM_RANKS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """What all ranks' rows stand for, added in rank order, or voted; and [chunk, 1, 1]: heads not finite."""
    is_row = chunk < num_chunks
    is_byte = is_row & (lane // 4 < num_words)
    row = chunk * (HEAD + num_words)
    total = tl.zeros_like((chunk + k + lane).to(tl.float32))
    mine = total
    bad = chunk < 0
    for rank in tl.range(0, NUM_RANKS):
        first, second = _heads_of(received + row, is_row, HEAD)
        is_finite = (tl.abs(first) <= LARGEST) & (tl.abs(second) <= LARGEST)
        bad = bad | (is_finite == 0)
        packed = tl.load(received_bytes + (row + HEAD) * 4 + lane, mask=is_byte, other=0).to(tl.int32)
        codes = (packed >> (k * BITS)) & (2**BITS - 1)
        values = restored(codes, first, second, parameter, KIND, BITS)
        total += values
        if KIND == VOTE:
            mine = tl.where(own == rank, values, mine)
        received += stride
        received_bytes += stride * 4
    if KIND == VOTE:
        total = tl.where(total == 0, mine, total)
    return total, bad


@triton.jit
def read_values(
    gradient, residual, momentum, factor, received, received_bytes, stride, own, num_elements,
    num_chunks, num_words, parameter, is_last, chunk, k, lane,
    KIND: tl.constexpr, BITS: tl.constexpr, HEAD: tl.constexpr, NUM_RANKS: tl.constexpr,  # noqa: N803
    HAS_RESIDUAL: tl.constexpr, HAS_MOMENTUM: tl.constexpr, HAS_REST: tl.constexpr,  # noqa: N803
):  # fmt: skip
    address, group, use = places_of(chunk, k, lane, num_chunks, num_words, BITS)
    if NUM_RANKS > 0:
        added, _ = add_received(
            received, received_bytes, stride, own, chunk, k, lane, num_chunks, num_words,
            parameter, KIND, BITS, HEAD, NUM_RANKS,
        )  # fmt: skip
    else:
        # By groups, as one instruction loads them; the gradient's last one may not be whole.
        whole = use & (group < num_elements // 4)
        added = tl.load(gradient + address, mask=whole, other=0.0).to(tl.float32)
        if HAS_REST:  # noqa: SIM102  # one is known to the compiler, one is not
            if is_last:
                rest = use & (group == num_elements // 4) & (address < num_elements)
                single = tl.load(gradient + address, mask=rest, other=0.0).to(tl.float32)
                added = tl.where(rest, single, added)
    if HAS_RESIDUAL:
        left = tl.load(residual + address, mask=use, other=0.0)
        if HAS_MOMENTUM:
            left = tl.fma(tl.load(momentum + address, mask=use, other=0.0), factor + 0 * left, left)
        added = left + added
    if NUM_RANKS > 0:
        added = tl.where(use & (address < num_elements), added, 0.0)
    return added


@triton.jit
def statistics_of(values, KIND: tl.constexpr):  # noqa: N803
    """Of each chunk: two floats and a count, as far as the kind's heads need them."""
    if KIND == FLAT:  # not a number is in both sums
        first = _sum(tl.where(values >= 0, 0.0, values))
        second = _sum(tl.where(values < 0, 0.0, values))
        count = _sum((values < 0).to(tl.int32))
    elif KIND == VOTE:
        some = tl.where(values == 0, 0.0, 1.0)
        first = _max(tl.where(tl.abs(values) <= LARGEST, some, 2.0))
        second, count = first, first.to(tl.int32)
    elif KIND == LEVELS_OF_LARGEST:
        magnitude = tl.abs(values)
        first = _max(tl.where(magnitude <= LARGEST, magnitude, float("inf")))
        second, count = first, first.to(tl.int32)
    else:
        first = _sum(tl.abs(values) if KIND == MEAN else values * values)
        second, count = first, first.to(tl.int32)
    return first, second, count


@triton.jit
def heads_from(first, second, count, num_valid, KIND: tl.constexpr):  # noqa: N803
    """[chunk] both floats of the heads, from the statistics and the elements that are no filling."""
    if KIND == FLAT:
        lower = tl.math.div_rn(first, tl.maximum(count, 1).to(tl.float32))
        upper = tl.math.div_rn(second, tl.maximum(num_valid - count, 1).to(tl.float32))
        return lower, upper
    elif KIND == VOTE:
        scale = tl.where(first == 2, float("nan"), first)
        return scale, scale
    elif KIND == LEVELS_OF_LARGEST:
        return first, first
    elif KIND == LEVELS:
        norm = tl.math.sqrt_rn(first)
        return norm, norm
    elif KIND == ROOT:
        root = tl.math.div_rn(tl.math.sqrt_rn(first), tl.math.sqrt_rn(num_valid.to(tl.float32)))
        return root, root
    else:
        mean = tl.math.div_rn(first, num_valid.to(tl.float32))
        return mean, mean


@triton.jit
def codes_of(
    values, first, words, drawn, address, use, parameter, KIND: tl.constexpr, BITS: tl.constexpr  # noqa: N803
):  # fmt: skip
    """int32 codes; `first` as [chunk, 1, 1]."""
    if KIND == TWO:
        code = (values >= parameter).to(tl.int32) * PLUS + (values <= -parameter).to(tl.int32) * MINUS
        return tl.where(tl.abs(values) <= LARGEST, code, NOT_FINITE)
    elif KIND == LEVELS or KIND == LEVELS_OF_LARGEST:  # noqa: SIM109  # Triton has no `in`
        factor = tl.where(first > 0, tl.math.div_rn(1.0 + 0 * first, first) * parameter, 0.0)
        mixed = tl.load(words + address, mask=use, other=0) * (tl.load(drawn) | 1) + tl.load(drawn + 1)
        uniform = ((mixed >> 8) & UPPER_BITS).to(tl.float32) * UPPER_UNIT
        scaled = tl.floor(tl.abs(values) * factor + uniform)
        level = tl.where(scaled == scaled, tl.minimum(scaled, parameter), 0.0).to(tl.int32)
        is_negative = values.to(tl.int32, bitcast=True) < 0
        return level | (is_negative.to(tl.int32) << (BITS - 1))
    else:
        return (values >= 0).to(tl.int32)


@triton.jit
def write_rows(
    rows, row_bytes, rows_at, residual, words, drawn, values, first, second, chunk_block, lane_block,
    num_elements, num_chunks, num_words, parameter,
    KIND: tl.constexpr, BITS: tl.constexpr, HEAD: tl.constexpr, HAS_RESIDUAL: tl.constexpr,  # noqa: N803
    CHUNKS: tl.constexpr, LANES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Heads (by the first block of lanes), codes, new residual."""
    number = chunk_block * CHUNKS + tl.arange(0, CHUNKS)
    row = rows_at + number * (HEAD + num_words)
    if HEAD > 0:
        is_row = (number < num_chunks) & (lane_block + 0 * number == 0)
        tl.store(rows + row, first.to(tl.int32, bitcast=True), mask=is_row)
    if HEAD > 1:
        tl.store(rows + row + 1, second.to(tl.int32, bitcast=True), mask=is_row)
    chunk, k, lane = block_axes(chunk_block, lane_block, BITS, CHUNKS, LANES)
    address, _, use = places_of(chunk, k, lane, num_chunks, num_words, BITS)
    first, second = first[:, None, None], second[:, None, None]
    codes = codes_of(values, first, words, drawn, address, use, parameter, KIND, BITS)
    packed = tl.sum(codes << (k * BITS), axis=1)
    byte = lane_block * LANES + tl.arange(0, LANES)[None, :]
    at = row_bytes + (row[:, None] + HEAD) * 4 + byte
    tl.store(at, packed.to(tl.int8), mask=(number[:, None] < num_chunks) & (byte // 4 < num_words))
    if HAS_RESIDUAL:
        left = values - restored(codes, first, second, parameter, KIND, BITS)
        tl.store(residual + address, tl.where(address < num_elements, left, 0.0), mask=use)
