"""PowerSGD: every gradient matrix as a product of two thin ones, by one step of power iteration.

A tensor is a matrix M of its first axis x the rest, [n, m]; with approximation size r it is sent as P [n, r]
and Q [m, r] if (n + m) r * minimum_compression < n m, and as it is else. r is at most n and m.
1. M = gradient + residual;
2. P = M Q, with the Q of the last step (warm start) or a random one; summed over the ranks;
3. P is made orthonormal (Gram-Schmidt);
4. Q = M^T P; averaged over the ranks;
5. decoded = P Q^T, the mean of all ranks' M projected on P;
6. new residual = M - decoded; what is sent as it is leaves none.

P Q^T is linear in M, so encodings are summed on the wire. Matrices of one shape are multiplied in one batch
(`ThinMatrices`), so launches go by the number of shapes.

Steps, bytes per rank: two all-reduces, of the P and what is sent as it is, and of the Q
(`scaling.aggregators.sixteen_bit`). Wire size: 4 r (n + m) bytes a matrix, 4 bytes a value sent as it is.
Error property: n mean + the sum of new residuals = the sum of M.

Reference: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019; PyTorch, ddp_comm_hooks/powerSGD_hook.py (the start, the rule what is
compressed, orthogonalisation). Where we differ from PyTorch: compression begins with the first step; what is
sent as it is travels with the P, not by itself; it leaves no residual, where PyTorch's hook keeps each rank's
distance to the mean, which sums to zero; Gram-Schmidt at every r, PyTorch takes QR from 3 on; a column of
zeros stays zero.

Views of the matrices are made once, so a step makes few launches and copies no gradient. Matrices of one
shape whose tensors follow one another at equal distances in the flat bucket, as those of equal layers do, are
one strided batch where they are. The thin matrices of all shapes are made orthonormal together, in a batch
that is filled up with zeros to the longest: a few launches for any number of shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from scaling.bucket import BucketLayout, Span, joined
from scaling.codecs.base import WORD_BYTES, Codec
from scaling.errors import StudyError

_SEED_RANGE = 1_000_000_000  # PyTorch's hook draws its seeds below that
_SMALLEST_NORM = 1e-30


@dataclass(frozen=True)
class MatrixGroup:
    tensors: tuple[int, ...]
    rows: int
    columns: int
    rank: int

    @property
    def num_elements(self) -> int:
        return len(self.tensors) * self.rows * self.columns

    @property
    def p_elements(self) -> int:
        return len(self.tensors) * self.rows * self.rank


@dataclass(frozen=True)
class PowerSgdCodec(Codec):
    """Which tensors are compressed, and how far. `minimum_compression`: a matrix is compressed where that
    leaves it more than so many times smaller."""

    name: ClassVar[str] = "power_sgd"
    summable: ClassVar[bool] = True

    approximation_size: int
    minimum_compression: float

    def __post_init__(self) -> None:
        if self.approximation_size < 1:
            raise StudyError(
                f"codec 'power_sgd': approximation_size: allowed is 1 or more, got {self.approximation_size}"
            )

    def groups(self, shapes: Sequence[tuple[int, ...]]) -> list[MatrixGroup]:
        """The matrices that are compressed, by shape, in the order of the first of each."""
        by_shape: dict[tuple[int, int, int], list[int]] = {}
        for number, shape in enumerate(shapes):
            rows = shape[0] if shape else 1
            columns = math.prod(shape[1:])
            rank = min(rows, columns, self.approximation_size)
            if (rows + columns) * rank * self.minimum_compression < rows * columns:
                by_shape.setdefault((rows, columns, rank), []).append(number)
        return [MatrixGroup(tuple(tensors), *shape) for shape, tensors in by_shape.items()]

    def bucket_bytes(self, layout: BucketLayout) -> int:
        return sum(self.message_bytes(layout))

    def message_bytes(self, layout: BucketLayout) -> tuple[int, int]:
        """Bytes of the two messages: all P and what is sent as it is; all Q."""
        groups = self.groups(layout.shapes)
        whole = layout.num_elements - sum(group.num_elements for group in groups)
        first = sum(group.p_elements for group in groups) + whole
        second = sum(len(group.tensors) * group.columns * group.rank for group in groups)
        return WORD_BYTES * first, WORD_BYTES * second


def starting_q(groups: Sequence[MatrixGroup], seed: int) -> Tensor:
    """All Q of the first step, one behind the other, not yet orthonormal: PyTorch's for `random_seed`."""
    generator = torch.Generator().manual_seed(np.random.RandomState(seed).randint(_SEED_RANGE))
    shapes = [(len(group.tensors), group.columns, group.rank) for group in groups]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return torch.cat([tensor.flatten() for tensor in drawn]) if drawn else torch.empty(0)


