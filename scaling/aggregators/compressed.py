"""1-bit SGD: quantised stripes, summed by their owners, quantised again and sent to all.

Each gradient matrix (see `scaling.codecs.one_bit`) is cut into one stripe of columns a rank; with fewer
columns than ranks, the last ranks own none. A step on every rank:

1. encode: quantise gradient + residual, column by column; what is lost becomes the new residual;
2. communicate: send every other rank its stripe, quantised;
3. decode: sum the n quantised copies of the own stripe in full precision, the own one included as quantised;
4. encode: quantise that sum + the stripe's residual, which only the owner keeps;
5. communicate: send the quantised sum to every other rank;
6. decode: all stripes, the own one too, hence the same bits on every rank; divide by n for the mean.

Steps: 2. Bytes sent per rank: 2(n-1)/n s in 2(n-1) messages, s = sum over columns of 8 + 4 ceil(rows / 32),
where columns divide evenly. At world size 1 nothing is sent and nothing is quantised. Error property: n mean
+ the new residuals of all ranks and stripes = the sum of gradients + the old residuals, up to float rounding.

References: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-bit stochastic gradient descent and its application
to data-parallel distributed training of speech DNNs", Interspeech 2014; CNTK, Source/1BitSGD
(AllReduceDistGradAggregator.h). Differences: CNTK sends a message a matrix and a peer where we pack all
matrices into one; it adds stripes in the order of arrival, we in rank order; it delivers the sum, we the
mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, AggregatorState, PhaseMarker, unmarked
from scaling.bucket import BucketLayout
from scaling.codecs import one_bit
from scaling.codecs.one_bit import Encoded, Threshold, as_matrix
from scaling.process_group import Group, Message


@dataclass
class OneBitState(AggregatorState):
    """Residuals and message buffers of one rank."""

    residual: Tensor  # [num_elements] float32: of the own gradient
    stripe_residual: Tensor  # float32: of the sums of the own stripes, matrix by matrix
    values: Tensor  # [num_elements] float32 scratch
    result: Tensor  # [num_elements]: the mean
    columns: list[list[tuple[int, int]]]  # [matrix][rank] -> first column, end
    outgoing: list[Tensor]  # [rank] int32 words: its stripes of the own gradient; at the own rank the sums'
    incoming: list[Tensor]  # [rank] int32 words: the own stripes from it, later its sums
    persistent = ("residual", "stripe_residual")


def stripe_columns(num_columns: int, world_size: int) -> list[tuple[int, int]]:
    """First column and end of each rank's stripe: num_columns // n, one more for the first ranks."""
    base, extra = divmod(num_columns, world_size)
    bounds = [rank * base + min(rank, extra) for rank in range(world_size + 1)]
    return list(pairwise(bounds))


