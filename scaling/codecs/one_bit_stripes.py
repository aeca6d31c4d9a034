"""A bucket's quantised stripes on one rank: encoded, summed and encoded again, decoded.

`StripeBuffers` holds what is kept and what is sent; a `StripeCodec` works on it. `TorchStripes` is plain
torch, runs everywhere and is the reference; `scaling.codecs.kernels` has the one for CUDA devices.

`PlaneStripes` quantises on processors plane by plane, so that each plane stays in the cache. A column's word
w holds the rows w, w + W, w + 2 W, ...: bit k of all words is a plane, W neighbouring rows. All that is done
with a row is done with a plane at once, by torch's vectorised operations, and what is written between them is
not larger than a plane, 1/32 of the matrix. The result is that of `one_bit.encode`, with sums over columns in
another order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor

from scaling.codecs import one_bit
from scaling.codecs.one_bit import Encoded, Threshold, as_matrix, levels
from scaling.codecs.stripes import StripeLayout

ALIGNED_WORDS = 32  # Messages begin at multiples of 128 bytes, as device memory is best read


class StripeBuffers:
    """Residuals and messages of one rank, which are parts of `wire`. `outgoing`: [owner] its stripes of the
    own gradient; at the own rank nothing, see `incoming`: [rank] the own stripes of that rank's gradient, the
    own gradient's among them. `gathered`: [owner] its stripes' sums. `row_words`, `gathered_words`: between
    two of `incoming`, and of `gathered`. `marks`: [tensors] bool, True where decoded limits were not finite,
    in the first step in which any were."""

    def __init__(
        self, stripes: StripeLayout, rank: int, device: torch.device, marks: Tensor | None = None
    ) -> None:
        self.stripes, self.rank = stripes, rank
        num_elements = sum(matrix.num_elements for matrix in stripes.own(rank))
        num_matrices, n, words = len(stripes.matrices), stripes.world_size, stripes.words
        self.residual = torch.zeros(stripes.layout.num_elements, device=device)  # of the own gradient
        # Of the sums of the own stripes, matrix by matrix [rows, width].
        self.stripe_residual = torch.zeros(num_elements, device=device)
        self.row_words, self.gathered_words = _aligned(words[rank]), _aligned(max(words))
        sent = [0 if owner == rank else size for owner, size in enumerate(words)]
        rooms = [*map(_aligned, sent), *[self.row_words] * n, *[self.gathered_words] * n]
        self.wire = torch.zeros(sum(rooms), dtype=torch.int32, device=device)
        starts, sizes = accumulate(rooms, initial=0), (*sent, *[words[rank]] * n, *words)
        messages = [self.wire[at : at + size] for at, size in zip(starts, sizes, strict=False)]
        self.outgoing, self.incoming, self.gathered = messages[:n], messages[n : 2 * n], messages[2 * n :]
        if marks is None:
            marks = torch.zeros(num_matrices, dtype=torch.bool, device=device)
        self.marks = marks[:num_matrices]

    def own_stripes(self, flat: Tensor) -> list[Tensor]:
        """`flat`, in the layout of `stripe_residual`, as matrices [rows, width]."""
        return [
            flat[matrix.offset : matrix.offset + matrix.num_elements].view(matrix.rows, matrix.columns)
            for matrix in self.stripes.own(self.rank)
        ]


class StripeCodec(ABC):
    """Encodes and decodes one rank's stripes in its buffers, in the order of the current stream."""

    note: str

    def __init__(self, buffers: StripeBuffers, threshold: Threshold) -> None:
        self.buffers, self.threshold = buffers, threshold

    @abstractmethod
    def encode(self, gradient: Tensor) -> None:
        """Gradient [num_elements] + residual into `outgoing` and the own row of `incoming`; new residual."""

    @abstractmethod
    def encode_sums(self) -> None:
        """The sum of `incoming` in rank order + stripe residual into the own part of `gathered`; likewise."""

    @abstractmethod
    def decode(self, result: Tensor) -> None:
        """All of `gathered`, divided by the number of ranks, into `result` [num_elements]."""


