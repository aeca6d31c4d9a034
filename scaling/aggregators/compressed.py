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
from scaling.aggregators.prediction import stripes_and_back
from scaling.bucket import BucketLayout
from scaling.codecs import one_bit
from scaling.codecs.one_bit import Encoded, Threshold, View, as_matrix
from scaling.collectives.plan import Codec, Stage, Update
from scaling.process_group import Group, Message

ENCODE_BYTES_MOVED = 25.0
"""Read and written by torch's operations for each byte that `encode` and the residual take: 3 to add the
residual, 8 for the two means, 5 to pack, 9 to decode and for the new residual. One kernel would move 5."""
DECODE_BYTES_MOVED = 8.5
"""For each byte that is unpacked, decoded and added."""

WORD_BYTES = 4


@dataclass
class OneBitState(AggregatorState):
    """Residuals and message buffers of one rank."""

    view: View
    residual: Tensor  # [num_elements] float32: of the own gradient
    stripe_residual: Tensor  # float32: of the sums of the own stripes, matrix by matrix
    values: Tensor  # [num_elements] float32 scratch
    result: Tensor  # [num_elements]: the mean
    columns: list[list[tuple[int, int]]]  # [matrix][rank] -> first column, end
    outgoing: list[Tensor]  # [rank] int32 words: its stripes of the own gradient; at the own rank the sums'
    incoming: list[Tensor]  # [rank] int32 words: the own stripes from it, later its sums
    persistent = ("residual", "stripe_residual")

    def left_over(self) -> Tensor:
        """The own residual, plus that of the own stripes' sums."""
        total, used = self.residual.clone(), 0
        for values, stripes in zip(self.layout.views(total), self.columns, strict=True):
            own = as_matrix(values, self.view)[:, slice(*stripes[self.group.rank])]
            own.add_(self.stripe_residual[used : used + own.numel()].view(own.shape))
            used += own.numel()
        return total


def stripe_columns(num_columns: int, world_size: int) -> list[tuple[int, int]]:
    """First column and end of each rank's stripe: num_columns // n, one more for the first ranks."""
    base, extra = divmod(num_columns, world_size)
    bounds = [rank * base + min(rank, extra) for rank in range(world_size + 1)]
    return list(pairwise(bounds))