@final
@dataclass(frozen=True)
class OneBit(Aggregator[OneBitState]):
    """CNTK's 1-bit SGD: two values and one bit an element a column, error feedback on both quantisations.

    Attributes:
        threshold: what a bit says: "zero", the sign of the element; "mean", which side of the column's mean.
    """

    name = "one_bit"
    lossy = True

    threshold: Threshold = "zero"

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> OneBitState:
        """Residuals of zero and buffers for the stripes."""
        shapes = [one_bit.matrix_shape(shape) for shape in layout.shapes]
        columns = [stripe_columns(cols, group.world_size) for _, cols in shapes]

        def num_words(owner: int) -> int:
            widths = [stripes[owner][1] - stripes[owner][0] for stripes in columns]
            return sum(one_bit.wire_words(rows, w) for (rows, _), w in zip(shapes, widths, strict=True))

        own = sum(
            rows * (stripes[group.rank][1] - stripes[group.rank][0])
            for (rows, _), stripes in zip(shapes, columns, strict=True)
        )
        n, ranks = layout.num_elements, range(group.world_size)
        real = torch.float32
        # A received message is first this rank's stripe from a peer, then the peer's own sum: take the
        # larger.
        words = [num_words(owner) for owner in ranks]
        return OneBitState(
            group,
            layout,
            residual=torch.zeros(n, dtype=real, device=device),
            stripe_residual=torch.zeros(own, dtype=real, device=device),
            values=torch.empty(n, dtype=real, device=device),
            result=torch.empty(n, dtype=dtype, device=device),
            columns=columns,
            outgoing=[torch.empty(words[r], dtype=torch.int32, device=device) for r in ranks],
            incoming=[
                torch.empty(max(words[r], words[group.rank]), dtype=torch.int32, device=device) for r in ranks
            ],
        )

    def aggregate(self, state: OneBitState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """Returns the mean of the twice quantised gradients, in the gradient's type."""
        group = state.group
        if group.world_size == 1:
            return gradient
        peers = [rank for rank in range(group.world_size) if rank != group.rank]
        own_words = state.outgoing[group.rank].numel()
        with phase("encode"):
            own = self._encode_gradient(state, gradient)
        with phase("communicate"):
            group.exchange(
                [Message(peer, state.outgoing[peer]) for peer in peers],
                [Message(peer, state.incoming[peer][:own_words]) for peer in peers],
            )
        with phase("decode"):
            sums = self._sum_stripes(state, own)
        with phase("encode"):
            self._encode_sums(state, sums)
        with phase("communicate"):
            group.exchange(
                [Message(peer, state.outgoing[group.rank]) for peer in peers],
                [Message(peer, state.incoming[peer][: state.outgoing[peer].numel()]) for peer in peers],
            )
        with phase("decode"):
            self._decode_result(state)
        return state.result

    def _encode_gradient(self, state: OneBitState, gradient: Tensor) -> list[Tensor]:
        """Fills `outgoing` for the peers; returns the own stripes, decoded, matrix by matrix."""
        torch.add(state.residual, gradient, out=state.values)
        layout, rank = state.layout, state.group.rank
        own, written = [], [0] * state.group.world_size
        matrices = zip(layout.views(state.values), layout.views(state.residual), state.columns, strict=True)
        for values, residual, stripes in matrices:
            matrix = as_matrix(values)
            encoded = one_bit.encode(matrix, self.threshold)
            decoded = one_bit.decode(encoded, matrix.shape[0])
            torch.sub(matrix, decoded, out=as_matrix(residual))
            own.append(decoded[:, slice(*stripes[rank])])
            for peer, (start, stop) in enumerate(stripes):
                if peer != rank:
                    written[peer] = _write(encoded, start, stop, state.outgoing[peer], written[peer])
        return own

    def _sum_stripes(self, state: OneBitState, own: list[Tensor]) -> list[Tensor]:
        """The own stripes summed over the ranks, in rank order."""
        sums = [torch.zeros_like(stripe) for stripe in own]
        for rank in range(state.group.world_size):
            if rank == state.group.rank:
                stripes: Iterator[Tensor] = iter(own)
            else:
                stripes = _read(state, state.incoming[rank], owner=state.group.rank)
            for total, stripe in zip(sums, stripes, strict=True):
                total.add_(stripe)
        return sums

    def _encode_sums(self, state: OneBitState, sums: list[Tensor]) -> None:
        """Fills the own rank's `outgoing` with the quantised sums."""
        rank, used, written = state.group.rank, 0, 0
        for total in sums:
            residual = state.stripe_residual[used : used + total.numel()].view(total.shape)
            used += total.numel()
            total.add_(residual)
            encoded = one_bit.encode(total, self.threshold)
            torch.sub(total, one_bit.decode(encoded, total.shape[0]), out=residual)
            written = _write(encoded, 0, total.shape[1], state.outgoing[rank], written)

    def _decode_result(self, state: OneBitState) -> None:
        """All ranks' sums, decoded and divided, into `result`."""
        targets = [as_matrix(view) for view in state.layout.views(state.result)]
        for owner in range(state.group.world_size):
            received = state.outgoing if owner == state.group.rank else state.incoming
            for target, stripes, stripe in zip(
                targets, state.columns, _read(state, received[owner], owner), strict=True
            ):
                target[:, slice(*stripes[owner])] = stripe
        state.result.div_(state.group.world_size)


def _write(encoded: Encoded, start: int, stop: int, words: Tensor, at: int) -> int:
    """Writes columns `start` to `stop` - 1 into a message from word `at` on; returns the word behind them."""
    limits = (encoded.lower[start:stop].view(torch.int32), encoded.upper[start:stop].view(torch.int32))
    for part in (*limits, encoded.words[:, start:stop]):
        words[at : at + part.numel()].view(part.shape).copy_(part)
        at += part.numel()
    return at


def _read(state: OneBitState, words: Tensor, owner: int) -> Iterator[Tensor]:
    """Decodes a message with the owner's stripes, matrix by matrix."""
    at = 0
    for shape, stripes in zip(state.layout.shapes, state.columns, strict=True):
        rows, width = one_bit.matrix_shape(shape)[0], stripes[owner][1] - stripes[owner][0]
        lower, upper = words[at : at + 2 * width].view(torch.float32).view(2, width)
        at += 2 * width
        num_words = math.ceil(rows / one_bit.BITS_PER_WORD)
        bits = words[at : at + num_words * width].view(num_words, width)
        at += num_words * width
        yield one_bit.decode(Encoded(lower, upper, bits), rows)
