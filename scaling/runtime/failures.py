"""Of what kind the failure of a cell is."""

from __future__ import annotations

import torch

from scaling.errors import DiskFullError
from scaling.store.failures import DEVICE_LOST, DISK_FULL, OTHER_FAILURE, OUT_OF_MEMORY


def failure_kind(error: Exception, device: torch.device) -> str:
    """As it is recorded of the run (`scaling.store.failures`)."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return OUT_OF_MEMORY
    if isinstance(error, DiskFullError):
        return DISK_FULL
    return DEVICE_LOST if device.type == "cuda" and _is_lost(device) else OTHER_FAILURE


def _is_lost(device: torch.device) -> bool:
    """Whether the driver reports an earlier error to whatever comes next. A query waits for nothing."""
    try:
        torch.cuda.default_stream(device).query()
    except RuntimeError:
        return True
    return False
