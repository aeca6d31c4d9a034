"""Aggregation over MPI in host memory, as CNTK did it in the paper's time.

`mpi`, one all-reduce of the whole gradient: every rank copies its gradient to pinned host memory (`d2h`);
MPI_Allreduce adds the ranks' buffers in place (`communicate`), and each rank divides by n (`reduce`); every
rank copies the mean back (`h2d_result`) and takes the step. In CPU processes the gradient is where MPI wants
it: no copies. Steps and messages: MPI's affair; predictions price what its source says that it chooses
(`scaling.collectives.mpi_library`). Bytes sent per rank: at least 2(n-1)/n S, which is what is metered.
Error: float summation in the library's order; every rank gets the same bits.

`mpi_one_bit`, the stripes of `scaling.aggregators.one_bit` over MPI_Isend and MPI_Irecv: stripes are encoded
on the device, copied to pinned host memory (`d2h`), sent and received (`communicate`), copied to the device
(`h2d_result`), decoded and summed there; the quantised sums go the same way. Steps, bytes and error property
are those of `one_bit`.

References: CNTK, Source/SGDLib/SimpleDistGradAggregator.h and Source/1BitSGD/AllReduceDistGradAggregator.h;
S. Shi, Q. Wang, P. Xu, X. Chu, "Benchmarking State-of-the-Art Deep Learning Software Tools", arXiv
1608.07249v7 (2017). Differences: CNTK all-reduces tensor by tensor, the small ones packed, so that copies and
sums overlap (`cntk_32bit` does, over Gloo); `mpi` makes one message of all. Both deliver the mean, CNTK the
sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.base import DTYPES, Aggregator, PhaseMarker, unmarked
from scaling.aggregators.one_bit import OneBitState, StripedOneBit
from scaling.aggregators.prediction import (
    all_reduce_bytes,
    copies_to_ranks,
    native_all_reduce,
    rows_from_host,
    rows_to_host,
)
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.collectives.plan import CodecWork, Exchange, Stage
from scaling.process_group import Group, Message, MpiGroup
from scaling.process_group.delegated import SUMMED

DIVIDE_BYTES_MOVED = 2.0  # in host memory for each byte that is divided: read and written


@dataclass
class MpiState(AggregatorState):
    over_mpi: MpiGroup
    on_host: Tensor | None  # [num_elements], pinned; None where the gradient is in host memory itself


@final
@dataclass(frozen=True)
class Mpi(Aggregator[MpiState]):
    """MPI's all-reduce of the whole gradient in pinned host memory; needs workers started by MPI."""

    name = "mpi"
    modifies_input = True
    library = "mpi"
    dtypes = tuple(dtype for dtype in DTYPES if dtype in SUMMED)

    def start(self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device) -> MpiState:
        """Reserves the host memory; refuses types that MPI cannot add, bfloat16 and float16 among them."""
        over_mpi = MpiGroup.of(group)
        over_mpi.require_summed(dtype)
        is_cuda = device.type == "cuda"
        on_host = torch.empty(layout.num_elements, dtype=dtype, pin_memory=True) if is_cuda else None
        return MpiState(group, layout, over_mpi, on_host)

    def aggregate(self, state: MpiState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        world_size = state.group.world_size
        if world_size == 1:
            return gradient
        values = gradient if state.on_host is None else state.on_host
        if state.on_host is not None:
            with phase("d2h"):
                _down([(gradient, state.on_host)])
        with phase("communicate"):
            state.over_mpi.all_reduce(values)
        with phase("reduce"):
            values.div_(world_size)
        if state.on_host is not None:
            with phase("h2d_result"):
                # The buffer is written again only when the next gradient is there, behind this copy.
                gradient.copy_(state.on_host, non_blocking=True)
            state.group.meter.count(2 * gradient.nbytes, 2)
        return gradient

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        return all_reduce_bytes([layout.num_elements * itemsize], world_size)

    def exchange_stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n = layout.num_elements
        return [
            replace(rows_to_host(n, world_size), for_gpus=True),
            *native_all_reduce([n], world_size, "all_reduce", library="mpi"),
            CodecWork("divide", 4.0 * n, where="host", bytes_moved=DIVIDE_BYTES_MOVED),
            replace(copies_to_ranks(n, world_size), for_gpus=True),
        ]


class MpiOneBitState(OneBitState):
    def __init__(
        self, of: MpiOneBit, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(of, layout, group, dtype, device)
        self.over_mpi = MpiGroup.of(group)
        longest = max(self.buffers.stripes.words)
        count = group.world_size if device.type == "cuda" else 0

        def pinned() -> list[Tensor]:
            return [torch.empty(longest, dtype=torch.int32, pin_memory=True) for _ in range(count)]

        # [rank] words; none where the messages are in host memory themselves
        self.sent, self.received = pinned(), pinned()


@final
@dataclass(frozen=True)
class MpiOneBit(StripedOneBit):
    """CNTK's 1-bit SGD with messages over MPI, through pinned host memory; needs workers started by MPI."""

    name = "mpi_one_bit"
    state_class = MpiOneBitState
    overlaps = False
    graph_capturable = False
    library = "mpi"

    def delegated(self, stages: list[Stage]) -> list[Stage]:
        return [part for stage in stages for part in _through_host(stage)]

    def exchange(
        self, state: OneBitState, sends: list[Message], receives: list[Message], phase: PhaseMarker
    ) -> None:
        assert isinstance(state, MpiOneBitState)
        if not state.sent:
            with phase("communicate"):
                state.over_mpi.exchange(sends, receives)
            return
        down = [(words, state.sent[peer][: words.numel()]) for peer, words in sends]
        up = [(state.received[peer][: words.numel()], words) for peer, words in receives]
        with phase("d2h"):
            _down(down)
        with phase("communicate"):
            state.over_mpi.exchange(
                [Message(message.peer, host) for message, (_, host) in zip(sends, down, strict=True)],
                [Message(message.peer, host) for message, (host, _) in zip(receives, up, strict=True)],
            )
        with phase("h2d_result"):
            for host, words in up:
                # Received into again only after a later `_down`, which waits for this copy too.
                words.copy_(host, non_blocking=True)
        copied = [words.nbytes for words, _ in down] + [words.nbytes for _, words in up]
        state.group.meter.count(sum(copied), len(copied))


def _through_host(stage: Stage) -> list[Stage]:
    if not isinstance(stage, Exchange):
        return [stage]
    n = stage.schedule.world_size
    sent = stage.num_elements * (n - 1) // n**2
    down, up = (
        replace(copies, bytes_per_element=stage.bytes_per_element, for_gpus=True)
        for copies in (rows_to_host(sent, n), rows_from_host(sent, n))
    )
    return [down, replace(stage, library="mpi", native=False), up]


def _down(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copies tensors of a device to pinned ones; returns when they may be read."""
    for source, target in pairs:
        target.copy_(source, non_blocking=True)
    torch.cuda.current_stream().synchronize()
