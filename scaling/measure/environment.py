"""Where and with what a study is run, collected by the machine itself before the first step.

Part of it identifies the measurement: results are never added to a folder whose identity differs. The rest
(host, command, commit, which of the GPUs, where the cores are) is recorded for people.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

import scaling
from scaling.errors import StoreError
from scaling.files.redaction import redacted_command, redacted_document
from topologies.detect import cpu_model, find_gpus, memory_bytes, num_usable_cores, nvidia_gpus, visible_gpus
from topologies.detect_host import SYS, cpu_governors, cpu_list, node_cpus
from topologies.facts import Gpu

SETTING_PREFIXES = (
    *("NCCL_", "CUDA_", "CUBLAS_", "NVIDIA_TF32", "OMP_", "MKL_", "KMP_", "TORCH_"),
    # Horovod's own, besides those with which its launcher gives the ranks their places.
    *(f"HOROVOD_{name}" for name in ("FUSION", "CYCLE", "CACHE", "AUTOTUNE", "HIERARCHICAL", "NUM_NCCL")),
    "SCALING_LINK_",  # how slow a network `launchers.two_hosts` has made
)
NOT_SETTINGS = (
    "OMP_NUM_THREADS",  # the worker sets its thread count itself; it is part of the cell
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",  # torchrun sets it, in workers alone
    *("KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK"),  # scikit-learn sets them when it is imported
    "CUDA_VISIBLE_DEVICES",  # numbers that a batch system deals out anew to each job; recorded by itself
    # What container images set, without effect on a run.
    *("CUDA_HOME", "CUDA_PATH", "CUDA_VERSION", "NCCL_VERSION", "TORCH_CUDA_ARCH_LIST"),
)

IDENTITY = ("cpu", "gpus", "versions", "settings")
IDENTITY_WHERE_KNOWN = ("cpu_governors",)
"""Belong to the identity where both sides have them: older folders do not, nor do some virtual machines."""


def collect(environ: Mapping[str, str] = os.environ, sys_folder: Path = SYS) -> dict[str, Any]:
    uses_gpus = torch.cuda.is_available()
    gpus = nvidia_gpus() if uses_gpus else []
    cudnn, nccl = cast(Any, torch.backends.cudnn), cast(Any, torch.cuda.nccl)  # without types
    return {
        "schema_version": 1,
        "hostname": platform.node(),
        "command": redacted_command(["scaling" if "scaling" in sys.argv[0] else sys.argv[0], *sys.argv[1:]]),
        "cpu": {"model": cpu_model(), "usable_cores": num_usable_cores()},
        "cpu_governors": cpu_governors(sys_folder),
        "numa_nodes": [
            {"number": number, "cpus": cpu_list(cpus)} for number, cpus in node_cpus(sys_folder).items()
        ],
        "memory_bytes": memory_bytes(),
        "gpus": [{"name": gpu["name"], "memory_bytes": gpu["memory_bytes"]} for gpu in gpus],
        "versions": {
            "scaling": scaling.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": importlib.metadata.version("numpy"),
            "cuda": torch.version.cuda,
            "cudnn": cudnn.version() if gpus else None,
            "nccl": ".".join(map(str, nccl.version())) if gpus else None,
            "driver": gpus[0]["driver"] if gpus else None,
            "kernel": platform.release(),
        },
        "settings": settings(environ),
        "variables": variables(environ),
        "cuda_visible_devices": environ.get("CUDA_VISIBLE_DEVICES"),
        "gpu_subset": gpu_subset(find_gpus()[0], environ) if uses_gpus else [],
        "git": git_state(Path(__file__).parent),
    }


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables(environ).items() if name not in NOT_SETTINGS}


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    known = {name: value for name, value in sorted(environ.items()) if name.startswith(SETTING_PREFIXES)}
    return dict(redacted_document(known))


def gpu_subset(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """Which of the machine's GPUs the workers can use, in CUDA's order; None where that is not known."""
    visible = visible_gpus(gpus, environ)
    if visible is None:
        return None
    return [
        {
            "name": gpu.name,
            "uuid": gpu.uuid or None,
            "pci_bus_id": gpu.bus_id,
            "pcie_generation": gpu.pcie.generation if gpu.pcie else None,
            "pcie_width": gpu.pcie.width if gpu.pcie else None,
            "pcie_current_width": gpu.pcie.current_width if gpu.pcie else None,
        }
        for gpu in visible
    ]


def git_state(folder: Path) -> dict[str, Any] | None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        changes = git("diff", "HEAD")
        digest = hashlib.sha256(changes.encode()).hexdigest()[:12] if changes else None
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changes), "changes": digest}
    except (OSError, subprocess.SubprocessError):
        return None


def require_same(recorded: Mapping[str, Any], current: Mapping[str, Any], folder: Path) -> None:
    """StoreError: names the first field that differs, with both values."""
    known = [key for key in IDENTITY_WHERE_KNOWN if None not in (recorded.get(key), current.get(key))]
    for key in (*IDENTITY, *known):
        if difference := _first_difference(recorded.get(key), current.get(key), key):
            name, before, now = difference
            raise StoreError(
                f"{folder} was measured in another environment: {name} was {before!r} and is {now!r}; "
                "runs of different environments are never merged, so use another --out"
            )


def _first_difference(before: Any, now: Any, name: str) -> tuple[str, Any, Any] | None:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            if difference := _first_difference(before.get(key), now.get(key), f"{name}.{key}"):
                return difference
        return None
    return None if before == now else (name, before, now)
