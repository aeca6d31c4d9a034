"""Compressed stripes: every rank owns a part of the bucket, sums it decoded, and sends the sum to all.

The flat bucket is cut into chunks (`scaling.codecs.chunks`), and each rank owns num_chunks // n of them, the
first ranks one more; with fewer chunks than ranks, the last ones own none. A step on every rank:

1. encode: v = gradient + residual, chunk by chunk; what is lost becomes the new residual;
2. communicate: send every other rank its stripe;
3. encode: decode and sum the n copies of the own stripe, the own one as encoded, in rank order;
4. encode, in the same kernel: that sum + the stripe's residual, which only the owner keeps;
5. communicate: send the encoded sum to every other rank;
6. decode: all stripes, the own one too, hence the same bits on every rank; divide by n.

- `one_bit_flat`: two means a chunk and a bit an element, both residuals.
- `one_bit_momentum`: of momentum instead of the gradient; root mean square and a bit an element, both
  residuals.
- `two_bit`: codes up, with a residual; 32-bit sums down, without one.
- `sign`: signs up, the majority's sign down; no residual, nothing is divided.

Steps: 2. Bytes sent per rank: (n-1)/n (u + d) in 2(n-1) messages, u and d being the wire size of the bucket
up and down (the codecs' modules), where chunks divide evenly. At world size 1 nothing is sent and nothing
encoded; momentum is applied. Error property, with both residuals: n mean + the new residuals of all ranks and
stripes = the sum of gradients + the old ones, up to float rounding; in `one_bit_momentum` with v's first two
terms for gradients.

Saved state: by parameter. In the same buckets it goes on bit for bit. In others the residuals and the
momentum of every element are exactly what they were, those of stripes at their new owners (`StripeParts`);
chunks have other borders, so other values share their heads.

Reference: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-bit stochastic gradient descent and its application to
data-parallel distributed training of speech DNNs", Interspeech 2014 (stripes, two residuals); those of the
codecs' modules. Where we differ: stripes are runs of chunks of the flat bucket, not columns of each matrix.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, Stated, unmarked
from scaling.aggregators.prediction import encoded_stripes
from scaling.aggregators.state import (
    WatchedState,
    named,
    require_same_on_ranks,
    saved_tensor,
    single_rank_result,
)
from scaling.bucket import BucketLayout
from scaling.codecs.base import WORD_BYTES, require_exchange
from scaling.codecs.chunks import ChunkCodec, Momentum
from scaling.codecs.finite import FiniteWatch
from scaling.codecs.kernels import Kernels, chunk_coder
from scaling.codecs.stripes import stripes_of
from scaling.collectives.plan import Stage
from scaling.errors import CheckpointError
from scaling.process_group import Group, Message

PART, BORDERS = "stripe_residual", "stripe_borders"
"""Kinds: the own part of a parameter, flat; [ranks + 1] int64, where each rank's part begins, and the end."""


