"""Aggregation by Horovod, as its users run it.

`horovod`: `hvd.allreduce` of the whole gradient.
1. fp16 only: the gradient is cast (`encode`);
2. Horovod's ranks agree that all are there, and average it, in place (`communicate`);
3. fp16 only: the mean is cast back (`decode`).

`horovod_optimizer`: `hvd.DistributedOptimizer`, which averages tensor by tensor. In a background thread
Horovod packs what is ready in a cycle into one message of up to the fusion threshold. In the overlapped step
it begins with each tensor as soon as backward has made its gradient, and the optimizer's step waits for the
rest; in the eager step it is handed all gradients after backward.

Steps and messages: Horovod's affair. Bytes sent per rank: at least 2(n-1)/n S, that of each message rounded
down, which is what is metered; half of it with fp16. Error: float summation, then a multiplication by 1/n;
with fp16 all of it in 16 bits. Every rank gets the same bits.

The fusion threshold, the cycle time and the timeline are settings of Horovod's start: cells that differ in
them are run by launches of their own.

Reference: A. Sergeev, M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv
1802.05799 (2018); horovod 0.28.1, horovod/torch/mpi_ops.py and horovod/torch/optimizer.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar, final

import torch
from pydantic import Field
from torch import Tensor

from scaling.aggregators.base import Aggregator, DdpPath, PhaseMarker, unmarked
from scaling.aggregators.prediction import all_reduce_bytes, native_all_reduce
from scaling.aggregators.sixteen_bit import SixteenBitCodec
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.collectives.plan import Stage, Update
from scaling.process_group import Group, HorovodGroup
from scaling.process_group.delegated import CARRIED, Compression


@dataclass
class HorovodState(AggregatorState):
    over_horovod: HorovodGroup
    bucket: str

    @property
    def notes(self) -> list[str]:
        return [self.over_horovod.description]


def _begun(group: Group, dtype: torch.dtype, device: torch.device) -> tuple[HorovodGroup, str]:
    """Horovod, started where it is not yet, and a bucket's name; refuses types that it cannot average."""
    over_horovod = HorovodGroup.of(group)
    over_horovod.require_carried(dtype, device)
    return over_horovod, over_horovod.new_name()


S = TypeVar("S", bound=HorovodState)


@dataclass(frozen=True)
class _ByHorovod(Aggregator[S], Generic[S]):
    library = "horovod"
    dtypes = CARRIED
    order_varies = True  # which tensors it fuses, and so how it cuts them, depends on when they came
    modifies_input = True

    compression: Compression = "none"
    fusion_threshold_bytes: Annotated[int, Field(ge=0)] | None = None
    cycle_time_s: Annotated[float, Field(gt=0)] | None = None
    timeline: bool = False

    def __post_init__(self) -> None:
        if self.compression == "fp16":  # a capability of the class but for this parameter
            object.__setattr__(self, "lossy", True)

    def start_up(self) -> dict[str, str]:
        """What is not set is left to the user's environment and to Horovod."""
        settings: dict[str, str] = {}
        if self.fusion_threshold_bytes is not None:
            settings["HOROVOD_FUSION_THRESHOLD"] = str(self.fusion_threshold_bytes)
        if self.cycle_time_s is not None:
            settings["HOROVOD_CYCLE_TIME"] = f"{1e3 * self.cycle_time_s:g}"  # in milliseconds
        if self.timeline:
            settings["HOROVOD_TIMELINE"] = "{launches}/horovod-{world_size}-{repeat}.json"
        return settings

    @final
    def error_bound(self, gradient: Tensor, world_size: int) -> Tensor | None:
        return SixteenBitCodec("fp16").error_bound(gradient) if self.compression == "fp16" else None

    def _message_bytes(self, layout: BucketLayout, itemsize: int) -> list[int]:
        raise NotImplementedError

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        size = 2 if self.compression == "fp16" else itemsize
        return all_reduce_bytes(self._message_bytes(layout, size), world_size)

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        """A ring of all tensors together, as a long enough cycle packs them, and the update by every rank.
        The casts of fp16 are not priced."""
        n = layout.num_elements
        num_sent = n // 2 if self.compression == "fp16" else n
        return [*native_all_reduce([num_sent], world_size, self.name, "horovod"), Update("replica", n)]


