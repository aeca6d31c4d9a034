"""Finds the devices and links of this machine; nothing here measures them (`scaling topology probe` does)."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from topologies import detect_nvml, detect_smi
from topologies.detect_host import SYS, bridge_link, busy_ratio, bytes_in, pci_place, read_host, text_of
from topologies.facts import OTHER_PEERS, Facts, Gpu


def num_usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPU cores that this process may use: its affinity, and its container's quota, rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="utf-8").split()
        return max(1, min(cores, -(-int(allowed) // int(period))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


BUSY_RATIO = 0.25  # programs that take more of the cores disturb what is measured beside them


def load_text(busy: Callable[[Collection[int]], float | None] = busy_ratio) -> str:
    """What disturbs a measurement now: `other programs take 85% of the cores`; "" where nothing does."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    ratio = busy(cores)
    return f"other programs take {ratio:.0%} of the cores" if ratio is not None and ratio > BUSY_RATIO else ""


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, or its architecture where the name is not to be had."""
    match = re.search(r"^model name[^:]*:(.*)$", text_of(cpuinfo), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def memory_bytes(meminfo: Path = Path("/proc/meminfo"), what: str = "MemTotal") -> int | None:
    """Main memory as the kernel reports it; `MemAvailable` is what can be had without swapping."""
    return bytes_in(meminfo, what)


def nvidia_gpus() -> list[dict[str, Any]]:
    """The machine's NVIDIA GPUs as nvidia-smi lists them: index, name, memory_bytes, driver."""
    query = ("--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits")
    lines = detect_smi.nvidia_smi(*query).splitlines()
    return [parse_gpu_line(line) for line in lines if line.count(",") == 3]


def parse_gpu_line(line: str) -> dict[str, Any]:
    """One line of nvidia-smi's CSV: `0, NVIDIA H200, 143771, 580.159.04`."""
    index, name, mebibytes, driver = (field.strip() for field in line.split(","))
    memory = int(mebibytes) * 2**20 if mebibytes.isdigit() else None
    return {"index": int(index), "name": name, "memory_bytes": memory, "driver": driver}


def detect() -> dict[str, Any]:
    """This machine as a machine file with nominal figures (docs/reference/machine-files.md)."""
    from topologies.detected_file import machine_file  # networkx takes a while to import

    return machine_file(read_facts())


def read_facts(sys: Path = SYS) -> Facts:
    """Processors, memories, GPUs and their links, with what could not be found out."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    host = read_host(cpu_model(), usable, num_usable_cores(), memory_bytes(), sys)
    gpus, missing = find_gpus()
    places = {gpu.bus_id: pci_place(gpu.bus_id, sys) for gpu in gpus}
    roots = {place.bridges[0] for place in places.values() if place.bridges}
    bridges = {root: link for root in sorted(roots) if (link := bridge_link(root, sys))}
    if len(host.nodes) > 1:
        lost = [gpu.id for gpu in gpus if places[gpu.bus_id].numa_node is None]
        missing += [f"which NUMA node {', '.join(lost)} belong to: they are put on the first"] if lost else []
    return Facts(platform.node(), host, gpus, places, bridges, tuple(missing))


def find_gpus() -> tuple[tuple[Gpu, ...], list[str]]:
    """The GPUs by NVML, or by nvidia-smi where that fails or is missing; and what neither tells."""
    gpus = _gpus_of_nvml()
    if gpus is None:
        gpus = detect_smi.read_gpus()
        why = "needs NVML: pip install 'scaling-study[gpu]'"
        missing = [f"bandwidth of the GPUs' memories, and where each NVLink ends: {why}"] if gpus else []
        return gpus, [*missing, *_untold(gpus)]
    if len(gpus) > 1 and not any(gpu.nvlinks or gpu.switch_links or gpu.unseen_links for gpu in gpus):
        # Virtual machines may hide the links' ends, but not which pairs they join.
        with_links = detect_smi.with_links(gpus)
        gpus = tuple(
            replace(new, peers=new.peers if gpu.peers is None else gpu.peers)
            for gpu, new in zip(gpus, with_links, strict=True)
        )
    return gpus, _untold(gpus)


def visible_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Gpu, ...] | None:
    """Those, in PCI order, that a CUDA program with these environment variables can use, in its order.
    Numbers of CUDA_VISIBLE_DEVICES count GPUs by speed unless CUDA_DEVICE_ORDER is PCI_BUS_ID; that order is
    known of equal GPUs alone: None of others, and of parts of a GPU (MIG). Reference: NVIDIA, CUDA C++
    Programming Guide."""
    in_bus_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) <= 1
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(gpus) if in_bus_order else None
    visible: list[Gpu] = []
    for entry in (entry.strip() for entry in wanted.split(",")):
        if entry.startswith("MIG-") or (entry.isdigit() and not in_bus_order):
            return None
        named = [gpu for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        numbered = [gpus[int(entry)]] if entry.isdigit() and int(entry) < len(gpus) else []
        nodes = named or numbered
        if len(nodes) != 1:  # CUDA ignores what stands behind an entry that names no GPU
            break
        visible += nodes
    # CUDA gives no GPU at all where one is named twice.
    return tuple(visible) if len({gpu.index for gpu in visible}) == len(visible) else ()


def _gpus_of_nvml() -> tuple[Gpu, ...] | None:
    nvml = detect_nvml.load()
    if nvml is None:
        return None
    try:
        return detect_nvml.read_gpus(nvml)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _untold(gpus: tuple[Gpu, ...]) -> list[str]:
    without_link = [gpu.id for gpu in gpus if gpu.pcie is None]
    missing = [f"PCIe link of {', '.join(without_link)}: the driver does not say"] if without_link else []
    missing += [
        f"{gpu.unseen_links} NVLinks of {gpu.id}: they lead to GPUs that are not visible here; left out"
        for gpu in gpus
        if gpu.unseen_links
    ]
    if len(gpus) > 1 and any(gpu.peers is None for gpu in gpus):
        missing.append(f"peer access: the driver does not say; {OTHER_PEERS}")
    return missing
