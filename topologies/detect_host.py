"""Processors, memories and the PCIe bus from /sys, as the Linux kernel describes them there.

Reference: The Linux kernel, Documentation/ABI/testing/sysfs-devices-system-cpu, sysfs-bus-pci, and
Documentation/ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Collection
from itertools import groupby
from pathlib import Path

from topologies.facts import Host, NumaNode, PcieLink, PciePlace

SYS = Path("/sys")
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
GENERATION_OF_GT_PER_S = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}


def read_host(
    cpu_name: str, usable: Collection[int], num_usable: int, memory_bytes: int | None, sys: Path = SYS
) -> Host:
    """The NUMA nodes that have cores; all is one node where the kernel knows of none. `usable`: numbers of
    the cores that this process may use, `num_usable`: how many of them at the same time, by its container's
    quota; `memory_bytes`: for a machine without NUMA nodes."""
    cores = node_cpus(sys)
    share = min(1.0, num_usable / max(len(usable), 1))
    nodes = tuple(
        NumaNode(
            number=number,
            socket=_socket(min(cpus), sys),
            usable_cores=round(len(cpus & set(usable)) * share),
            memory_bytes=bytes_in(sys / f"devices/system/node/node{number}/meminfo"),
        )
        for number, cpus in cores.items()
    )
    return Host(cpu_name, nodes or (NumaNode(0, 0, num_usable, memory_bytes),))


def node_cpus(sys: Path = SYS) -> dict[int, set[int]]:
    """NUMA node -> numbers of its cores, for those that have any; empty where the kernel knows of none."""
    paths = (sys / "devices/system/node").glob("node[0-9]*")
    numbered = {int(path.name.removeprefix("node")): path for path in paths}
    cores = {number: parse_cpu_list(text_of(path / "cpulist")) for number, path in sorted(numbered.items())}
    return {number: cpus for number, cpus in cores.items() if cpus}


def busy_ratio(
    cores: Collection[int],
    stat: Path = Path("/proc/stat"),
    wait: Callable[[], None] = lambda: time.sleep(0.1),
) -> float | None:
    """The part of these cores that programs take just now; None where the kernel does not tell. Reference:
    proc_stat(5), times of each core since the start; the fourth and fifth are idle."""
    before = _core_times(cores, stat)
    wait()
    spent = [now - then for then, now in zip(before, _core_times(cores, stat), strict=False)]
    total = sum(spent)
    return 1 - sum(spent[3:5]) / total if total > 0 else None


def _core_times(cores: Collection[int], stat: Path) -> list[int]:
    """The times of /proc/stat, summed over cores; guests are counted in user time already."""
    lines = [line.split() for line in text_of(stat).splitlines()]
    wanted = {f"cpu{core}" for core in cores}
    rows = [[*map(int, line[1:9])] for line in lines if line and line[0] in wanted]
    return [sum(column) for column in zip(*rows, strict=True)]


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str | None:
    """Eight hexadecimal digits that the kernel drew when it started; None where it does not tell."""
    return text_of(path).strip()[:8] or None


def this_start() -> str:
    return start_named(platform.node(), boot_id())


def start_named(host: str | None, boot: str | None) -> str:
    """Which start of which host: its name and its `boot_id`, as `NAME/ID`, or what of these is known."""
    return "/".join(part for part in (host, boot) if part)


def cpu_governors(sys: Path = SYS) -> list[str] | None:
    """How the kernel sets the cores' frequencies: each way once; None where it does not."""
    paths = (sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return sorted({text for path in paths if (text := text_of(path).strip())}) or None


def parse_cpu_list(text: str) -> set[int]:
    """`0-3,8,10-11` as a set."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def cpu_list(numbers: Collection[int]) -> str:
    """A set of numbers as the kernel writes it: `0-3,8,10-11`."""
    runs = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(of) for _, of in runs)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def num_physical(cpus: Collection[int], sys: Path = SYS) -> int:
    """Physical cores of these processors: two hyperthreads are one. Where sysfs is silent, each is one."""
    places = (sys / f"devices/system/cpu/cpu{cpu}/topology/core_id" for cpu in cpus)
    ids = [text_of(place).strip() for place in places]
    known = {(_socket(cpu, sys), core or f"cpu {cpu}") for cpu, core in zip(cpus, ids, strict=True)}
    return len(known)


def _socket(cpu: int, sys: Path) -> int:
    text = text_of(sys / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id").strip()
    return int(text) if text.isdigit() else 0  # virtual processors may say -1


def bytes_in(meminfo: Path, what: str = "MemTotal") -> int | None:
    match = re.search(rf"\b{what}:\s*(\d+) kB", text_of(meminfo))
    return int(match[1]) * 1024 if match else None


def pci_place(bus_id: str, sys: Path = SYS) -> PciePlace:
    """Where the device at that address is; empty where sysfs does not show it."""
    device = sys / "bus/pci/devices" / bus_id
    if not device.exists():
        return PciePlace()
    node = text_of(device / "numa_node").strip()
    above = [part for part in Path(os.path.realpath(device)).parts if PCI_ADDRESS.fullmatch(part)]
    return PciePlace(int(node) if node.isdigit() else None, tuple(above[:-1]))


def bridge_link(address: str, sys: Path = SYS) -> PcieLink | None:
    """The link of a bridge, or None where sysfs does not say."""
    folder = sys / "bus/pci/devices" / address
    generation = GENERATION_OF_GT_PER_S.get(text_of(folder / "max_link_speed").partition(" ")[0].strip())
    width = text_of(folder / "current_link_width").strip()
    if generation is None or not width.isdigit() or width == "0":
        return None
    return PcieLink(generation, int(width))


def short_bus_id(bus_id: str) -> str:
    """NVML's `00000000:18:00.0` as sysfs writes it: four digits of the domain unless it needs more."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