@dataclass(frozen=True)
class StripeParts:
    """Which elements of each parameter each rank owns: the residual of stripes' sums is saved by parameter.

    Who owns an element follows from the chunks of its bucket. A rank saves of each parameter the elements
    that it owns, maybe none, and where the parts of all ranks begin. Where all parts of a bucket's parameters
    begin where they did, each rank takes its own as they are; all ranks know that. Else each writes what it
    has to its place in a buffer of zeros; one all-reduce of the bucket; each takes what it owns now. One of
    an element's n terms is its value, the others are 0: values move exactly. That all-reduce is no step's,
    and not metered.

    `edges`: [rank] the first element of the bucket that it owns; behind the last rank's, the end.
    """

    layout: BucketLayout
    edges: tuple[int, ...]

    @property
    def borders(self) -> list[list[int]]:
        """[parameter][rank] the first of the parameter's elements that it owns; then the parameter's end."""
        sizes = [math.prod(shape) for shape in self.layout.shapes]
        return [
            [min(max(edge - offset, 0), size) for edge in self.edges]
            for offset, size in zip(self.layout.offsets, sizes, strict=True)
        ]

    def own(self, stripe: Tensor, rank: int) -> dict[str, Tensor]:
        begin, parts = self.edges[rank], []
        for offset, borders in zip(self.layout.offsets, self.borders, strict=True):
            start, stop = borders[rank], borders[rank + 1]
            at = offset + start - begin if start < stop else 0
            parts.append(stripe[at : at + stop - start])
        return named(PART, self.layout.names, parts)

    def borders_by_name(self) -> dict[str, Tensor]:
        return named(BORDERS, self.layout.names, [torch.tensor(border) for border in self.borders])

    def handed_over(
        self, saved: Mapping[str, Tensor], group: Group, device: torch.device
    ) -> dict[str, Tensor]:
        """Each parameter's part that this rank owns now. Collective. `saved`: of this rank: parts and borders
        of these parameters, maybe with others; `device`: where the ranks exchange tensors. CheckpointError: a
        parameter is missing, has another size, or was saved by more or fewer ranks."""
        before = [self._found_borders(saved, number) for number in range(len(self.layout.names))]
        parts = [
            saved_tensor(saved, f"{PART}/{name}", [borders[group.rank + 1] - borders[group.rank]])
            for name, borders in zip(self.layout.names, before, strict=True)
        ]
        if before == self.borders:
            return named(PART, self.layout.names, parts)
        whole = torch.zeros(self.layout.num_elements, device=device)
        flat = [view.view(-1) for view in self.layout.views(whole)]
        for view, borders, part in zip(flat, before, parts, strict=True):
            view[borders[group.rank] : borders[group.rank + 1]].copy_(part)
        with group.meter.standing_still():
            group.all_reduce(whole)
        now = [
            view[borders[group.rank] : borders[group.rank + 1]]
            for view, borders in zip(flat, self.borders, strict=True)
        ]
        return named(PART, self.layout.names, now)

    def _found_borders(self, saved: Mapping[str, Tensor], number: int) -> list[int]:
        name, current = f"{BORDERS}/{self.layout.names[number]}", self.borders[number]
        borders: list[int] = saved_tensor(saved, name, [len(current)]).tolist()
        if borders[0] != 0 or borders[-1] != current[-1] or any(a > b for a, b in pairwise(borders)):
            raise CheckpointError(
                f"the saved state of the aggregator has {name!r} {borders}, for a parameter of {current[-1]} "
                "elements: it is of another model; continue with that, or begin anew"
            )
        return borders


TORCH_ENCODE_BYTES_MOVED = 14.0
"""Read and written by torch's operations for each byte that is encoded and whose residual is taken, of 1-bit
codes: 3 to add the residual, 3 to compare and pack, 3 for the scale, 2 to unpack, 3 for the residual."""
TORCH_DECODE_BYTES_MOVED = 4.0  # For each byte that is unpacked, decoded and added


