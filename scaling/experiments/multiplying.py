"""How numbers are multiplied: float32, TF32 (float32 tensors, fewer digits in products) or bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from scaling.experiments.base import LeftOutError

TF32_CAPABILITY = (8, 0)
"""The first compute capability that has it."""


def dtype_of(precision: str) -> torch.dtype:
    """The tensors' type; TF32 is a way to multiply float32."""
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


@contextmanager
def multiplying(precision: str, device: torch.device) -> Iterator[None]:
    """Within it float32 is multiplied as TF32, if `precision` says so, else as float32.

    Raises:
        LeftOutError: the device has no TF32.
    """
    if precision == "tf32":
        if device.type != "cuda":
            raise LeftOutError("TF32 is a number format of GPUs")
        if torch.cuda.get_device_capability(device) < TF32_CAPABILITY:
            raise LeftOutError("this GPU has no TF32, which came with compute capability 8.0")
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
