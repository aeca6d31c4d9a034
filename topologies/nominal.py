"""Figures for what was detected and not measured: what the vendor says, or an assumption called so."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.files.texts import gigabytes_per_s
from topologies.facts import Gpu, PcieLink

NCCL = "NCCL, src/graph/{file}, commit 5067397c"

PCIE_LANE_BYTES_PER_S = {
    1: 2.5e9 / 8 * 8 / 10,
    2: 5e9 / 8 * 8 / 10,
    3: 8e9 / 8 * 128 / 130,
    4: 16e9 / 8 * 128 / 130,
    5: 32e9 / 8 * 128 / 130,
    6: 64e9 / 8 * 242 / 256,
}
"""One direction of a lane, after the encoding of its generation (PCI-SIG, PCI Express Base Specification)."""


@dataclass(frozen=True)
class Figure:
    """A value and where it comes from."""

    value: float
    source: str


def pcie_width(link: PcieLink) -> int:
    """The lanes that are in use."""
    return min(link.width, link.current_width or link.width)


def pcie_bandwidth(link: PcieLink | None) -> Figure:
    """One direction of a PCIe link; of a link that nobody tells about, an assumption."""
    if link is None:
        assumed = PCIE_LANE_BYTES_PER_S[3] * 16
        return Figure(assumed, "assumption: PCIe gen 3 x16; the system does not say what the link is")
    width = pcie_width(link)
    generation = min(link.generation, max(PCIE_LANE_BYTES_PER_S))
    raw = PCIE_LANE_BYTES_PER_S[generation] * width
    lanes = f"x{width}" if width == link.width else f"x{width} (of x{link.width} that both ends can)"
    return Figure(raw, f"nominal: PCIe gen {link.generation} {lanes}, {gigabytes_per_s(raw)} raw")


def nvlink_bandwidth(raw_bytes_per_s: float | None, kind: str = "nvlink") -> Figure:
    """One direction of one NVLink or xGMI link."""
    if raw_bytes_per_s is not None:
        name = "NVLink" if kind == "nvlink" else "xGMI"
        return Figure(raw_bytes_per_s, f"nominal: {name}, {gigabytes_per_s(raw_bytes_per_s)} raw a link")
    if kind == "xgmi":
        return Figure(46e9, "assumption: 46 GB/s a link, as MI50 and MI100, the slowest known")
    return Figure(25e9, "assumption: 25 GB/s a link, as NVLink 2 to 4; the driver does not say")


def gpu_memory(gpu: Gpu) -> Figure | None:
    """Bytes read and written a second; None where the driver does not tell of the memory's bus."""
    if gpu.memory_bytes_per_s:
        return Figure(gpu.memory_bytes_per_s, gpu.memory_source)
    if not gpu.memory_bits or not gpu.memory_hz:
        return None
    transfers_a_clock = 2
    value = gpu.memory_hz * transfers_a_clock * gpu.memory_bits / 8
    return Figure(
        value,
        f"nominal: a memory bus of {gpu.memory_bits} bits at {gpu.memory_hz / 1e6:.0f} MHz, two a clock",
    )


def gpu_sum(memory: Figure) -> Figure:
    """Bytes of an addend a second."""
    return Figure(memory.value / 3, "assumption: a sum is bound by memory, two reads and a write a byte")


def between_sockets(cpu_name: str) -> Figure:
    """One direction of what joins two sockets."""
    name, value = ("AMD_BW", 16e9) if "AMD" in cpu_name else ("ERP_QPI_BW", 40e9)
    return Figure(value, f"assumption: {NCCL.format(file='topo.h')}: {name}")


CORE_SUM = Figure(
    4e9, "assumption: one core moves about 12 GB/s to and from memory; two reads and a write a byte"
)
HOST_MEMORY = Figure(100e9, "assumption: 100 GB/s, the order of a server's socket")
MEMORY_LATENCY = Figure(0.1e-6, "assumption: a load from DRAM takes about 0.1 us")
SOCKET_LATENCY = Figure(0.1e-6, "assumption: about 0.1 us more than memory of the own socket")
PCIE_LATENCY = Figure(
    0.25e-6,
    f"assumption: 1.0 us of a PCIe hop ({NCCL.format(file='tuning.cc')}: hwLatencies, PCI, ring, LL), split "
    "evenly over four links",
)
NVLINK_LATENCY = Figure(0.6e-6, f"{NCCL.format(file='tuning.cc')}: hwLatencies, NVLINK, ring, LL")
NVLINK_TO_SWITCH_LATENCY = Figure(
    0.3e-6, f"{NVLINK_LATENCY.source}: 0.6 us a hop, half on each side of the switch"
)
MESSAGE_LATENCY = {
    "peer": Figure(
        2.8e-6, f"{NCCL.format(file='tuning.cc')}: a hop of the Simple protocol, NVLink, less links"
    ),
    "staged": Figure(
        4.7e-6, f"{NCCL.format(file='tuning.cc')}: a hop of the Simple protocol, PCIe, less links"
    ),
    "host": Figure(5.7e-6, "assumption: as measured on one machine, copies of 1 MiB from pinned memory"),
}
MESSAGE_LATENCY_OF_PROCESSES = Figure(
    81e-6, "assumption: as measured on one machine, 4 bytes with Gloo over TCP"
)
