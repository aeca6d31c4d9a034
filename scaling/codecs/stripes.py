"""Where a bucket's columns are stored on the wire: one stripe of columns, one message, a rank.

Every gradient matrix is cut into a stripe of columns a rank; a rank's message holds its stripes of all
matrices, one behind the other: of each the lower limits [width], the upper limits [width] and the words
[ceil(rows / elements a word), width], all of 32 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.codecs.one_bit import BITS_PER_WORD, View, matrix_shape


@dataclass(frozen=True)
class Matrix:
    """A gradient matrix in its flat bucket: offset + row row_stride + column column_stride is an element."""

    offset: int
    rows: int
    columns: int
    row_stride: int
    column_stride: int
    num_words: int

    @property
    def num_elements(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class StripeLayout:
    """The stripes of a bucket among `world_size` ranks. `matrices`: one a tensor of the bucket; `bounds`:
    [matrix][owner] first column and end; `segments`: [matrix][owner] where the matrix begins in the owner's
    message, in words; `words`: [owner] of the message."""

    layout: BucketLayout
    view: View
    bits: int
    world_size: int
    matrices: tuple[Matrix, ...]
    bounds: tuple[tuple[tuple[int, int], ...], ...]
    segments: tuple[tuple[int, ...], ...]
    words: tuple[int, ...]

    @classmethod
    def of(cls, layout: BucketLayout, view: View, bits: int, world_size: int) -> StripeLayout:
        matrices = []
        for offset, shape in zip(layout.offsets, layout.shapes, strict=True):
            rows, columns = matrix_shape(shape, view)
            by_columns = view == "cntk" and len(shape) == 4 and rows > 0
            strides = (1, rows) if by_columns else (columns, 1)
            num_words = math.ceil(rows / elements_per_word(bits))
            matrices.append(Matrix(offset, rows, columns, *strides, num_words))
        bounds = tuple(tuple(stripes_of(matrix.columns, world_size)) for matrix in matrices)
        ends = [0] * world_size
        segments = []
        for matrix, stripes in zip(matrices, bounds, strict=True):
            segments.append(tuple(ends))
            for owner, (start, stop) in enumerate(stripes):
                ends[owner] += (stop - start) * (2 + matrix.num_words)
        return cls(layout, view, bits, world_size, tuple(matrices), bounds, tuple(segments), tuple(ends))

    def own(self, rank: int) -> list[Matrix]:
        """The rank's stripes as matrices of their own, one behind the other."""
        at, stripes = 0, []
        for matrix, bounds in zip(self.matrices, self.bounds, strict=True):
            width = bounds[rank][1] - bounds[rank][0]
            stripes.append(Matrix(at, matrix.rows, width, width, 1, matrix.num_words))
            at += matrix.rows * width
        return stripes

    def parts(self, message: Tensor, matrix: int, owner: int) -> tuple[Tensor, Tensor, Tensor]:
        """Views of a matrix in the owner's message: lower and upper [width] float32, words [words, width]."""
        start, stop = self.bounds[matrix][owner]
        width, num_words = stop - start, self.matrices[matrix].num_words
        at = self.segments[matrix][owner]
        limits = message[at : at + 2 * width].view(torch.float32)
        words = message[at + 2 * width : at + (2 + num_words) * width].view(num_words, width)
        return limits[:width], limits[width:], words


def stripes_of(count: int, world_size: int) -> list[tuple[int, int]]:
    """First column or chunk and end of each rank's stripe: count // n, one more for the first ranks."""
    base, extra = divmod(count, world_size)
    bounds = [rank * base + min(rank, extra) for rank in range(world_size + 1)]
    return list(pairwise(bounds))


def elements_per_word(bits: int) -> int:
    return BITS_PER_WORD // bits