def orthonormalise_(matrices: Tensor) -> None:
    """Makes the columns of [batch, n, r] orthonormal, in place, one after the other."""
    for index in range(matrices.shape[2]):
        column = matrices[:, :, index : index + 1]
        # A column of zeros stays zero; NaN stays NaN.
        column.div_(torch.linalg.vector_norm(column, dim=1, keepdim=True).clamp(min=_SMALLEST_NORM))
        rest = matrices[:, :, index + 1 :]
        if rest.shape[2]:
            rest.sub_((column * rest).sum(1, keepdim=True) * column)


def strided_batches(layout: BucketLayout, group: MatrixGroup) -> Iterator[tuple[int, int, int, int]]:
    """The matrices of one shape as few batches, in their order. Of each batch: its first matrix, counted in
    the group; their number; the first element in the bucket; elements from one matrix to the next."""
    offsets = [layout.offsets[number] for number in group.tensors]
    first = 0
    while first < len(offsets):
        end = first + 1
        distance = offsets[end] - offsets[first] if end < len(offsets) else group.rows * group.columns
        while end < len(offsets) and offsets[end] - offsets[end - 1] == distance:
            end += 1
        yield first, end - first, offsets[first], distance
        first = end


def matrix_views(flat: Tensor, layout: BucketLayout, groups: Sequence[MatrixGroup]) -> list[Tensor]:
    """[batch, n, m] views into a bucket's values, in the order of `strided_batches` of each group."""
    return [
        flat.as_strided((count, group.rows, group.columns), (distance, group.columns, 1), start)
        for group in groups
        for _, count, start, distance in strided_batches(layout, group)
    ]


def batches_of(thin: Sequence[Tensor], layout: BucketLayout, groups: Sequence[MatrixGroup]) -> list[Tensor]:
    """Those of a [matrices, length, r] tensor a group that belong to each of `matrix_views`."""
    return [
        tensor[first : first + count]
        for tensor, group in zip(thin, groups, strict=True)
        for first, count, _, _ in strided_batches(layout, group)
    ]


def spans_sent_whole(layout: BucketLayout, groups: Sequence[MatrixGroup]) -> list[Span]:
    """The elements that are sent as they are, ascending; neighbours are one span."""
    compressed = {number for group in groups for number in group.tensors}
    return joined(span for number, span in enumerate(layout.spans) if number not in compressed)


class ThinMatrices:
    """All P, or all Q, of a bucket: as they are sent, and made orthonormal. `message`: float32, all matrices
    one behind the other, those of a group together; `lengths`: [groups] rows of each of its matrices. `sent`:
    [matrices, length, r] a group, views into `message`. `orthonormal`: likewise, what `orthonormalise` makes
    of them; the same memory with a single group."""

    def __init__(self, message: Tensor, lengths: Sequence[int], groups: Sequence[MatrixGroup]) -> None:
        pairs = zip(groups, lengths, strict=True)
        shapes = [(len(group.tensors), length, group.rank) for group, length in pairs]
        sizes = [math.prod(shape) for shape in shapes]
        parts = zip(torch.split(message[: sum(sizes)], sizes), shapes, strict=True) if sizes else ()
        self.sent = [part.view(shape) for part, shape in parts]
        self.orthonormal, self._batches = self.sent, self.sent
        self._from: list[Tensor] = []
        self._to: list[Tensor] = []
        if len({group.rank for group in groups}) == 1 and len(groups) > 1:
            self._share_a_batch(message, lengths)

    def _share_a_batch(self, message: Tensor, lengths: Sequence[int]) -> None:
        counts = [len(factor) for factor in self.sent]
        batch = message.new_zeros(sum(counts), max(lengths), self.sent[0].shape[2])
        of_groups = zip(torch.split(batch, counts), lengths, strict=True)
        self._batches, self.orthonormal = [batch], [part[:, :length] for part, length in of_groups]
        for factor, part in zip(self.sent, self.orthonormal, strict=True):
            self._from += factor.unbind()
            self._to += part.unbind()

    def orthonormalise(self) -> None:
        if self._to:
            torch._foreach_copy_(self._to, self._from)
        for batch in self._batches:
            orthonormalise_(batch)
