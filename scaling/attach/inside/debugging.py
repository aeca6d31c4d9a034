"""Switches of torch that find errors and make every step longer: which are on, and arms without them."""

import os
from typing import Any

import torch
import torch.distributed

dist: Any = torch.distributed
_set_anomaly = torch.set_anomaly_enabled
_asked = {"mode": False, "check_nan": True}
"""By the script."""

_is_allowed = [True]


def watch_anomalies() -> None:
    """The script's wish is kept, and followed while the arm allows it."""

    def ask(enabled: bool, check_nan: bool = True) -> None:
        _asked.update(mode=enabled, check_nan=check_nan)
        detect_anomalies(_is_allowed[0])

    torch.set_anomaly_enabled, torch.is_anomaly_enabled = ask, asks_for_anomalies


def asks_for_anomalies() -> bool:
    return _asked["mode"]


def detect_anomalies(is_allowed: bool) -> None:
    _is_allowed[0] = is_allowed
    _set_anomaly(_asked["mode"] and is_allowed, _asked["check_nan"])


def switched_on() -> str:
    on = ["CUDA_LAUNCH_BLOCKING"] if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0") else []
    if dist.is_available() and dist.get_debug_level() == dist.DebugLevel.DETAIL:
        on.append("TORCH_DISTRIBUTED_DEBUG=DETAIL")
    return " and ".join(on)


def switch_off() -> None:
    """For good; to be called before a process group is made and a GPU is used."""
    os.environ.pop("CUDA_LAUNCH_BLOCKING", None)
    if dist.is_available():
        dist.set_debug_level(dist.DebugLevel.OFF)
        dist.set_debug_level = dist.set_debug_level_from_env = lambda *_, **__: None
