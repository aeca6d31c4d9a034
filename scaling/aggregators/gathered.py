"""Compressed all-gather: every rank gets all ranks' encoded gradients, and decodes and averages them itself.

1. encode: v = gradient + residual; what is lost becomes the new residual, where there is one;
2. communicate: send the encoding to every other rank;
3. decode: add up all ranks' encodings, the own one as encoded, in rank order, hence the same bits on every
   rank; divide by n.

`ef_sign`, `qsgd` and `top_k` go so. Steps: 1. Bytes sent per rank: (n-1) s in n-1 messages, s being the wire
size of the bucket: it grows with n, and loses to a ring where s is more than 2/n of the gradient. At world
size 1 nothing is sent nor encoded. Error property, with a residual: n mean + the new residuals = the sum of
gradients + the old ones, up to float rounding.

Saved state: by parameter. In the same buckets it goes on bit for bit. In others the residual and the velocity
of every element are exactly what they were; chunks have other borders, the largest values are those of other
buckets, and random numbers are new ones.

References: those of the schemes' modules. Where we differ: GRACE and others call the library's all-gather;
here each rank sends to each of the others at once.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, Stated, unmarked
from scaling.aggregators.prediction import gathered_by_all
from scaling.aggregators.state import WatchedState, named, require_same_on_ranks, single_rank_result
from scaling.bucket import BucketLayout
from scaling.codecs.base import Codec as WireCodec
from scaling.codecs.base import require_exchange
from scaling.codecs.chunks import ChunkCodec, ChunkCoder, Chunks
from scaling.codecs.finite import WATCH_ELEMENTS, FiniteWatch
from scaling.codecs.kernels import Kernels, chunk_coder
from scaling.codecs.noise import Noise
from scaling.collectives.plan import CodecWork, Stage
from scaling.process_group import Group, Message

TORCH_ENCODE_BYTES_MOVED = 16.0
"""By torch's operations: as in `scaling.aggregators.striped`, with QSGD's more."""
TORCH_DECODE_BYTES_MOVED = 5.0


class GatheredState(WatchedState):
    """Buffers of one rank; those by chunks are filled up with zeros."""

    by_parameter = ("residual", "velocity")

    def __init__(
        self, of: Gathered, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        require_same_on_ranks(layout, group)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        n = layout.num_elements
        chunks = of.chunks(n)
        watch = FiniteWatch.of_chunks(layout, of.watched_elements(chunks), device)
        super().__init__(group, layout, watch=watch)
        self.coder = of.coder(chunks, device)  # of codecs by chunks
        self.noise = of.noise(chunks.padded, group.rank, device)
        self.residual = zeros(chunks.padded if of.feeds_back() else 0)
        self.velocity = zeros(chunks.padded if of.own_momentum() else 0)  # momentum of the own gradients
        # [rank, ...]: every rank's encoding, the own one too
        self.incoming = zeros(group.world_size, *of.wire_shape(n), dtype=torch.int32)
        self.result = zeros(n, dtype=dtype)

    @property
    def notes(self) -> list[str]:
        return [self.coder.note] if self.coder is not None and self.group.world_size > 1 else []

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """What decides the random numbers is stored with every parameter of the bucket."""
        drawn = [] if self.noise is None else [self.noise.drawn] * len(self.layout.names)
        return super().checkpoint_tensors() | named("drawn", self.layout.names, drawn)

    def total_residual(self) -> Tensor | None:
        """The own residual; None without one, and with velocity, whose law is another."""
        return None if self.velocity.numel() else self.withheld()

    def withheld(self) -> Tensor | None:
        return self.residual[: self.layout.num_elements].clone() if self.residual.numel() else None


@dataclass(frozen=True)
class Gathered(Stated[GatheredState]):
    state_class = GatheredState
    lossy = True
    overlaps = True
    graph_capturable = True

    def __post_init__(self) -> None:
        require_exchange(self.codec(), "all_gather")

    @abstractmethod
    def codec(self) -> WireCodec:
        """Of what goes to all."""

    @abstractmethod
    def wire_shape(self, num_elements: int) -> tuple[int, ...]:
        """Of an encoding, in int32 words."""

    @abstractmethod
    def encode(self, state: GatheredState, gradient: Tensor, wire: Tensor) -> None:
        """Writes the encoding of the gradient and what is added to it to `wire`; what is lost to
        `state.residual`."""

    @abstractmethod
    def decode(self, state: GatheredState) -> None:
        """Writes the mean of what all of `state.incoming` stands for to `state.result`; watches it."""

    @abstractmethod
    def bytes_moved(self, world_size: int) -> tuple[float, float]:
        """In memory for each byte that is encoded, and for each that is decoded, of any rank's."""

    def coder(self, chunks: Chunks, device: torch.device) -> ChunkCoder | None:
        return None

    def feeds_back(self) -> bool:
        return True

    def chunks(self, num_elements: int) -> Chunks:
        return Chunks(num_elements, 1)

    def watched_elements(self, chunks: Chunks) -> int:
        return WATCH_ELEMENTS

    def noise(self, num_elements: int, rank: int, device: torch.device) -> Noise | None:
        return None

    @final
    def aggregate(self, state: GatheredState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        group = state.group
        if group.world_size == 1 or not gradient.numel():
            return single_rank_result(gradient, state.velocity, self.own_momentum(), state.result)
        with phase("encode"):
            self.encode(state, gradient, state.incoming[group.rank])
        peers = [rank for rank in range(group.world_size) if rank != group.rank]
        with phase("communicate"):
            group.exchange(
                [Message(peer, state.incoming[group.rank]) for peer in peers],
                [Message(peer, state.incoming[peer]) for peer in peers],
            )
        with phase("decode"):
            self.decode(state)
        return state.result

    @final
    def contribution(self, state: GatheredState, gradient: Tensor) -> Tensor:
        velocity = state.velocity[: gradient.numel()]
        return gradient + self.own_momentum() * velocity if velocity.numel() else gradient

    @final
    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        return (world_size - 1) * self.codec().bucket_bytes(layout)

    @final
    def exchange_stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        num_bytes = 4.0 * layout.num_elements
        encode, decode = self.bytes_moved(world_size)
        return [
            CodecWork("encode", num_bytes, bytes_moved=encode),
            gathered_by_all(self.codec().bucket_bytes(layout), world_size),
            CodecWork("decode", num_bytes * world_size, bytes_moved=decode),
        ]


@dataclass(frozen=True)
class GatheredChunks(Gathered):
    """Base of those whose codec goes by chunks. `kernels`: "triton"; "torch", plain operations, the
    reference; "auto": Triton's on CUDA where it is installed."""

    kernels: Kernels = field(default="auto", kw_only=True)

    @abstractmethod
    def codec(self) -> ChunkCodec: ...

    def chunks(self, num_elements: int) -> Chunks:
        return self.codec().chunks(num_elements)

    def watched_elements(self, chunks: Chunks) -> int:
        return chunks.chunk_elements

    def wire_shape(self, num_elements: int) -> tuple[int, ...]:
        chunks = self.chunks(num_elements)
        return chunks.num_chunks, self.codec().row_words(chunks.chunk_elements)

    def coder(self, chunks: Chunks, device: torch.device) -> ChunkCoder | None:
        return chunk_coder(self.codec(), self.codec(), chunks, device, self.kernels)

    def encode(self, state: GatheredState, gradient: Tensor, wire: Tensor) -> None:
        assert state.coder is not None, "there is one for every codec by chunks"
        state.coder.encode(gradient, state.residual, wire, noise=state.noise)

    def decode(self, state: GatheredState) -> None:
        assert state.coder is not None, "there is one for every codec by chunks"
        state.coder.decode(state.incoming, state.group.world_size, state.result, state.watch)

    def bytes_moved(self, world_size: int) -> tuple[float, float]:
        """Kernels read the gradient and the residual and write the residual; they write the mean once."""
        codec = self.codec()
        if self.kernels == "torch":
            return TORCH_ENCODE_BYTES_MOVED, TORCH_DECODE_BYTES_MOVED
        return 1.0 + 2 * self.feeds_back() + codec.needs_noise, 1 / world_size + codec.code_bits() / 32
