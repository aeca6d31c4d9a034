"""1-bit SGD: quantised stripes, summed by their owners, quantised again and sent to all.

Each gradient matrix (see `scaling.codecs.one_bit`) is cut into one stripe of columns a rank; with fewer
columns than ranks, the last ranks own none. A step on every rank:

1. encode: quantise gradient + residual, column by column; what is lost becomes the new residual;
2. communicate: send every other rank its stripe, quantised;
3. decode: sum the n quantised copies of the own stripe in full precision, the own one included as quantised;
4. encode: quantise that sum + the stripe's residual, which only the owner keeps;
5. communicate: send the quantised sum to every other rank;
6. decode: all stripes, the own one too, hence the same bits on every rank; divide by n for the mean.

With bits = 32 gradients are all-reduced as they are. With `double_buffering` a call returns what the call
before has brought together, zeros at first, so that the exchange runs while the next gradient is computed: on
CUDA on a stream of its own from step 2 on, unless captured; on a CPU the result is as late for nothing.

Steps: 2. Bytes sent per rank: 2(n-1)/n s in 2(n-1) messages, s = sum of 8 + 4 ceil(bits rows / 32) over all
columns, where columns divide evenly. At world size 1 nothing is sent and nothing is quantised. Error
property: n mean + the new residuals of all ranks and stripes = the sum of gradients + the old residuals, up
to float rounding.

Saved state: by parameter, with the own columns' residual of every matrix. Stripes are columns of a matrix,
not of a bucket: in other buckets nothing changes but the order of messages.

References: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-bit stochastic gradient descent and its application
to data-parallel distributed training of speech DNNs", Interspeech 2014; CNTK, Source/1BitSGD
(AllReduceDistGradAggregator.h; useBufferedAsyncGradientAggregation, gradientBits in Source/SGDLib/SGD.cpp).
Differences: CNTK sends a message a matrix and a peer where we pack all matrices into one; it adds stripes in
the order of arrival, we in rank order; it delivers the sum, we the mean; it leaves out the first update of
double buffering, ours is taken with a gradient of zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, Stated, unmarked
from scaling.aggregators.prediction import all_reduce_bytes, encoded_stripes, native_all_reduce
from scaling.aggregators.state import WatchedState, named, require_same_on_ranks
from scaling.bucket import BucketLayout
from scaling.codecs.base import WORD_BYTES
from scaling.codecs.finite import FiniteWatch
from scaling.codecs.kernels import Kernels, stripe_codec
from scaling.codecs.one_bit import Threshold, View, as_matrix
from scaling.codecs.one_bit_stripes import StripeBuffers
from scaling.codecs.stripes import StripeLayout
from scaling.collectives.execute import side_stream
from scaling.collectives.plan import Stage
from scaling.process_group import Group, Message

TORCH_ENCODE_BYTES_MOVED = 25.0
"""Read and written by torch's operations for each byte that is encoded and whose residual is taken: 3 to add
the residual, 8 for the two means, 5 to pack, 9 to decode and for the new residual."""
TORCH_DECODE_BYTES_MOVED = 8.5  # For each byte that is unpacked, decoded and added
ENCODE_BYTES_MOVED = 5.0  # the same in kernels: gradient and residual read twice, the residual written
DECODE_BYTES_MOVED = 1.0  # Likewise: what is decoded is written, or added up in registers

PLAIN_BITS = 32


class OneBitState(WatchedState):
    def __init__(
        self, of: StripedOneBit, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        require_same_on_ranks(layout, group)
        super().__init__(group, layout, watch=FiniteWatch.of_tensors(layout, device))
        n = layout.num_elements if group.world_size > 1 else 0
        num_late = n if of.double_buffering else 0
        stripes = of.stripes(layout, group.world_size)
        self.buffers = StripeBuffers(stripes, group.rank, device, self.watch.marks)
        self.codec = stripe_codec(self.buffers, of.threshold, of.kernels)
        self.result = torch.zeros(n, dtype=dtype, device=device)  # the mean
        self.previous = torch.zeros(num_late, dtype=dtype, device=device)  # that of the call before
        self.side_stream = side_stream(device) if num_late else None  # where a late exchange runs

    @property
    def residual(self) -> Tensor:
        """[num_elements] float32: of the own gradient."""
        return self.buffers.residual

    @property
    def stripe_residual(self) -> Tensor:
        """float32: of the sums of the own stripes, matrix by matrix."""
        return self.buffers.stripe_residual

    @property
    def notes(self) -> list[str]:
        return [self.codec.note] if self.group.world_size > 1 else []

    def check(self) -> None:
        self.wait()
        super().check()

    def wait(self) -> None:
        """The current stream waits for an exchange that still runs on the side stream."""
        if self.side_stream is not None and not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().wait_stream(self.side_stream)

    def total_residual(self) -> Tensor:
        """The own residual, that of the own stripes' sums, and of a mean yet to be given a rank's part."""
        self.wait()
        quantised = self.buffers.stripes
        total = torch.zeros(self.layout.num_elements, device=self.buffers.wire.device)
        if quantised.matrices:
            total.copy_(self.residual)
        stripes = self.buffers.own_stripes(self.stripe_residual)
        tensors = zip(quantised.layout.views(total), stripes, quantised.bounds, strict=True)
        for values, stripe, bounds in tensors:
            as_matrix(values, quantised.view)[:, slice(*bounds[self.group.rank])] += stripe
        return total.add_(self.result) if self.previous.numel() else total

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """By parameter both residuals, and the mean that double buffering holds back."""
        self.wait()
        quantised = self.buffers.stripes.layout
        means = self.layout.views(self.result) if self.previous.numel() else []
        return (
            named("residual", quantised.names, quantised.views(self.residual))
            | named("stripe_residual", quantised.names, self.buffers.own_stripes(self.stripe_residual))
            | named("mean", self.layout.names, means)
        )


@dataclass(frozen=True)
class StripedOneBit(Stated[OneBitState]):
    """Base of aggregators by 1-bit stripes. `threshold`: what a bit says: "zero", the sign of the element;
    "mean", which side of the column's mean. `view`: what a column of a convolution's weight is: "torch", one
    value of each output channel; "cntk", a row of the filter (`scaling.codecs.one_bit`). `bits`: of an
    element on the wire; 32 is a plain all-reduce. `double_buffering`: return the mean of the gradients of the
    call before. `kernels`: "triton"; "torch", plain operations, the reference; "auto": Triton's on CUDA where
    it is installed, and torch's in an order made for caches on processors."""

    state_class: ClassVar[type[OneBitState]] = OneBitState
    lossy = True
    overlaps = True
    graph_capturable = True

    threshold: Threshold = "zero"
    view: View = "torch"
    bits: Literal[1, 2, 4, 8, 16, 32] = 1
    double_buffering: bool = False
    kernels: Kernels = "auto"

    def is_late(self) -> bool:
        return self.double_buffering

    def stripes(self, layout: BucketLayout, world_size: int) -> StripeLayout:
        if self.bits == PLAIN_BITS:
            return StripeLayout.of(BucketLayout.of([]), self.view, 1, world_size)
        return StripeLayout.of(layout, self.view, self.bits, world_size)

    @final
    def aggregate(self, state: OneBitState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        if state.group.world_size == 1:
            return gradient
        if not self.double_buffering:
            self._begin(state, gradient, phase)
            self._bring_together(state, phase)
            return state.result
        state.wait()
        with phase("decode"):
            state.previous.copy_(state.result)
        self._begin(state, gradient, phase)
        if state.side_stream is None or torch.cuda.is_current_stream_capturing():
            self._bring_together(state, phase)
        else:
            state.side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(state.side_stream):
                self._bring_together(state, unmarked)
        return state.previous

    def _begin(self, state: OneBitState, gradient: Tensor, phase: PhaseMarker) -> None:
        with phase("encode"):
            if self.bits == PLAIN_BITS:
                state.result.copy_(gradient)
            else:
                state.codec.encode(gradient)

    def _bring_together(self, state: OneBitState, phase: PhaseMarker) -> None:
        if self.bits == PLAIN_BITS:
            with phase("communicate"):
                state.group.all_reduce(state.result)
            with phase("reduce"):
                state.result.div_(state.group.world_size)
            return
        buffers, own_rank = state.buffers, state.group.rank
        peers = [rank for rank in range(state.group.world_size) if rank != own_rank]
        self.exchange(
            state,
            [Message(peer, buffers.outgoing[peer]) for peer in peers],
            [Message(peer, buffers.incoming[peer]) for peer in peers],
            phase,
        )
        with phase("encode"):
            state.codec.encode_sums()
        self.exchange(
            state,
            [Message(peer, buffers.gathered[own_rank]) for peer in peers],
            [Message(peer, buffers.gathered[peer]) for peer in peers],
            phase,
        )
        with phase("decode"):
            state.codec.decode(state.result)

    def exchange(
        self, state: OneBitState, sends: list[Message], receives: list[Message], phase: PhaseMarker
    ) -> None:
        """Sends and receives one batch of messages, between devices."""
        with phase("communicate"):
            state.group.exchange(sends, receives)

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        if world_size == 1:
            return 0
        if self.bits == PLAIN_BITS:
            return all_reduce_bytes([itemsize * layout.num_elements], world_size)
        words = self.stripes(layout, world_size).words
        return WORD_BYTES * (sum(words) + (world_size - 2) * words[rank])

    @final
    def exchange_stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n = layout.num_elements
        if self.bits == PLAIN_BITS:
            return [*native_all_reduce([n], world_size, self.name)]
        by_torch = self.kernels == "torch"
        encode = TORCH_ENCODE_BYTES_MOVED if by_torch else ENCODE_BYTES_MOVED
        decode = TORCH_DECODE_BYTES_MOVED if by_torch else DECODE_BYTES_MOVED
        wire = WORD_BYTES * sum(self.stripes(layout, world_size).words)
        return self.delegated(encoded_stripes(n, wire, wire, world_size, encode=encode, decode=decode))

    def delegated(self, stages: list[Stage]) -> list[Stage]:
        """The stages as `exchange` carries their messages; here between devices."""
        return stages


@final
@dataclass(frozen=True)
class OneBit(StripedOneBit):
    """CNTK's 1-bit SGD: a bit an element and two values a column; error feedback on both quantisations."""

    name = "one_bit"
