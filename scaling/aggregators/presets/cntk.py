"""CNTK: 1-bit SGD over MPI, and its plain 32-bit aggregation.

`cntk` (AllReduceDistGradAggregator, gradientBits=1): as `one_bit`, with columns as CNTK cuts
them where its network is written in BrainScript. A convolution's column there is a row of its filter: 12
bytes on the wire for the 20 of five 32-bit values, the same 12 for three. The ratio of 32-bit gradients to
what is sent, 4 R over 8 + 4 ceil(R / 32), both summed over the columns of R rows, is so
    FCN-R      30.8    weight matrices of 1024 to 4096 rows
    AlexNet-R   1.73   nearly all in 5 x 5 filters
    ResNet-56   1.00   3 x 3 filters; 13.4 in `one_bit`'s view, that of CNTK's ResNets written in NDL
Steps, bytes and error property: those of `one_bit`.

`cntk_32bit` (SimpleDistGradAggregator, gradientBits=32, CNTK's default):
1. Tensors of up to 32 KiB are packed into one message, the first; every other is one of its own.
2. Each message is copied to pinned host memory (`d2h`), all-reduced there, and copied back (`h2d_result`);
   the next one is copied down while this one is reduced. transport "device" all-reduces on the device.
3. Every rank takes the step.
Messages: the number of larger tensors, and 1 if there are small ones. Bytes sent per rank: 2(n-1)/n S, that
of each message rounded down to whole bytes. Error: the library's float summation; the ranks agree bit for
bit.

Both deliver the sum in CNTK, whose learning rate is per sample; ours deliver the mean.

References: CNTK, Source/1BitSGD/AllReduceDistGradAggregator.h, Source/SGDLib/SimpleDistGradAggregator.h,
DEFAULT_PACK_THRESHOLD_SIZE_IN_BYTES in Source/Common/Include/Constants.h; F. Seide, H. Fu, J. Droppo, G. Li,
D. Yu, "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech
DNNs", Interspeech 2014.

Differences. `cntk`: those of `one_bit`; ours exchanges on the device, CNTK in host memory over MPI.
`cntk_32bit`: CNTK calls MPI_Allreduce, ours Gloo's all-reduce of host memory; with "device" CNTK calls
NCCL's, as ours does on GPUs. In CPU processes CNTK reduces in place; ours makes the copies there too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, Stated, unmarked
from scaling.aggregators.one_bit import StripedOneBit
from scaling.aggregators.prediction import all_reduce_bytes, copies_to_ranks, native_all_reduce, rows_to_host
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout, Span
from scaling.codecs.one_bit import View
from scaling.collectives.execute import side_stream
from scaling.collectives.plan import CodecWork, Stage
from scaling.process_group import Group

PACK_THRESHOLD_BYTES = 32 * 1024
HOST_BYTES_MOVED = 5.5
"""In host memory for each byte that a rank sends in an all-reduce there: written to a socket and read from it
by copies of the kernel, and every other one added."""


@final
@dataclass(frozen=True)
class Cntk(StripedOneBit):
    """CNTK's 1-bit SGD with CNTK's own columns, in which convolutions are hardly compressed."""

    name = "cntk"

    view: View = "cntk"


class MessagesState(AggregatorState):
    """The gradient as messages, each with its own room in host memory where it is reduced there."""

    def __init__(
        self, of: Cntk32Bit, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(group, layout)
        # Small tensors' values are one behind the other in `packed`; the larger ones are a message each.
        self.packed_spans, self.spans = _packed_and_not(layout, dtype.itemsize)
        self.packed = torch.empty(_length(self.packed_spans), dtype=dtype, device=device)
        is_cuda, sizes = device.type == "cuda", _messages(layout, dtype.itemsize)
        rooms = sizes if of.transport == "host" else []
        self.on_host = [torch.empty(size, dtype=dtype, pin_memory=is_cuda) for size in rooms]
        self.down, self.up = side_stream(device), side_stream(device)


@final
@dataclass(frozen=True)
class Cntk32Bit(Stated[MessagesState]):
    """CNTK's 32-bit aggregation: small tensors packed, the others one by one, through pinned host memory.

    `transport`: where messages are reduced: "host" memory, or the "device"."""

    name = "cntk_32bit"
    state_class = MessagesState
    modifies_input = True

    transport: Literal["host", "device"] = "host"

    def aggregate(self, state: MessagesState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        if state.group.world_size == 1:
            return gradient
        small = [gradient[start:stop] for start, stop in state.packed_spans]
        messages = [state.packed] * bool(small) + [gradient[start:stop] for start, stop in state.spans]
        with phase("encode"):
            if small:
                torch.cat(small, out=state.packed)
        if self.transport == "host":
            _reduce_on_host(state, messages, phase)
        else:
            with phase("communicate"):
                for message in messages:
                    state.group.all_reduce(message)
        with phase("decode"):
            for tensor, packed in zip(small, torch.split(state.packed, [*map(len, small)]), strict=True):
                tensor.copy_(packed)
        with phase("reduce"):
            gradient.div_(state.group.world_size)
        return gradient

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        sizes = [itemsize * size for size in _messages(layout, itemsize)]
        copied = 2 * sum(sizes) if self.transport == "host" and world_size > 1 else 0
        return copied + all_reduce_bytes(sizes, world_size)

    def exchange_stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n = layout.num_elements
        if self.transport == "device":
            return [*native_all_reduce(_messages(layout, itemsize=4), world_size, self.name)]
        sent_bytes = 4.0 * n * 2 * (world_size - 1) / world_size
        rings = native_all_reduce(_messages(layout, itemsize=4), world_size, "all_reduce", "gloo")
        all_reduce = CodecWork(
            "all_reduce", sent_bytes, where="host", bytes_moved=HOST_BYTES_MOVED, messages=tuple(rings)
        )
        return [rows_to_host(n, world_size), all_reduce, copies_to_ranks(n, world_size)]


def _packed_and_not(layout: BucketLayout, itemsize: int) -> tuple[list[Span], list[Span]]:
    small: list[Span] = []
    large: list[Span] = []
    for start, stop in layout.spans:
        if start < stop:
            (small if (stop - start) * itemsize <= PACK_THRESHOLD_BYTES else large).append((start, stop))
    return small, large


def _messages(layout: BucketLayout, itemsize: int) -> list[int]:
    small, large = _packed_and_not(layout, itemsize)
    return [_length(small)] * bool(small) + [stop - start for start, stop in large]


def _length(spans: list[Span]) -> int:
    return sum(stop - start for start, stop in spans)


def _reduce_on_host(state: MessagesState, messages: list[Tensor], phase: PhaseMarker) -> None:
    pairs = list(zip(messages, state.on_host, strict=True))
    down, up = state.down, state.up
    if down is not None and up is not None:
        down.wait_stream(torch.cuda.current_stream())
        up.wait_stream(torch.cuda.current_stream())

    def copy_down(index: int) -> None:
        message, host = pairs[index]
        with torch.cuda.stream(down):
            host.copy_(message, non_blocking=True)

    with phase("d2h"):
        if pairs:
            copy_down(0)
    for index, (message, host) in enumerate(pairs):
        with phase("d2h"):
            if down is not None:
                down.synchronize()
            if index + 1 < len(pairs):
                copy_down(index + 1)
        with phase("communicate"):
            state.group.all_reduce_host(host)
        with phase("h2d_result"), torch.cuda.stream(up):
            message.copy_(host, non_blocking=True)
        state.group.meter.count(2 * host.nbytes, 2)
    if up is not None:
        with phase("h2d_result"):
            torch.cuda.current_stream().wait_stream(up)
