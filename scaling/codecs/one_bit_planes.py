"""The 1-bit quantiser for processors: plane by plane, so that each plane stays in the cache.

A column's word w holds the rows w, w + W, w + 2 W, ...: bit k of all words is a plane, W neighbouring rows.
All that is done with a row is done with a plane at once, by torch's vectorised operations, and what is
written between them is not larger than a plane, 1/32 of the matrix. The result is that of `one_bit.encode`,
with sums over columns in another order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scaling.codecs.one_bit import Encoded, levels
from scaling.codecs.one_bit_stripes import TorchStripes

MIN_ELEMENTS = 1 << 14
"""Below, a matrix is in the cache anyway, and the number of operations counts."""

Plane = Callable[[int, slice], Tensor]
"""(number, its rows) -> what is to be added to that plane."""


class PlaneStripes(TorchStripes):
    """Stripes by planes where there is one bit an element and the matrix is large."""

    note = "one_bit in torch operations, by planes"

    def _encode_matrix(self, residual: Tensor, matrix: Tensor) -> Encoded:
        if self._by_planes(residual):
            return self._encode_planes(residual, lambda _, rows: matrix[rows])
        return super()._encode_matrix(residual, matrix)

    def encode_sums(self) -> None:
        buffers, rank = self.buffers, self.buffers.rank
        for number, left in enumerate(buffers.own_stripes(buffers.stripe_residual)):
            if not left.numel():
                continue
            if not self._by_planes(left):
                self._encode_sum(left, number)
                continue
            received = [
                _Received(*buffers.stripes.parts(message, number, rank)) for message in buffers.incoming
            ]
            first, *others = received

            def total(
                plane: int, rows: slice, first: _Received = first, others: list[_Received] = others
            ) -> Tensor:
                value = first.plane(plane, rows)
                for other in others:
                    value.add_(other.plane(plane, rows))
                return value

            encoded = self._encode_planes(left, total)
            self._write(buffers.gathered[rank], number, rank, encoded, 0, left.shape[1])

    def _decode_stripe(self, target: Tensor, number: int, owner: int) -> None:
        if not self._by_planes(target):
            super()._decode_stripe(target, number, owner)
            return
        stripes = self.buffers.stripes
        parts = stripes.parts(self.buffers.gathered[owner], number, owner)
        received = _Received(*parts, divisor=stripes.world_size)
        for plane, rows in _planes(target.shape[0], parts[2].shape[0]):
            target[rows] = received.plane(plane, rows)

    def _by_planes(self, matrix: Tensor) -> bool:
        return self.buffers.stripes.bits == 1 and matrix.numel() >= MIN_ELEMENTS

    def _encode_planes(self, left: Tensor, added: Plane) -> Encoded:
        num_rows, num_columns = left.shape
        num_words = -(-num_rows // 32)
        planes = list(_planes(num_rows, num_words))
        if self.threshold == "zero":
            m0, m1 = _class_means(left, added, planes, num_words)
            limit = torch.zeros(())
        else:
            limit, deviation = _mean_and_deviation(left, added, planes, num_words)
            m0, m1 = limit - deviation, limit + deviation
        middle, half = (m0 + m1) / 2, m1 - m0
        lower, upper = middle - half, middle + half
        words = torch.zeros(num_words, num_columns, dtype=torch.int32)
        encoded = Encoded(lower, upper, words)
        decoded = _Received(*encoded)
        for plane, rows in planes:
            values = left[rows]
            words[: values.shape[0]].add_(values >= limit, alpha=(1 << plane if plane < 31 else -(1 << 31)))
            values.sub_(decoded.plane(plane, rows))
        return encoded


class _Received:
    """An encoded stripe whose planes are decoded one by one, and divided by `divisor`."""

    def __init__(self, lower: Tensor, upper: Tensor, words: Tensor, divisor: int = 1) -> None:
        low, high = (level.div(divisor).view(torch.int32) for level in levels(lower, upper))
        self._low, self._changed = low, low ^ high
        self._words = words

    def plane(self, number: int, rows: slice) -> Tensor:
        words = self._words[: rows.stop - rows.start]
        # As integers, which torch does several times faster than a choice by booleans: all ones where the bit
        # is one, and with these the bits in which the two levels differ.
        chosen = (words << (31 - number)).bitwise_right_shift_(31)
        return chosen.bitwise_and_(self._changed).bitwise_xor_(self._low).view(torch.float32)


def _planes(num_rows: int, num_words: int) -> list[tuple[int, slice]]:
    """Number and rows of each plane; the last may be shorter, and some empty."""
    return [
        (plane, slice(plane * num_words, min((plane + 1) * num_words, num_rows)))
        for plane in range(32)
        if plane * num_words < num_rows
    ]


def _class_means(
    left: Tensor, added: Plane, planes: list[tuple[int, slice]], num_words: int
) -> tuple[Tensor, Tensor]:
    """Adds, and gives the means of the negative elements and of the others of each column."""
    zeros = torch.zeros(num_words, left.shape[1])
    ones, num_ones = torch.zeros_like(zeros), torch.zeros_like(zeros, dtype=torch.int32)
    for plane, rows in planes:
        values = left[rows].add_(added(plane, rows))
        count = values.shape[0]
        ones[:count].add_(values.clamp(min=0))
        zeros[:count].add_(values.clamp(max=0))
        num_ones[:count].add_(values >= 0)
    in_ones = num_ones.sum(0)
    return zeros.sum(0) / (left.shape[0] - in_ones).clamp(min=1), ones.sum(0) / in_ones.clamp(min=1)


def _mean_and_deviation(
    left: Tensor, added: Plane, planes: list[tuple[int, slice]], num_words: int
) -> tuple[Tensor, Tensor]:
    """Adds, and gives the mean of each column and the mean absolute deviation from it."""
    total = torch.zeros(num_words, left.shape[1])
    for plane, rows in planes:
        values = left[rows].add_(added(plane, rows))
        total[: values.shape[0]].add_(values)
    mean = total.sum(0) / left.shape[0]
    total.zero_()
    for _, rows in planes:
        values = left[rows]
        total[: values.shape[0]].add_((values - mean).abs_())
    return mean, total.sum(0) / left.shape[0]
