"""Groups with the ranks of another group, in which MPI or Horovod carries part of the messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Self

from scaling.errors import LaunchError
from scaling.process_group.base import Group, Message


def _of_outer(name: str) -> Any:
    return lambda group, *values, **options: getattr(group._outer, name)(*values, **options)


class DelegatedGroup(Group):
    """The same ranks as `outer`, and its meter; what a subclass does not carry itself goes by `outer`."""

    library: ClassVar[str]

    def __init__(self, outer: Group) -> None:
        super().__init__(outer.rank, outer.world_size)
        self.meter = outer.meter
        self.through_host = outer.through_host
        self._outer = outer

    @classmethod
    def of(cls, group: Group) -> Self:
        """The same ranks over the library. Collective at first use. LaunchError: the launch lacks it."""
        delegated = group.over(cls.library)
        assert isinstance(delegated, cls), "the launch offers it under this name"
        return delegated

    _exchange = _of_outer("_exchange")
    _all_reduce = _of_outer("_all_reduce")
    _broadcast = _of_outer("_broadcast")
    _reduce_scatter = _of_outer("_reduce_scatter")
    _all_gather = _of_outer("_all_gather")
    barrier = _of_outer("barrier")
    shared_host_buffer = _of_outer("shared_host_buffer")
    wait_until = _of_outer("wait_until")
    largest_of = _of_outer("largest_of")
    share = _of_outer("share")
    can_access_peers = _of_outer("can_access_peers")
    peer_memory = _of_outer("peer_memory")
    all_reduce_host = _of_outer("all_reduce_host")


def _named(*dtypes: torch.dtype) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


SUMMED = (torch.float32, torch.float64, torch.int32, torch.int64)
"""Types that MPI adds. It knows no 16-bit floating point: mpi4py refuses float16, and handed the memory of
bfloat16 it would add the raw bits."""


class MpiGroup(DelegatedGroup):
    """`communicator`: mpi4py's, of these ranks in this order; the group's own from now on."""

    library = "mpi"

    def __init__(self, outer: Group, communicator: Any) -> None:
        super().__init__(outer)
        self._communicator = communicator

    def require_summed(self, dtype: torch.dtype) -> None:
        if dtype not in SUMMED:
            raise LaunchError(
                f"MPI cannot add {_named(dtype)}; it adds {_named(*SUMMED)}: use one of these, or another "
                "aggregator"
            )

    def _all_reduce(self, tensor: Tensor) -> None:
        self.require_summed(tensor.dtype)
        from mpi4py import MPI

        self._communicator.Allreduce(MPI.IN_PLACE, _values(tensor))

    def all_reduce_host(self, tensor: Tensor) -> None:
        self.all_reduce(tensor)

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        self._communicator.Bcast(_bytes(tensor), source)

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        from mpi4py import MPI

        requests = [self._communicator.Irecv(_bytes(tensor), peer) for peer, tensor in receives]
        requests += [self._communicator.Isend(_bytes(tensor), peer) for peer, tensor in sends]
        MPI.Request.Waitall(requests)


def library_version() -> str:
    """Name and version of the MPI that this process has loaded: `Open MPI v5.0.11`."""
    from mpi4py import MPI

    lines = MPI.Get_library_version().replace("\0", "").splitlines()
    return " ".join(lines[0].split(",")[0].split())


def _values(tensor: Tensor) -> Any:
    assert tensor.device.type == "cpu", "MPI is handed host memory"
    return tensor.detach().view(-1).numpy()


def _bytes(tensor: Tensor) -> Any:
    return _values(tensor.detach().view(-1).view(torch.uint8))


Compression = Literal["none", "fp16"]

CARRIED = (torch.float32, torch.float64, torch.float16)


class HorovodGroup(DelegatedGroup):
    """`hvd`: the module horovod.torch, started; `description`: how Horovod's ranks are connected."""

    library = "horovod"

    def __init__(self, outer: Group, hvd: Any, description: str) -> None:
        super().__init__(outer)
        self._hvd = hvd
        self.description = description
        self._num_named = 0

    def require_carried(self, dtype: torch.dtype, device: torch.device) -> None:
        if dtype not in CARRIED:
            raise LaunchError(f"Horovod cannot average {_named(dtype)}; it averages {_named(*CARRIED)}")
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
        """In place, flat; no other of that `new_name` may be under way."""
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
