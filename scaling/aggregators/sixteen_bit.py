"""16-bit all-reduce: the gradient is cast, divided, summed by the library, and cast back.

Steps and messages: the library's affair. Bytes sent per rank: 2(n-1)/n times 2 N, as metered. At world size 1
nothing is cast. Error property: rounding to 16 bits before and in the sum, no residual
(`scaling.codecs.sixteen_bit`); the library gives every rank the same bits.

Reference: PyTorch, torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py (fp16_compress_hook,
bf16_compress_hook).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker, unmarked
from scaling.aggregators.prediction import all_reduce_bytes
from scaling.aggregators.saved_state import require_same_on_ranks
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.codecs.base import require_exchange
from scaling.codecs.finite import WATCH_ELEMENTS, FiniteWatch
from scaling.codecs.sixteen_bit import SixteenBitCodec
from scaling.collectives.plan import CodecWork, Exchange, Stage, Update
from scaling.collectives.ring import ring
from scaling.process_group import Group

CAST_BYTES_MOVED = 2.5
"""For each byte of the gradient, to cast and to divide; back it is 1.5."""


@dataclass
class SixteenBitState(AggregatorState):
    wire: Tensor  # [num_elements] of 16 bits
    watch: FiniteWatch = field(repr=False)

    def check(self) -> None:
        self.watch.raise_if_marked()


@dataclass(frozen=True)
class SixteenBits(Aggregator[SixteenBitState]):
    """Base of the two."""

    lossy = True
    modifies_input = True
    overlaps = True
    graph_capturable = True

    def __post_init__(self) -> None:
        require_exchange(self.codec(), "all_reduce")

    @abstractmethod
    def codec(self) -> SixteenBitCodec:
        """Of the message."""

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> SixteenBitState:
        require_same_on_ranks(layout, group)
        wire = torch.zeros(layout.num_elements, dtype=self.codec().dtype, device=device)
        what = f"the mean gradient in {self.name}"
        watch = FiniteWatch.of_chunks(layout, WATCH_ELEMENTS, device, what)
        return SixteenBitState(group, layout, wire, watch)

    @final
    def aggregate(self, state: SixteenBitState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        world_size = state.group.world_size
        if world_size == 1 or not gradient.numel():
            return gradient
        codec = self.codec()
        with phase("encode"):
            codec.encode(gradient, world_size, state.wire)
        with phase("communicate"):
            state.group.all_reduce(state.wire)
        with phase("decode"):
            codec.decode(state.wire, gradient)
            state.watch.note_values(state.wire)
        return gradient

    @final
    def error_bound(self, gradient: Tensor, world_size: int) -> Tensor:
        return self.codec().error_bound(gradient)

    @final
    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        return all_reduce_bytes([self.codec().bucket_bytes(layout)], world_size)

    @final
    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n = layout.num_elements
        update = Update("replica", n)
        if world_size == 1:
            return [update]
        return [
            CodecWork("encode", 4.0 * n, bytes_moved=CAST_BYTES_MOVED),
            Exchange(ring(world_size), n, bytes_per_element=2.0, name="all_reduce"),
            CodecWork("decode", 4.0 * n, bytes_moved=CAST_BYTES_MOVED),
            update,
        ]


@final
@dataclass(frozen=True)
class Fp16(SixteenBits):
    """All-reduce of IEEE half precision: 5 bits of exponent, which overflows beyond 65504."""

    name = "fp16"

    def codec(self) -> SixteenBitCodec:
        return SixteenBitCodec("fp16")


@final
@dataclass(frozen=True)
class Bf16(SixteenBits):
    """All-reduce of bfloat16: the range of 32 bits, 8 bits of precision. NCCL has it since 2.9.7."""

    name = "bf16"

    def codec(self) -> SixteenBitCodec:
        return SixteenBitCodec("bf16")
