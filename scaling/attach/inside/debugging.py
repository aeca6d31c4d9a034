"""Switches of torch that find errors and make every step longer: which are on, and an arm without them."""

import os
from typing import Any

import torch
import torch.distributed

dist: Any = torch.distributed


def switched_on() -> list[str]:
    on = ["torch.autograd.set_detect_anomaly"] if torch.is_anomaly_enabled() else []
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        on.append("CUDA_LAUNCH_BLOCKING")
    if dist.is_available() and dist.get_debug_level() == dist.DebugLevel.DETAIL:
        on.append("TORCH_DISTRIBUTED_DEBUG=DETAIL")
    return on


def switch_off() -> None:
    """For good; to be called before a process group is made and a GPU is used."""
    os.environ.pop("CUDA_LAUNCH_BLOCKING", None)
    torch.set_anomaly_enabled(False)

    def nothing(*_: Any, **__: Any) -> None:
        return None

    torch.set_anomaly_enabled = nothing
    if dist.is_available():
        dist.set_debug_level(dist.DebugLevel.OFF)
        dist.set_debug_level = dist.set_debug_level_from_env = nothing
