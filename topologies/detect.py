"""Finds the devices of this machine. Links are left empty: nothing here measures them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


def num_usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPU cores that this process may use: its affinity, and its container's quota, rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="utf-8").split()
        return max(1, min(cores, -(-int(allowed) // int(period))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, or its architecture where the name is not to be had."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Main memory as the kernel reports it."""
    try:
        for line in meminfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def nvidia_gpus() -> list[dict[str, Any]]:
    """The machine's NVIDIA GPUs as nvidia-smi lists them: index, name, memory_bytes, driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [parse_gpu_line(line) for line in answer.splitlines() if line.count(",") == 3]


def parse_gpu_line(line: str) -> dict[str, Any]:
    """One line of nvidia-smi's CSV: `0, NVIDIA H200, 143771, 580.159.04`."""
    index, name, mebibytes, driver = (field.strip() for field in line.split(","))
    memory = int(mebibytes) * 2**20 if mebibytes.isdigit() else None
    return {"index": int(index), "name": name, "memory_bytes": memory, "driver": driver}


def detect() -> dict[str, Any]:
    """This machine as a topology: host memory, processor and GPUs, without links."""
    devices: list[dict[str, Any]] = [
        {"id": "host0", "kind": "host_memory", "memory_bytes": memory_bytes()},
        {"id": "cpu0", "kind": "cpu", "name": cpu_model(), "cores": num_usable_cores()},
    ]
    for gpu in nvidia_gpus():
        devices.append(
            {
                "id": f"gpu{gpu['index']}",
                "kind": "gpu",
                "name": gpu["name"],
                "memory_bytes": gpu["memory_bytes"],
            }
        )
    return {"schema_version": SCHEMA_VERSION, "name": platform.node(), "devices": devices, "links": []}
