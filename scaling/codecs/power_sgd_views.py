"""Where PowerSGD's matrices are stored: views made once, so a step makes few launches and copies no gradient.

Matrices of one shape whose tensors follow one another at equal distances in the flat bucket, as those of
equal layers do, are one strided batch where they are. The thin matrices of all shapes are made orthonormal
together, in a batch that is filled up with zeros to the longest: a few launches for any number of shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.codecs.power_sgd import MatrixGroup, orthonormalise_


def strided_batches(layout: BucketLayout, group: MatrixGroup) -> Iterator[tuple[int, int, int, int]]:
    """The matrices of one shape as few batches, in their order.

    Returns:
        Of each batch: its first matrix, counted in the group; their number; the first element in the bucket;
        elements from one matrix to the next.
    """
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
    """[batch, n, m] views into a bucket's values, in the order of `strided_batches` of each group.

    Args:
        flat: [num_elements], at the beginning of its memory.
    """
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


def spans_sent_whole(layout: BucketLayout, groups: Sequence[MatrixGroup]) -> list[tuple[int, int]]:
    """[start, stop) of the elements that are sent as they are, ascending; neighbours are one span."""
    compressed = {number for group in groups for number in group.tensors}
    ends = [*layout.offsets[1:], layout.num_elements]
    spans: list[tuple[int, int]] = []
    for number, (start, stop) in enumerate(zip(layout.offsets, ends, strict=False)):
        if number in compressed or start == stop:
            continue
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((start, stop))
    return spans


class ThinMatrices:
    """All P, or all Q, of a bucket: as they are sent, and made orthonormal.

    Args:
        message: float32, all matrices one behind the other, those of a group together.
        lengths: [groups] rows of each of its matrices.

    Attributes:
        sent: [matrices, length, r] a group, views into `message`.
        orthonormal: likewise, what `orthonormalise` makes of them; the same memory with a single group.
    """

    def __init__(self, message: Tensor, lengths: Sequence[int], groups: Sequence[MatrixGroup]) -> None:
        self.sent: list[Tensor] = []
        at = 0
        for length, group in zip(lengths, groups, strict=True):
            shape = (len(group.tensors), length, group.rank)
            size = shape[0] * shape[1] * shape[2]
            self.sent.append(message[at : at + size].view(shape))
            at += size
        self.orthonormal, self._batches = self.sent, self.sent
        self._from: list[Tensor] = []
        self._to: list[Tensor] = []
        if len({group.rank for group in groups}) == 1 and len(groups) > 1:
            self._share_a_batch(message, lengths)

    def _share_a_batch(self, message: Tensor, lengths: Sequence[int]) -> None:
        count = sum(factor.shape[0] for factor in self.sent)
        batch = message.new_zeros(count, max(lengths), self.sent[0].shape[2])
        self._batches, self.orthonormal, at = [batch], [], 0
        for factor, length in zip(self.sent, lengths, strict=True):
            part = batch[at : at + factor.shape[0], :length]
            self.orthonormal.append(part)
            self._from += factor.unbind()
            self._to += part.unbind()
            at += factor.shape[0]

    def orthonormalise(self) -> None:
        if self._to:
            torch._foreach_copy_(self._to, self._from)
        for batch in self._batches:
            orthonormalise_(batch)
