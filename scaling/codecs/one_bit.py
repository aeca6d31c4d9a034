"""1-bit quantisation of a gradient matrix, column by column, as CNTK's 1-bit SGD does it.

Each column of the matrix keeps two values, one for either bit, chosen so that they reproduce the mean of the
elements they stand for; what is lost goes into a residual, which the caller adds to the next gradient.

Per column of v = gradient + residual, with R rows:
1. threshold "zero": m0 = mean of the negative elements, m1 = mean of the others (0 where a class is empty);
   bit = v >= 0.
   threshold "mean": mu = mean(v), d = mean |v - mu|; m0 = mu - d, m1 = mu + d; bit = v >= mu.
2. On the wire go the limits lower = (m0 + m1)/2 - (m1 - m0) and upper = (m0 + m1)/2 + (m1 - m0), two floats,
   and the bits in W = ceil(R / 32) words; word w holds the rows w, w + W, w + 2W, ...
3. Decoding gives lower + (bit + 1/2)(upper - lower)/2, that is m0 or m1; both are `lower` if the limits
   coincide.
4. New residual = v - decoded.

Wire size: 8 + 4 ceil(R / 32) bytes a column, so the ratio to 32-bit gradients is the sum of 4 R over the
columns, divided by that of 8 + 4 ceil(R / 32): up to 32 for long columns, 1 for columns of three. Error
property: decoded + new residual = v, element by element.

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


def wire_words(rows: int, columns: int) -> int:
    """32-bit words that an encoded matrix takes: 2 + ceil(rows / 32) a column."""
    return columns * (2 + math.ceil(rows / BITS_PER_WORD))


def encode(values: Tensor, threshold: Threshold) -> Encoded:
    """Quantises `values` [rows, columns], float32."""
    if threshold == "zero":
        bits = values >= 0
        num_ones = bits.sum(0)
        ones = torch.where(bits, values, 0).sum(0)
        zeros = torch.where(bits, 0, values).sum(0)
        m1 = ones / num_ones.clamp(min=1)
        m0 = zeros / (values.shape[0] - num_ones).clamp(min=1)
    else:
        mu = values.mean(0)
        deviation = (values - mu).abs_().mean(0)
        m0, m1 = mu - deviation, mu + deviation
        bits = values >= mu
    middle, half = (m0 + m1) / 2, m1 - m0
    return Encoded(middle - half, middle + half, pack(bits))


def decode(encoded: Encoded, rows: int) -> Tensor:
    """The matrix [rows, columns], float32, that `encoded` stands for."""
    extent = encoded.upper - encoded.lower
    quarter = torch.where(extent < _SMALLEST_RANGE, 0, extent / 4)
    bits = unpack(encoded.words, rows)
    return torch.where(bits, encoded.lower + 3 * quarter, encoded.lower + quarter)


def pack(bits: Tensor) -> Tensor:
    """Booleans [rows, columns] -> int32 [ceil(rows / 32), columns]; bit k of word w is row k W + w."""
    rows, columns = bits.shape
    num_words = math.ceil(rows / BITS_PER_WORD)
    padded = torch.zeros(BITS_PER_WORD * num_words, columns, dtype=torch.int32, device=bits.device)
    padded[:rows] = bits
    shifted = padded.view(BITS_PER_WORD, num_words, columns) << _bit_numbers(bits.device)
    return shifted.sum(0, dtype=torch.int32)  # distinct bits: the sum is their union


def unpack(words: Tensor, rows: int) -> Tensor:
    """The booleans [rows, columns] that `pack` took."""
    bits = (words >> _bit_numbers(words.device)) & 1
    return bits.view(BITS_PER_WORD * words.shape[0], words.shape[1])[:rows].bool()


def _bit_numbers(device: torch.device) -> Tensor:
    return torch.arange(BITS_PER_WORD, dtype=torch.int32, device=device).view(-1, 1, 1)
