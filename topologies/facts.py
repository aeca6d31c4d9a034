"""What detection finds of a machine, before it is put into the words of a machine file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DETECTED = "detected on this machine"
OTHER_PEERS = "GPUs that NVLink or xGMI joins have it, of others it is unknown, and they are priced without"


@dataclass(frozen=True)
class PcieLink:
    generation: int  # generation, width: the most that both of its ends can, and its lanes
    width: int
    # current_generation, current_width: at the moment; an idle device lowers its generation
    current_generation: int | None = None
    current_width: int | None = None


@dataclass(frozen=True)
class PciePlace:
    numa_node: int | None = None  # the nearest; None where the system does not say
    bridges: tuple[str, ...] = ()  # addresses of the bridges above it, the root port first


@dataclass(frozen=True)
class NumaNode:
    """Some cores and the memory that is nearest to them."""

    number: int  # the system's
    socket: int  # of the cores
    usable_cores: int  # those of them that this process may use
    memory_bytes: int | None = None  # None where the system does not say


@dataclass(frozen=True)
class Host:
    """Processors and memories: one NUMA node at least."""

    cpu_name: str
    nodes: tuple[NumaNode, ...]


@dataclass(frozen=True)
class Gpu:
    index: int  # as NVML and nvidia-smi count
    name: str
    uuid: str  # `GPU-...`, the same for CUDA
    bus_id: str  # its PCI address as /sys writes it: `0000:18:00.0`
    pcie: PcieLink | None = None
    # index of another GPU -> links that lead straight to it
    nvlinks: Mapping[int, int] = field(default_factory=dict)
    switch_links: int = 0  # NVLinks that lead to switches
    nvlink_bytes_per_s: float | None = None  # of one NVLink, one direction, raw
    memory_bits: int | None = None  # memory_bits, memory_hz: width and highest clock of its memory's bus
    memory_hz: float | None = None
    # indices of the GPUs whose memory it may read; None where nobody says
    peers: frozenset[int] | None = None
    # one direction of a link to the CPU other than PCIe (NVLink-C2C, POWER9)
    cpu_link_bytes_per_s: float | None = None
    # memory_bytes_per_s, memory_source: of its memory where the bus is not known, and where that is from
    memory_bytes_per_s: float | None = None
    memory_source: str = ""
    unseen_links: int = 0  # NVLinks to GPUs that are not visible here

    @property
    def id(self) -> str:
        return f"gpu{self.index}"


@dataclass(frozen=True)
class Facts:
    name: str  # of the host
    host: Host
    gpus: tuple[Gpu, ...] = ()
    places: Mapping[str, PciePlace] = field(default_factory=dict)  # bus_id of a GPU -> where it is
    # address of a bridge -> its link to what is above it
    bridges: Mapping[str, PcieLink] = field(default_factory=dict)
    missing: tuple[str, ...] = ()  # what could not be found out, and what would help, for people
    origin: str = DETECTED  # where all this is from, for people
