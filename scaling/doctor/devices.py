"""GPUs, the access between them, and NCCL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch

from scaling.doctor.line import CheckResult, failure, ok, warning
from topologies.detect import nvidia_gpus


@dataclass(frozen=True)
class Gpus:
    listed: Sequence[Mapping[str, Any]]  # as nvidia-smi has them: name, memory_bytes, driver
    usable: int  # how many torch can use
    torch_cuda: str | None  # the CUDA version that torch was built for, None if for none
    nccl: str | None  # the version that torch brings, None without GPUs
    apart: Sequence[tuple[int, int]]  # the first cannot access the second's memory (torch's numbers)


def look() -> Gpus:
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    pairs = permutations(range(usable), 2)
    apart = [(a, b) for a, b in pairs if not torch.cuda.can_device_access_peer(a, b)]
    nccl: Any = torch.cuda.nccl  # torch ships it without types
    version = ".".join(map(str, nccl.version())) if usable else None
    return Gpus(nvidia_gpus(), usable, torch.version.cuda, version, apart)


def devices(gpus: Gpus, num_cores: int) -> CheckResult:
    if gpus.usable:
        names = sorted({str(gpu["name"]) for gpu in gpus.listed}) or ["GPU"]
        driver = f", driver {gpus.listed[0]['driver']}" if gpus.listed else ""
        text = f"{gpus.usable} x {' and '.join(names)}, CUDA {gpus.torch_cuda}{driver}; {num_cores} cores"
        if gpus.listed and len(gpus.listed) != gpus.usable:
            return warning("devices", f"{text}; {len(gpus.listed)} are there", "see CUDA_VISIBLE_DEVICES")
        return ok("devices", text)
    if not gpus.listed:
        return ok("devices", f"no GPU: CPU processes over Gloo; {num_cores} cores")
    reason, fix = f"(CUDA {gpus.torch_cuda}) cannot use them", "update the driver, or install an older torch"
    if gpus.torch_cuda is None:
        reason, fix = "was built without CUDA", "install torch for CUDA"
    listed = f"{len(gpus.listed)} GPUs, driver {gpus.listed[0]['driver']}"
    return failure("devices", f"{listed}, but torch {reason}", f"{fix}; or use device=cpu")


def peer_access(gpus: Gpus, environ: Mapping[str, str]) -> CheckResult:
    if gpus.usable < 2:
        return ok("peer access", "not needed: fewer than two GPUs")
    if environ.get("NCCL_P2P_DISABLE", "0") not in ("", "0"):
        fix = "unset it, or use peer_access=false in studies"
        return warning("peer access", "NCCL_P2P_DISABLE is set: NCCL goes through host memory", fix)
    if not gpus.apart:
        return ok("peer access", f"between all {gpus.usable} GPUs")
    pairs = ", ".join(f"{a} to {b}" for a, b in gpus.apart[:6]) + (", ..." if len(gpus.apart) > 6 else "")
    fix = "enable it (IOMMU off, GPUs under one root), or measure the machine as it is: peer_access=false"
    return warning("peer access", f"none from GPU {pairs}: these go through host memory", fix)


def nccl(gpus: Gpus, environ: Mapping[str, str]) -> CheckResult:
    if gpus.nccl is None:
        return ok("NCCL", "not needed: no GPUs")
    names = sorted(name for name in environ if name.startswith("NCCL_") and name != "NCCL_VERSION")
    if names:
        variables = ", ".join(f"{name}={environ[name]}" for name in names)
        return warning(
            "NCCL", f"{gpus.nccl}, told {variables}", "unset what is not meant: it counts in every run"
        )
    return ok("NCCL", gpus.nccl)