class TorchStripes(StripeCodec):
    """Plain torch, matrix by matrix: the reference."""

    note = "one_bit in plain torch operations"

    def encode(self, gradient: Tensor) -> None:
        buffers, stripes = self.buffers, self.buffers.stripes
        pairs = zip(stripes.layout.views(gradient), stripes.layout.views(buffers.residual), strict=True)
        for number, pair in enumerate(pairs):
            if pair[0].numel():
                matrix, residual = (as_matrix(values, stripes.view) for values in pair)
                encoded = self._encode(residual, matrix)
                for owner, (start, stop) in enumerate(stripes.bounds[number]):
                    message = buffers.incoming[owner] if owner == buffers.rank else buffers.outgoing[owner]
                    if start < stop:
                        self._write(message, number, owner, encoded, start, stop)

    def encode_sums(self) -> None:
        buffers = self.buffers
        for number, left in enumerate(buffers.own_stripes(buffers.stripe_residual)):
            if left.numel():
                self._encode_sum(left, number)

    def _encode_sum(self, left: Tensor, number: int) -> None:
        buffers, rank = self.buffers, self.buffers.rank
        total = self._read(buffers.incoming[0], number, rank)
        for message in buffers.incoming[1:]:
            total.add_(self._read(message, number, rank))
        self._write(buffers.gathered[rank], number, rank, self._encode(left, total), 0, left.shape[1])

    def decode(self, result: Tensor) -> None:
        buffers, stripes = self.buffers, self.buffers.stripes
        bad = []
        for number, values in enumerate(stripes.layout.views(result)):
            target = as_matrix(values, stripes.view)
            for owner, (start, stop) in enumerate(stripes.bounds[number]):
                if start < stop and len(target):  # a vector is one column, which one rank has
                    self._decode_stripe(target[:, start:stop], number, owner)
            bad.append(target.isfinite().all().logical_not())
        if bad:
            buffers.marks.logical_or_(torch.stack(bad) & buffers.marks.any().logical_not())

    def _decode_stripe(self, target: Tensor, number: int, owner: int) -> None:
        mean = self._read(self.buffers.gathered[owner], number, owner)
        target.copy_(mean.div_(self.buffers.stripes.world_size))

    def _encode(self, left: Tensor, added: Tensor) -> Encoded:
        left.add_(added)
        bits = self.buffers.stripes.bits
        encoded = one_bit.encode(left, self.threshold, bits)
        left.sub_(one_bit.decode(encoded, left.shape[0], bits))
        return encoded

    def _write(
        self, message: Tensor, number: int, owner: int, encoded: Encoded, start: int, stop: int
    ) -> None:
        """Columns `start` to `stop` - 1 into the owner's message."""
        parts = self.buffers.stripes.parts(message, number, owner)
        for target, source in zip(parts, encoded, strict=True):
            target.copy_(source[..., start:stop])

    def _read(self, message: Tensor, number: int, owner: int) -> Tensor:
        stripes = self.buffers.stripes
        encoded = Encoded(*stripes.parts(message, number, owner))
        return one_bit.decode(encoded, stripes.matrices[number].rows, stripes.bits)


def _aligned(words: int) -> int:
    return math.ceil(words / ALIGNED_WORDS) * ALIGNED_WORDS


MIN_ELEMENTS = 1 << 14  # Below, a matrix is in the cache anyway, and the number of operations counts

Plane = Callable[[int, slice], Tensor]  # (number, its rows) -> what is to be added to that plane


class PlaneStripes(TorchStripes):
    """Stripes by planes where there is one bit an element and the matrix is large."""

    note = "one_bit in torch operations, by planes"

    def _encode(self, left: Tensor, added: Tensor) -> Encoded:
        if self._by_planes(left):
            return self._encode_planes(left, lambda _, rows: added[rows])
        return super()._encode(left, added)

    def _encode_sum(self, left: Tensor, number: int) -> None:
        if not self._by_planes(left):
            return super()._encode_sum(left, number)
        buffers, rank = self.buffers, self.buffers.rank
        first, *others = (
            _Received(*buffers.stripes.parts(message, number, rank)) for message in buffers.incoming
        )

        def total(plane: int, rows: slice) -> Tensor:
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
        planes = _planes(num_rows, num_words)
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