@final
@dataclass(frozen=True)
class Horovod(_ByHorovod[HorovodState]):
    """Horovod's all-reduce of the whole gradient after backward."""

    name = "horovod"

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> HorovodState:
        return HorovodState(group, layout, *_begun(group, dtype, device))

    def aggregate(self, state: HorovodState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        if state.group.world_size == 1 or not gradient.numel():
            return gradient
        compressor = state.over_horovod.compressor(self.compression)
        is_cast = self.compression != "none"
        sent, context = gradient, None
        if is_cast:
            with phase("encode"):
                sent, context = compressor.compress(gradient)
        with phase("communicate"):
            state.over_horovod.average(sent, state.bucket)
        state.over_horovod.count([gradient], self.compression)
        if is_cast:
            with phase("decode"):
                gradient.copy_(compressor.decompress(sent, context))
        return gradient

    def _message_bytes(self, layout: BucketLayout, itemsize: int) -> list[int]:
        return [layout.num_elements * itemsize]


@dataclass
class HorovodOptimizerState(HorovodState):
    """The parameters that Horovod's optimizer believes to step: all it uses of them is their gradient."""

    parameters: Sequence[torch.nn.Parameter]
    optimizer: Any  # hvd.DistributedOptimizer


@final
@dataclass(frozen=True)
class HorovodOptimizer(_ByHorovod[HorovodOptimizerState]):
    """Horovod's DistributedOptimizer: tensor by tensor, packed; with step: overlapped while backward runs."""

    name = "horovod_optimizer"
    overlaps = True

    def ddp_path(self) -> DdpPath:
        return "optimizer"

    def wrap_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        layout: BucketLayout,
        parameters: Sequence[Tensor],
        group: Group,
    ) -> Any:
        over_horovod, bucket = _begun(group, parameters[0].dtype, parameters[0].device)
        named = [(f"{bucket}.{name}", p) for name, p in zip(layout.names, parameters, strict=True)]
        return over_horovod.optimizer(optimizer, named, self.compression)

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> HorovodOptimizerState:
        """Wraps an optimizer of parameters that take no memory."""
        over_horovod, bucket = _begun(group, dtype, device)
        element = torch.zeros((), dtype=dtype, device=device)  # of any shape, the empty one too
        parameters = [torch.nn.Parameter(element.expand(shape)) for shape in layout.shapes]
        named = [
            (f"{bucket}.{name}", parameter)
            for name, parameter in zip(layout.names, parameters, strict=True)
            if parameter.numel()
        ]
        optimizer = None
        if group.world_size > 1 and named:
            plain = torch.optim.SGD([parameter for _, parameter in named], lr=0.0)
            optimizer = over_horovod.optimizer(plain, named, self.compression)
        return HorovodOptimizerState(group, layout, over_horovod, bucket, parameters, optimizer)

    def aggregate(
        self, state: HorovodOptimizerState, gradient: Tensor, phase: PhaseMarker = unmarked
    ) -> Tensor:
        if state.optimizer is None:
            return gradient
        for parameter, values in zip(state.parameters, state.layout.views(gradient), strict=True):
            parameter.grad = values
        with phase("communicate"):
            state.optimizer.synchronize()
        # New views: a cast tensor's old one has been moved to the memory of its mean.
        tensors = state.layout.views(gradient)
        state.over_horovod.count(tensors, self.compression)
        if self.compression != "none":
            with phase("decode"):
                for parameter, values in zip(state.parameters, tensors, strict=True):
                    if values.numel() and parameter.grad is not None:
                        values.copy_(parameter.grad)
        return gradient

    def _message_bytes(self, layout: BucketLayout, itemsize: int) -> list[int]:
        return [math.prod(shape) * itemsize for shape in layout.shapes]
