"""Where and with what a study is run, collected by the machine itself before the first step.

Part of it identifies the measurement: hardware, drivers, versions, settings. Results are never added to a
folder whose identity differs; the rest (host, time, command, commit) is recorded for people.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import scaling
from scaling.errors import StoreError
from topologies.detect import cpu_model, memory_bytes, num_usable_cores, nvidia_gpus

SETTING_PREFIXES = ("NCCL_", "CUDA_", "CUBLAS_", "NVIDIA_TF32", "OMP_", "MKL_", "KMP_", "TORCH_")
NOT_SETTINGS = (
    "OMP_NUM_THREADS",  # the worker sets its thread count itself; it is part of the cell
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",  # torchrun sets it, in workers alone
    *("KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK"),  # scikit-learn sets them when it is imported
    "CUDA_VISIBLE_DEVICES",  # numbers that a batch system deals out anew to each job; recorded by itself
    # What container images set, without effect on a run.
    *("CUDA_HOME", "CUDA_PATH", "CUDA_VERSION", "NCCL_VERSION", "TORCH_CUDA_ARCH_LIST"),
)

IDENTITY = ("cpu", "gpus", "versions", "settings")


def collect(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Everything, as environment.json holds it."""
    gpus = nvidia_gpus() if torch.cuda.is_available() else []
    return {
        "schema_version": 1,
        "hostname": platform.node(),
        "command": " ".join(["scaling" if "scaling" in sys.argv[0] else sys.argv[0], *sys.argv[1:]]),
        "cpu": {"model": cpu_model(), "usable_cores": num_usable_cores()},
        "memory_bytes": memory_bytes(),
        "gpus": [{"name": gpu["name"], "memory_bytes": gpu["memory_bytes"]} for gpu in gpus],
        "versions": {
            "scaling": scaling.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": importlib.metadata.version("numpy"),
            "cuda": torch.version.cuda,
            "cudnn": _call(torch.backends.cudnn.version) if gpus else None,
            "nccl": ".".join(map(str, _call(torch.cuda.nccl.version))) if gpus else None,
            "driver": gpus[0]["driver"] if gpus else None,
            "kernel": platform.release(),
        },
        "settings": settings(environ),
        "cuda_visible_devices": environ.get("CUDA_VISIBLE_DEVICES"),
        "git": git_state(Path(__file__).parent),
    }


def _call(function: Callable[[], Any]) -> Any:
    """Calls a function that torch ships without types."""
    return function()


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that change how fast or how exactly things run."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(SETTING_PREFIXES) and name not in NOT_SETTINGS
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether files differ from it; None outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def require_same(recorded: Mapping[str, Any], current: Mapping[str, Any], folder: Path) -> None:
    """Refuses to add measurements of one environment to those of another.

    Raises:
        StoreError: naming the first field that differs, with both values.
    """
    for key in IDENTITY:
        difference = _first_difference(recorded.get(key), current.get(key), key)
        if difference:
            name, before, now = difference
            raise StoreError(
                f"{folder} was measured in another environment: {name} was {before!r} and is {now!r}; "
                "runs of different environments are never merged, so use another --out"
            )


def _first_difference(before: Any, now: Any, name: str) -> tuple[str, Any, Any] | None:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            found = _first_difference(before.get(key), now.get(key), f"{name}.{key}")
            if found:
                return found
        return None
    return None if before == now else (name, before, now)
