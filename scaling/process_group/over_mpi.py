"""A group that sends its messages through MPI, from and to host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scaling.errors import LaunchError
from scaling.process_group.base import Group, Message
from scaling.process_group.delegated import DelegatedGroup

SUMMED = (torch.float32, torch.float64, torch.int32, torch.int64)
"""Types that MPI adds. It knows no 16-bit floating point: mpi4py refuses float16, and handed the memory of
bfloat16 it would add the raw bits."""


class MpiGroup(DelegatedGroup):
    """All-reduce, broadcast and messages of host tensors by mpi4py's buffer calls.

    Args:
        outer: the same ranks; carries what MPI does not.
        communicator: mpi4py's, of these ranks in this order; the group's own from now on.
    """

    def __init__(self, outer: Group, communicator: Any) -> None:
        super().__init__(outer)
        self._communicator = communicator

    @classmethod
    def of(cls, group: Group) -> MpiGroup:
        """MPI's side of a group. Collective at first use.

        Raises:
            LaunchError: the launch was not started by MPI.
        """
        delegated = group.over("mpi")
        assert isinstance(delegated, MpiGroup), "the launch offers MPI under this name"
        return delegated

    def require_summed(self, dtype: torch.dtype) -> None:
        """Refuses a type that MPI cannot add.

        Raises:
            LaunchError: naming the type and the allowed ones.
        """
        if dtype not in SUMMED:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in SUMMED)
            raise LaunchError(
                f"MPI cannot add {str(dtype).removeprefix('torch.')}; it adds {allowed}: "
                "use one of these, or another aggregator"
            )

    def _all_reduce(self, tensor: Tensor) -> None:
        self.require_summed(tensor.dtype)
        from mpi4py import MPI

        self._communicator.Allreduce(MPI.IN_PLACE, _values(tensor))

    def all_reduce_host(self, tensor: Tensor) -> None:
        """By MPI, as all its tensors are in host memory."""
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
    """The tensor's memory, with its type, as mpi4py takes it."""
    assert tensor.device.type == "cpu", "MPI is handed host memory"
    return tensor.detach().view(-1).numpy()


def _bytes(tensor: Tensor) -> Any:
    """The tensor's memory as bytes: of any type, and a message is not added to."""
    return _values(tensor.detach().view(-1).view(torch.uint8))