@dataclass(frozen=True)
class StripedOneBit(Aggregator[OneBitState]):
    """Base of aggregators by 1-bit stripes.

    Attributes:
        threshold: what a bit says: "zero", the sign of the element; "mean", which side of the column's mean.
        view: what a column of a convolution's weight is: "torch", one value of each output channel; "cntk", a
            row of the filter (`scaling.codecs.one_bit`).
    """

    lossy = True
    overlaps = True

    threshold: Threshold = "zero"
    view: View = "torch"

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> OneBitState:
        """Residuals of zero and buffers for the stripes."""
        shapes = [one_bit.matrix_shape(shape, self.view) for shape in layout.shapes]
        columns = [stripe_columns(cols, group.world_size) for _, cols in shapes]
        own = sum(
            rows * (stripes[group.rank][1] - stripes[group.rank][0])
            for (rows, _), stripes in zip(shapes, columns, strict=True)
        )
        n, ranks = layout.num_elements, range(group.world_size)
        real = torch.float32
        # A received message is first this rank's stripe from a peer, then the peer's own sum: take the
        # larger.
        words = _stripe_words(shapes, columns, group.world_size)
        return OneBitState(
            group,
            layout,
            view=self.view,
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

    @final
    def aggregate(self, state: OneBitState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """Returns the mean of the twice quantised gradients, in the gradient's type."""
        group = state.group
        if group.world_size == 1:
            return gradient
        peers = [rank for rank in range(group.world_size) if rank != group.rank]
        own_words = state.outgoing[group.rank].numel()
        with phase("encode"):
            own = self._encode_gradient(state, gradient)
        self.exchange(
            state,
            [Message(peer, state.outgoing[peer]) for peer in peers],
            [Message(peer, state.incoming[peer][:own_words]) for peer in peers],
            phase,
        )
        with phase("decode"):
            sums = self._sum_stripes(state, own)
        with phase("encode"):
            self._encode_sums(state, sums)
        self.exchange(
            state,
            [Message(peer, state.outgoing[group.rank]) for peer in peers],
            [Message(peer, state.incoming[peer][: state.outgoing[peer].numel()]) for peer in peers],
            phase,
        )
        with phase("decode"):
            self._decode_result(state)
        return state.result

    def exchange(
        self, state: OneBitState, sends: list[Message], receives: list[Message], phase: PhaseMarker
    ) -> None:
        """Sends and receives one batch of messages, between devices.

        Args:
            state: what `start` gave.
            sends: to each peer its message.
            receives: likewise.
            phase: marks the phases.
        """
        with phase("communicate"):
            state.group.exchange(sends, receives)

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        """The other ranks' stripes, and the own one's sum to each of them, all quantised."""
        shapes = [one_bit.matrix_shape(shape, self.view) for shape in layout.shapes]
        columns = [stripe_columns(cols, world_size) for _, cols in shapes]
        words = _stripe_words(shapes, columns, world_size)
        return WORD_BYTES * (sum(words) + (world_size - 2) * words[rank]) if world_size > 1 else 0

    def _encode_gradient(self, state: OneBitState, gradient: Tensor) -> list[Tensor]:
        """Fills `outgoing` for the peers; returns the own stripes, decoded, matrix by matrix."""
        torch.add(state.residual, gradient, out=state.values)
        layout, rank = state.layout, state.group.rank
        own, written = [], [0] * state.group.world_size
        matrices = zip(layout.views(state.values), layout.views(state.residual), state.columns, strict=True)
        for values, residual, stripes in matrices:
            matrix = as_matrix(values, self.view)
            encoded = one_bit.encode(matrix, self.threshold)
            decoded = one_bit.decode(encoded, matrix.shape[0])
            torch.sub(matrix, decoded, out=as_matrix(residual, self.view))
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
        targets = [as_matrix(values, self.view) for values in state.layout.views(state.result)]
        for owner in range(state.group.world_size):
            received = state.outgoing if owner == state.group.rank else state.incoming
            for target, stripes, stripe in zip(
                targets, state.columns, _read(state, received[owner], owner), strict=True
            ):
                target[:, slice(*stripes[owner])] = stripe
        state.result.div_(state.group.world_size)

    @final
    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        """Encode, stripes to their owners, sum and encode again, sums to all, decode; then the update."""
        n, num_bytes = layout.num_elements, 4.0 * layout.num_elements
        update = Update("replica", n)
        if world_size == 1:
            return [update]
        words = sum(one_bit.wire_words(*one_bit.matrix_shape(shape, self.view)) for shape in layout.shapes)
        to_owners, to_all = stripes_and_back(WORD_BYTES * words, world_size)
        return [
            Codec("encode", num_bytes, bytes_moved=ENCODE_BYTES_MOVED),
            to_owners,
            Codec("decode", num_bytes, bytes_moved=DECODE_BYTES_MOVED),
            Codec("encode", num_bytes / world_size, bytes_moved=ENCODE_BYTES_MOVED),
            to_all,
            Codec("decode", num_bytes, bytes_moved=DECODE_BYTES_MOVED),
            update,
        ]


def _stripe_words(
    shapes: list[tuple[int, int]], columns: list[list[tuple[int, int]]], world_size: int
) -> list[int]:
    """32-bit words of a message with each owner's stripes."""
    words = [0] * world_size
    for (rows, _), stripes in zip(shapes, columns, strict=True):
        for owner, (start, stop) in enumerate(stripes):
            words[owner] += one_bit.wire_words(rows, stop - start)
    return words


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
        rows = one_bit.matrix_shape(shape, state.view)[0]
        width = stripes[owner][1] - stripes[owner][0]
        lower, upper = words[at : at + 2 * width].view(torch.float32).view(2, width)
        at += 2 * width
        num_words = math.ceil(rows / one_bit.BITS_PER_WORD)
        bits = words[at : at + num_words * width].view(num_words, width)
        at += num_words * width
        yield one_bit.decode(Encoded(lower, upper, bits), rows)


@final
@dataclass(frozen=True)
class OneBit(StripedOneBit):
    """CNTK's 1-bit SGD: two values and one bit an element a column, error feedback on both quantisations."""

    name = "one_bit"
