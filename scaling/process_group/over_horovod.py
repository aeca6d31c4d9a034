"""A group that delegates its all-reduces to Horovod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from scaling.errors import LaunchError
from scaling.process_group.base import Group
from scaling.process_group.delegated import DelegatedGroup

Compression = Literal["none", "fp16"]

CARRIED = (torch.float32, torch.float64, torch.float16)


class HorovodGroup(DelegatedGroup):
    """Means over the ranks by `hvd.allreduce`, and the optimizer that takes them by itself.

    Args:
        outer: the same ranks; carries what Horovod does not.
        hvd: the module horovod.torch, started.
        description: how Horovod's ranks are connected.

    Attributes:
        description: the same.
    """

    def __init__(self, outer: Group, hvd: Any, description: str) -> None:
        super().__init__(outer)
        self._hvd = hvd
        self.description = description
        self._num_named = 0

    @classmethod
    def of(cls, group: Group) -> HorovodGroup:
        """Horovod's side of a group. Collective at first use.

        Raises:
            LaunchError: Horovod is not there, or cannot start.
        """
        delegated = group.over("horovod")
        assert isinstance(delegated, HorovodGroup), "the launch offers Horovod under this name"
        return delegated

    def require_carried(self, dtype: torch.dtype, device: torch.device) -> None:
        """Refuses what this Horovod cannot average.

        Raises:
            LaunchError: saying what it can.
        """
        if dtype not in CARRIED:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in CARRIED)
            raise LaunchError(
                f"Horovod cannot average {str(dtype).removeprefix('torch.')}; it averages {allowed}"
            )
        if device.type == "cuda" and not self._hvd.nccl_built():
            raise LaunchError(
                "this Horovod was built without GPU operations; build it on this machine by "
                "`HOROVOD_GPU_OPERATIONS=NCCL make horovod`, or use device: cpu"
            )

    def new_name(self) -> str:
        """A name for a tensor, which the ranks have to agree on. Collective."""
        self._num_named += 1
        return f"scaling.{self._num_named}"

    def count(self, tensors: Sequence[Tensor], compression: Compression) -> None:
        """Meters an all-reduce of each tensor, as it is on the wire."""
        for tensor in tensors:
            if self.world_size > 1 and tensor.numel():
                itemsize = 2 if compression == "fp16" else tensor.element_size()
                rounds = 2 * (self.world_size - 1)
                self.meter.count(tensor.numel() * itemsize * rounds // self.world_size, rounds)

    def average(self, tensor: Tensor, name: str) -> None:
        """Makes `tensor` its mean over the ranks, in place; returns when it may be used.

        Args:
            tensor: flat, of a type that `require_carried` passes.
            name: from `new_name`; none other of that name may be under way.
        """
        self._hvd.allreduce_(tensor, name=name, op=self._hvd.Average)

    def compressor(self, compression: Compression) -> Any:
        """Horovod's own: `compress(tensor)` gives a tensor and a context, `decompress` takes both."""
        return getattr(self._hvd.Compression, compression)

    def optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Sequence[tuple[str, Tensor]],
        compression: Compression,
    ) -> Any:
        """`hvd.DistributedOptimizer` around `optimizer`: averages gradients as backward makes them."""
        return self._hvd.DistributedOptimizer(
            optimizer,
            named_parameters=list(named_parameters),
            compression=self.compressor(compression),
            op=self._hvd.Average,
        )

    def _all_reduce(self, tensor: Tensor) -> None:
        self._hvd.allreduce_(tensor, name="scaling.sum", op=self._hvd.Sum)

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        self._hvd.broadcast_(tensor, source, name="scaling.broadcast")
