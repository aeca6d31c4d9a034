"""Memory of one node's GPUs that all of its ranks map: torch's symmetric memory, plainly read and written.

The multicast path of NVSwitch is never taken, and its switches in the environment are left as they are found.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch import Tensor

from scaling.errors import LaunchError
from scaling.process_group.base import PeerMemory


class SymmetricMemory(PeerMemory):
    """A buffer that the other ranks of `group` have mapped. Collective to make.

    Args:
        num_elements, dtype, device: of the buffer.
        group: ranks of one node, each with a CUDA device of its own.

    Raises:
        LaunchError: the driver cannot share the memory.
    """

    def __init__(
        self, num_elements: int, dtype: torch.dtype, device: torch.device, group: dist.ProcessGroup
    ) -> None:
        try:
            whole = symm_mem.empty(max(num_elements, 1), dtype=dtype, device=device)
            self._handle = symm_mem.rendezvous(whole, group)
        except RuntimeError as error:
            raise LaunchError(
                f"cannot share {num_elements * dtype.itemsize / 1e6:.0f} MB between the GPUs: {error}; "
                "use transport: sends"
            ) from error
        self._num_elements, self._dtype = num_elements, dtype
        self.local = whole[:num_elements]

    def of(self, rank: int) -> Tensor:
        """[num_elements] a view of the buffer of that rank."""
        return self._handle.get_buffer(rank, (self._num_elements,), self._dtype)

    def barrier(self, channel: int = 0) -> None:
        """On the device, in the current stream; the host does not wait."""
        self._handle.barrier(channel=channel)
