"""16-bit all-reduce: `fp16` (5 bits of exponent, 10 of mantissa) and `bf16` (8 and 7).

The gradient is cast to 16 bits and divided by the number of ranks, before the sum, which could overflow;
summed by the library in 16 bits; and cast back.

Steps and messages: the library's affair. Bytes sent per rank: 2(n-1)/n times 2 N, as metered. At world size 1
nothing is cast. Error property: no residual; each value is rounded once, and the sum after each of its
additions, by at most 2**-11 (fp16) or 2**-8 (bf16) of it; fp16 overflows beyond 65504, which is an error, and
loses what is below 6e-8. The library gives every rank the same bits.

Reference: PyTorch, torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py (fp16_compress_hook,
bf16_compress_hook), whose bits these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker, unmarked
from scaling.aggregators.prediction import all_reduce_bytes
from scaling.aggregators.state import WatchedState, require_same_on_ranks
from scaling.bucket import BucketLayout
from scaling.codecs.base import Codec, require_exchange
from scaling.codecs.finite import WATCH_ELEMENTS, FiniteWatch
from scaling.collectives.plan import CodecWork, Exchange, Stage
from scaling.collectives.ring import ring
from scaling.process_group import Group

Form = Literal["fp16", "bf16"]
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class SixteenBitCodec(Codec):
    name: ClassVar[str] = "16 bits"
    summable: ClassVar[bool] = True
    divisible: ClassVar[bool] = True

    form: Form

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self.form]

    def bucket_bytes(self, layout: BucketLayout) -> int:
        return 2 * layout.num_elements

    def error_bound(self, values: Tensor) -> Tensor:
        """What one rank's values [n] add at most to the error of the mean, float64: twice a rounding of them,
        for every rank's cast, division and additions, and the smallest number where they are below it."""
        info = torch.finfo(self.dtype)
        return values.double().abs().mul_(info.eps).add_(2 * info.smallest_normal * info.eps)

    def encode(self, values: Tensor, world_size: int, wire: Tensor) -> None:
        """Writes values [n] / world_size to `wire` [n]."""
        wire.copy_(values)
        wire.div_(world_size)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Writes the sum of all ranks' wires, which is the mean, to `out` [n]."""
        out.copy_(wire)


CAST_BYTES_MOVED = 2.5  # For each byte of the gradient, to cast and to divide; back it is 1.5


@dataclass
class SixteenBitState(WatchedState):
    wire: Tensor  # [num_elements] of 16 bits


@dataclass(frozen=True)
class SixteenBits(Aggregator[SixteenBitState]):
    form: ClassVar[Form]
    lossy = True
    modifies_input = True
    overlaps = True
    graph_capturable = True

    def __post_init__(self) -> None:
        require_exchange(self.codec(), "all_reduce")

    def codec(self) -> SixteenBitCodec:
        return SixteenBitCodec(self.form)

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> SixteenBitState:
        require_same_on_ranks(layout, group)
        wire = torch.zeros(layout.num_elements, dtype=self.codec().dtype, device=device)
        what = f"the mean gradient in {self.name}"
        watch = FiniteWatch.of_chunks(layout, WATCH_ELEMENTS, device, what)
        return SixteenBitState(group, layout, wire, watch=watch)

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
    def exchange_stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n = layout.num_elements
        return [
            CodecWork("encode", 4.0 * n, bytes_moved=CAST_BYTES_MOVED),
            Exchange(ring(world_size), n, bytes_per_element=2.0, name="all_reduce"),
            CodecWork("decode", 4.0 * n, bytes_moved=CAST_BYTES_MOVED),
        ]


@final
@dataclass(frozen=True)
class Fp16(SixteenBits):
    """All-reduce of IEEE half precision: 5 bits of exponent, which overflows beyond 65504."""

    name = form = "fp16"


@final
@dataclass(frozen=True)
class Bf16(SixteenBits):
    """All-reduce of bfloat16: the range of 32 bits, 8 bits of precision. NCCL has it since 2.9.7."""

    name = form = "bf16"
