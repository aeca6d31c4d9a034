"""1-bit quantisation of a gradient matrix, column by column, as CNTK's 1-bit SGD does it.

Each column of the matrix keeps two values, one for either bit, chosen so that they reproduce the mean of the
elements they stand for; what is lost goes into a residual, which the caller adds to the next gradient.

Per column of v = gradient + residual, with R rows:
1. threshold "zero": m0 = mean of the negative elements, m1 = mean of the others (0 where a class is empty);
   bit = v >= 0. threshold "mean": mu = mean(v), d = mean |v - mu|; m0 = mu - d, m1 = mu + d; bit = v >= mu.
2. On the wire go the limits lower = (m0 + m1)/2 - (m1 - m0) and upper = (m0 + m1)/2 + (m1 - m0), two floats,
   and the bits in W = ceil(R / 32) words; word w holds the rows w, w + W, w + 2W, ...
3. Decoding gives lower + (bit + 1/2)(upper - lower)/2, that is m0 or m1; both are `lower` if the limits
   coincide.
4. New residual = v - decoded.

With k > 1 bits an element (2, 4, 8 or 16) the range is that of four standard deviations about zero:
1. s = sqrt(mean(v^2)); lower = -4 s, upper = 4 s, in 2^k - 1 levels, so that nought is the middle of one.
2. A word holds 32 / k elements, W = ceil(R k / 32); element e of word w, bits e k and on, is row e W + w.
3. code = v's level, the first or last where v is outside; decoding gives the middle of the level.
Values beyond 1e19, whose squares overflow, have infinite limits, and a run stops as at a NaN.

Wire size: 8 + 4 ceil(k R / 32) bytes a column; with one bit the ratio to 32-bit gradients is the sum of 4 R
over the columns, divided by that of 8 + 4 ceil(R / 32): up to 32 for long columns, 1 for columns of three.
Error property: decoded + new residual = v, element by element.

What a column is depends on the view:
- "torch": a matrix has the tensor's first axis as rows and all others as columns. So a convolution's column
  holds one value of each output channel, as in CNTK where its network is written in NDL (weights of output
  channels x the rest).
- "cntk": the same, but for tensors of four axes, convolutions: torch's [K, C, H, W] is CNTK's W x H x C x K
  of BrainScript's layers, whose first axis is W: a column is a row of the filter, of 3 or 5 elements.

References: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-bit stochastic gradient descent and its application
to data-parallel distributed training of speech DNNs", Interspeech 2014; CNTK, Source/Math/ColumnQuantizer.h
and ValueQuantizer.h; rows are a tensor's first axis in CNTK, whose first axis varies fastest in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Threshold = Literal["zero", "mean"]
View = Literal["torch", "cntk"]

BITS_PER_WORD = 32
DEVIATIONS = 4.0  # of a column's elements, to either side of nought, that more than one bit can tell apart
_SMALLEST_RANGE = 1e-36  # CNTK's ValueQuantizer: limits closer than this carry no information


class Encoded(NamedTuple):
    """A quantised matrix: `lower` and `upper` [columns] float32, `words` [ceil(rows / 32), columns] int32."""

    lower: Tensor
    upper: Tensor
    words: Tensor


def as_matrix(tensor: Tensor, view: View = "torch") -> Tensor:
    """A view of a contiguous tensor with columns as the module says; a vector or scalar is one column."""
    rows, columns = matrix_shape(tuple(tensor.shape), view)
    if rows and _is_filter(tensor.shape, view):
        return tensor.view(columns, rows).t()
    return tensor.view(rows, columns)


def matrix_shape(shape: tuple[int, ...], view: View = "torch") -> tuple[int, int]:
    """Rows and columns of `as_matrix` for a tensor of that shape."""
    if _is_filter(shape, view):
        return shape[3], math.prod(shape[:3]) if shape[3] else 0
    rows = shape[0] if shape else 1
    return rows, math.prod(shape[1:]) if rows else 0


def _is_filter(shape: Sequence[int], view: View) -> bool:
    return view == "cntk" and len(shape) == 4


def encode(values: Tensor, threshold: Threshold, bits: int = 1) -> Encoded:
    """Quantises `values` [rows, columns], float32; `threshold` is for one bit an element only."""
    if bits > 1:
        return _encode_levels(values, bits)
    if threshold == "zero":
        is_one = values >= 0
        num_ones = is_one.sum(0)
        ones = torch.where(is_one, values, 0).sum(0)
        zeros = torch.where(is_one, 0, values).sum(0)
        m1 = ones / num_ones.clamp(min=1)
        m0 = zeros / (values.shape[0] - num_ones).clamp(min=1)
    else:
        mu = values.mean(0)
        deviation = (values - mu).abs_().mean(0)
        m0, m1 = mu - deviation, mu + deviation
        is_one = values >= mu
    middle, half = (m0 + m1) / 2, m1 - m0
    return Encoded(middle - half, middle + half, pack(is_one))


def _encode_levels(values: Tensor, bits: int) -> Encoded:
    half = DEVIATIONS * (values * values).mean(0).sqrt_()
    level = _level(-half, half, bits)
    factor = torch.where(level > 0, 1 / level, 0)
    codes = values.add(half).mul_(factor).clamp_(0, (1 << bits) - 2)
    return Encoded(-half, half, pack(codes.to(torch.int32), bits))


def _level(lower: Tensor, upper: Tensor, bits: int) -> Tensor:
    extent = upper - lower
    return torch.where(extent < _SMALLEST_RANGE, 0, extent / ((1 << bits) - 1))


def decode(encoded: Encoded, rows: int, bits: int = 1) -> Tensor:
    codes = unpack(encoded.words, rows, bits)
    if bits > 1:
        level = _level(encoded.lower, encoded.upper, bits)
        return encoded.lower + (codes.to(torch.float32) + 0.5) * level
    low, high = levels(encoded.lower, encoded.upper)
    return torch.where(codes, high, low)


def levels(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    extent = upper - lower
    quarter = torch.where(extent < _SMALLEST_RANGE, 0, extent / 4)
    return lower + quarter, lower + 3 * quarter


def pack(codes: Tensor, bits: int = 1) -> Tensor:
    """Codes [rows, columns] -> int32 [ceil(rows bits / 32), columns]; code e of word w is row e W + w."""
    rows, columns = codes.shape
    each = BITS_PER_WORD // bits
    num_words = math.ceil(rows / each)
    padded = torch.zeros(each * num_words, columns, dtype=torch.int32, device=codes.device)
    padded[:rows] = codes
    shifted = padded.view(each, num_words, columns) << _places(codes.device, bits)
    return shifted.sum(0, dtype=torch.int32)  # distinct bits: the sum is their union


def unpack(words: Tensor, rows: int, bits: int = 1) -> Tensor:
    """The codes [rows, columns] that `pack` took: booleans of one bit, int32 of more."""
    codes = (words >> _places(words.device, bits)) & ((1 << bits) - 1)
    codes = codes.view(BITS_PER_WORD // bits * words.shape[0], words.shape[1])[:rows]
    return codes.bool() if bits == 1 else codes


def _places(device: torch.device, bits: int) -> Tensor:
    return torch.arange(0, BITS_PER_WORD, bits, dtype=torch.int32, device=device).view(-1, 1, 1)
