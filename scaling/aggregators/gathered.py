"""Compressed all-gather: every rank gets all ranks' encoded gradients, and decodes and averages them itself.

1. encode: v = gradient + residual; what is lost becomes the new residual, where there is one;
2. communicate: send the encoding to every other rank;
3. decode: add up all ranks' encodings, the own one as encoded, in rank order, hence the same bits on every
   rank; divide by n.

- `ef_sign`: signs with the mean magnitude of a chunk, and error feedback.
- `qsgd`: random rounding to levels of a chunk's norm; unbiased, nothing is kept.
- `top_k`: the largest values of the bucket with their places, and error feedback.

Steps: 1. Bytes sent per rank: (n-1) s in n-1 messages, s being the wire size of the bucket (the codecs'
modules): it grows with n, and loses to a ring where s is more than 2/n of the gradient. At world size 1
nothing is sent nor encoded. Error property, with a residual: n mean + the new residuals = the sum of
gradients + the old ones, up to float rounding.

References: those of the codecs' modules. Where we differ: GRACE and others call the library's all-gather;
here each rank sends to each of the others at once.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, AggregatorState, PhaseMarker, unmarked
from scaling.aggregators.prediction import gathered_by_all
from scaling.aggregators.same_layout import require_same_layout
from scaling.bucket import BucketLayout
from scaling.codecs.base import ChunkCodec, Chunks, require_exchange
from scaling.codecs.base import Codec as WireCodec
from scaling.codecs.finite import WATCH_ELEMENTS, FiniteWatch
from scaling.codecs.noise import Noise
from scaling.collectives.plan import Codec, Stage, Update
from scaling.process_group import Group, Message


@dataclass
class GatheredState(AggregatorState):
    """Buffers of one rank; those by chunks are filled up with zeros."""

    values: Tensor  # [padded] float32 scratch
    residual: Tensor  # [padded] float32; empty without feedback
    velocity: Tensor  # [padded] float32: momentum of the own gradients; empty without
    drawn: Tensor  # what decides the next random numbers; empty without
    incoming: Tensor  # [rank, ...] int32: every rank's encoding, the own one too
    total: Tensor  # [padded] float32 scratch
    result: Tensor  # [num_elements]
    chunks: Chunks
    valid: Tensor  # [num_chunks, 1] float32
    noise: Noise | None = field(repr=False)
    watch: FiniteWatch = field(repr=False)
    persistent = ("residual", "velocity", "drawn")

    def check(self) -> None:
        """See the base."""
        self.watch.raise_if_marked()

    def left_over(self) -> Tensor | None:
        """The own residual; None without one, and with velocity, whose law is another."""
        if not self.residual.numel() or self.velocity.numel():
            return None
        return self.residual[: self.layout.num_elements].clone()


@dataclass(frozen=True)
class Gathered(Aggregator[GatheredState]):
    """Base of aggregators by a compressed all-gather."""

    lossy = True
    overlaps = True
    graph_capturable = True
    encode_bytes_moved: ClassVar[float]
    decode_bytes_moved: ClassVar[float]

    def __post_init__(self) -> None:
        require_exchange(self.codec(), "all_gather")

    @abstractmethod
    def codec(self) -> WireCodec:
        """Of what goes to all."""

    @abstractmethod
    def wire_shape(self, num_elements: int) -> tuple[int, ...]:
        """Of an encoding, in int32 words."""

    @abstractmethod
    def encode(self, state: GatheredState, wire: Tensor) -> None:
        """Writes the encoding of `state.values` to `wire`, and what is lost to `state.residual`."""

    @abstractmethod
    def add_decoded(self, state: GatheredState, wire: Tensor) -> None:
        """Adds a rank's decoded gradient to `state.total`; watches it."""

    def feeds_back(self) -> bool:
        """Whether there is a residual."""
        return True

    def chunks(self, num_elements: int) -> Chunks:
        """How buffers are filled up."""
        return Chunks(num_elements, 1)

    def watched_elements(self, chunks: Chunks) -> int:
        """Of a span of the watch."""
        return WATCH_ELEMENTS

    def noise(self, num_elements: int, rank: int, device: torch.device) -> Noise | None:
        """Random numbers for an encoding, other ones on every rank."""
        return None

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> GatheredState:
        """A residual of zero and all buffers."""
        require_same_layout(layout, group)
        chunks = self.chunks(layout.num_elements)
        noise = self.noise(chunks.padded, group.rank, device)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return GatheredState(
            group,
            layout,
            values=zeros(chunks.padded),
            residual=zeros(chunks.padded if self.feeds_back() else 0),
            velocity=zeros(chunks.padded if self.own_momentum() else 0),
            drawn=zeros(0, dtype=torch.int32) if noise is None else noise.drawn,
            incoming=zeros(group.world_size, *self.wire_shape(layout.num_elements), dtype=torch.int32),
            total=zeros(chunks.padded),
            result=zeros(layout.num_elements, dtype=dtype),
            chunks=chunks,
            valid=chunks.valid(device),
            noise=noise,
            watch=FiniteWatch.of_chunks(layout, self.watched_elements(chunks), device),
        )

    @final
    def aggregate(self, state: GatheredState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """Returns the mean of the encoded gradients, in the gradient's type."""
        group = state.group
        if group.world_size == 1 or not gradient.numel():
            return self._alone(state, gradient)
        with phase("encode"):
            self._fill_values(state, gradient)
            self.encode(state, state.incoming[group.rank])
        peers = [rank for rank in range(group.world_size) if rank != group.rank]
        with phase("communicate"):
            group.exchange(
                [Message(peer, state.incoming[group.rank]) for peer in peers],
                [Message(peer, state.incoming[peer]) for peer in peers],
            )
        with phase("decode"):
            state.total.zero_()
            for rank in range(group.world_size):
                self.add_decoded(state, state.incoming[rank])
            self._watch(state)
            torch.div(state.total[: gradient.numel()], group.world_size, out=state.result)
        return state.result

    def _alone(self, state: GatheredState, gradient: Tensor) -> Tensor:
        """Nothing is encoded; momentum is applied."""
        if not state.velocity.numel():
            return gradient
        own = state.velocity[: gradient.numel()]
        own.mul_(self.own_momentum()).add_(gradient)
        return state.result.copy_(own)

    def _fill_values(self, state: GatheredState, gradient: Tensor) -> None:
        """The gradient, or the velocity that it adds to, with the residual."""
        n = gradient.numel()
        if state.velocity.numel():
            state.velocity[:n].mul_(self.own_momentum()).add_(gradient)
            gradient = state.velocity[:n]
        if state.residual.numel():
            torch.add(state.residual[:n], gradient, out=state.values[:n])
        else:
            state.values[:n].copy_(gradient)

    @abstractmethod
    def _watch(self, state: GatheredState) -> None:
        """Marks what was not finite in any rank's encoding."""

    @final
    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        """The own encoding to each of the others."""
        return (world_size - 1) * self.codec().bucket_bytes(layout)

    @final
    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        """Encode, to all, decode every rank's; then the update."""
        n, num_bytes = layout.num_elements, 4.0 * layout.num_elements
        update = Update("replica", n)
        if world_size == 1:
            return [update]
        return [
            Codec("encode", num_bytes, bytes_moved=self.encode_bytes_moved),
            gathered_by_all(self.codec().bucket_bytes(layout), world_size),
            Codec("decode", num_bytes * world_size, bytes_moved=self.decode_bytes_moved),
            update,
        ]


@dataclass(frozen=True)
class GatheredChunks(Gathered):
    """Base of those whose codec goes by chunks."""

    encode_bytes_moved: ClassVar[float] = 16.0  # as in `scaling.aggregators.striped`, with QSGD's more
    decode_bytes_moved: ClassVar[float] = 5.0

    @abstractmethod
    def codec(self) -> ChunkCodec:
        """Of what goes to all."""

    def chunks(self, num_elements: int) -> Chunks:
        """The codec's."""
        return self.codec().chunks(num_elements)

    def watched_elements(self, chunks: Chunks) -> int:
        """A chunk's."""
        return chunks.chunk_elements

    def wire_shape(self, num_elements: int) -> tuple[int, ...]:
        """A row a chunk."""
        chunks = self.chunks(num_elements)
        return chunks.num_chunks, self.codec().row_words(chunks.chunk_elements)

    def encode(self, state: GatheredState, wire: Tensor) -> None:
        """Rows, and what they lose."""
        matrix, codec = state.chunks.matrix(state.values), self.codec()
        noise = None if state.noise is None else state.chunks.matrix(state.noise.uniform())
        codec.encode(matrix, state.valid, wire, noise)
        if state.residual.numel():
            torch.sub(matrix, codec.decode(wire), out=state.chunks.matrix(state.residual))
            state.residual[state.layout.num_elements :].zero_()

    def add_decoded(self, state: GatheredState, wire: Tensor) -> None:
        """All rows."""
        state.chunks.matrix(state.total).add_(self.codec().decode(wire))

    def _watch(self, state: GatheredState) -> None:
        """By the heads of all ranks."""
        state.watch.note(self.codec().heads(state.incoming).transpose(0, 1))