class StripesState(WatchedState):
    """Residuals and message buffers of one rank; those by chunks are filled up with zeros."""

    by_parameter = ("residual", "momentum")

    def __init__(
        self, of: Striped, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        require_same_on_ranks(layout, group)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        codec, back, n = of.codec(), of.codec_back(), layout.num_elements
        self.chunks = chunks = codec.chunks(n)
        size, number = chunks.chunk_elements, chunks.num_chunks
        super().__init__(group, layout, watch=FiniteWatch.of_chunks(layout, size, device))
        self.stripes = stripes_of(number, group.world_size)  # [rank] -> first chunk, end
        num_own = self.own.stop - self.own.start
        of_gradient, of_sums = of.feeds_back()
        self.coder = chunk_coder(codec, back, chunks, device, of.kernels)
        self.residual = zeros(chunks.padded if of_gradient else 0)  # of the own gradient
        self.stripe_residual = zeros(num_own if of_sums else 0, size)  # of the sums
        self.momentum = zeros(chunks.padded if of.own_momentum() else 0)  # the last result
        self.outgoing = zeros(number, codec.row_words(size), dtype=torch.int32)  # the own gradient
        # [rank, own chunks, words]: the own stripe
        self.incoming = zeros(group.world_size, num_own, codec.row_words(size), dtype=torch.int32)
        self.sums = zeros(number, back.row_words(size), dtype=torch.int32)  # of all stripes
        self.result = zeros(n, dtype=dtype)
        # Filling belongs to nobody.
        edges = tuple(min(start * size, n) for start in (*(start for start, _ in self.stripes), number))
        self.parts = StripeParts(layout, edges) if of_sums else None  # of the stripe residual

    @property
    def own(self) -> slice:
        return slice(*self.stripes[self.group.rank])

    @property
    def notes(self) -> list[str]:
        return [self.coder.note] if self.group.world_size > 1 else []

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        if self.parts is None:
            return super().checkpoint_tensors()
        return super().checkpoint_tensors() | self.parts.own(self.stripe_residual.view(-1), self.group.rank)

    def state_dict(self) -> dict[str, Tensor]:
        return super().state_dict() | (self.parts.borders_by_name() if self.parts else {})

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        handed = self.parts.handed_over(tensors, self.group, self.result.device) if self.parts else {}
        super().load_state_dict(tensors | handed)

    def total_residual(self) -> Tensor | None:
        """The own residual, plus that of the own stripe's sum; None with momentum, whose law is another."""
        return None if self.momentum.numel() else self.withheld()

    def withheld(self) -> Tensor | None:
        if not self.residual.numel() and not self.stripe_residual.numel():
            return None
        total = torch.zeros(self.chunks.padded, device=self.result.device)
        if self.residual.numel():
            total.copy_(self.residual)
        if self.stripe_residual.numel():
            self.chunks.matrix(total)[self.own].add_(self.stripe_residual)
        return total[: self.layout.num_elements]


@dataclass(frozen=True)
class Striped(Stated[StripesState]):
    """Base of aggregators by compressed stripes. `kernels`: "triton"; "torch", plain operations, the
    reference; "auto": Triton's on CUDA where it is installed."""

    state_class = StripesState
    lossy = True
    overlaps = True
    graph_capturable = True

    kernels: Kernels = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        require_exchange(self.codec(), "stripes")

    @abstractmethod
    def codec(self) -> ChunkCodec:
        """Of what goes to the owners."""

    def codec_back(self) -> ChunkCodec:
        return self.codec()

    def feeds_back(self) -> tuple[bool, bool]:
        return True, True

    def divisor(self, world_size: int) -> int:
        return world_size

    @final
    def aggregate(self, state: StripesState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        if state.group.world_size == 1 or not gradient.numel():
            return single_rank_result(gradient, state.momentum, self.own_momentum(), state.result)
        group, own, stripe_sum = state.group, state.own, state.sums[state.own]
        peers = [rank for rank in range(group.world_size) if rank != group.rank]
        stripe_of = {peer: slice(*state.stripes[peer]) for peer in peers}
        momentum = Momentum(state.momentum, self.own_momentum()) if state.momentum.numel() else None
        with phase("encode"):
            state.coder.encode(gradient, state.residual, state.outgoing, momentum)
        with phase("communicate"):
            state.incoming[group.rank].copy_(state.outgoing[own])
            group.exchange(
                [Message(peer, state.outgoing[stripe_of[peer]]) for peer in peers],
                [Message(peer, state.incoming[peer]) for peer in peers],
            )
        with phase("encode"):
            state.coder.encode_sums(state.incoming, state.stripe_residual, stripe_sum, own.start, group.rank)
        with phase("communicate"):
            group.exchange(
                [Message(peer, stripe_sum) for peer in peers],
                [Message(peer, state.sums[stripe_of[peer]]) for peer in peers],
            )
        with phase("decode"):
            divisor = self.divisor(group.world_size)
            state.coder.decode(state.sums[None], divisor, state.result, state.watch, momentum)
        return state.result

    @final
    def contribution(self, state: StripesState, gradient: Tensor) -> Tensor:
        last = state.momentum[: gradient.numel()]
        return gradient + self.own_momentum() * last if last.numel() else gradient

    @final
    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        chunks = self.codec().chunks(layout.num_elements)
        start, stop = stripes_of(chunks.num_chunks, world_size)[rank]
        up = self.codec().row_words(chunks.chunk_elements) * (chunks.num_chunks - (stop - start))
        down = self.codec_back().row_words(chunks.chunk_elements) * (stop - start) * (world_size - 1)
        return WORD_BYTES * (up + down)

    @final
    def exchange_stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        up, down = self.codec().bucket_bytes(layout), self.codec_back().bucket_bytes(layout)
        if self.kernels == "torch":
            moved = {"encode": TORCH_ENCODE_BYTES_MOVED, "decode": TORCH_DECODE_BYTES_MOVED}
        else:  # the gradient and the residual read, the residual written; codes read, what they mean written
            values = 1.0 + bool(self.own_momentum())
            moved = {
                "encode": values + 2 * self.feeds_back()[0],
                "decode": values + self.codec_back().code_bits() / 32,
            }
        return encoded_stripes(layout.num_elements, up, down, world_size, **moved)
