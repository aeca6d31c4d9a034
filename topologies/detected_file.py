"""A detected machine as a machine file: devices and links found, figures nominal or assumed.

1. Each NUMA node that has cores is a CPU with its memory; nodes of a socket are joined, and so are sockets.
2. A GPU hangs on the CPU of its NUMA node. GPUs below the same root port of the bus share a PCIe switch.
3. NVLinks lead from GPU to GPU, or to one NVSwitch that stands for all.
4. Peer access is what the driver says; where it does not, GPUs have it that NVLink joins, and of others it is
   unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import networkx as nx

from scaling.files.texts import gigabytes_per_s
from topologies.facts import DETECTED, Facts, Gpu, PcieLink

NCCL = "NCCL, src/graph/{file}, commit 5067397c"
TUNING = NCCL.format(file="tuning.cc")

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
    value: float
    source: str


def pcie_width(link: PcieLink) -> int:
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
    value = gpu.memory_hz * 2 * gpu.memory_bits / 8
    bus = f"{gpu.memory_bits} bits at {gpu.memory_hz / 1e6:.0f} MHz"
    return Figure(value, f"nominal: a memory bus of {bus}, two a clock")


CORE_SUM = Figure(
    4e9, "assumption: one core moves about 12 GB/s to and from memory; two reads and a write a byte"
)
HOST_MEMORY = Figure(100e9, "assumption: 100 GB/s, the order of a server's socket")
MEMORY_LATENCY = Figure(0.1e-6, "assumption: a load from DRAM takes about 0.1 us")
SOCKET_LATENCY = Figure(0.1e-6, "assumption: about 0.1 us more than memory of the own socket")
HOP = f"1.0 us of a PCIe hop ({TUNING}: hwLatencies, PCI, ring, LL)"
PCIE_LATENCY = Figure(0.25e-6, f"assumption: {HOP}, split evenly over four links")
NVLINK_LATENCY = Figure(0.6e-6, f"{TUNING}: hwLatencies, NVLINK, ring, LL")
TO_SWITCH_LATENCY = Figure(0.3e-6, f"{NVLINK_LATENCY.source}: 0.6 us a hop, half on each side of the switch")
MESSAGE_LATENCY = {
    "peer": Figure(2.8e-6, f"{TUNING}: a hop of the Simple protocol, NVLink, less links"),
    "staged": Figure(4.7e-6, f"{TUNING}: a hop of the Simple protocol, PCIe, less links"),
    "host": Figure(5.7e-6, "assumption: as measured on one machine, copies of 1 MiB from pinned memory"),
}
OF_PROCESSES = Figure(81e-6, "assumption: as measured on one machine, 4 bytes with Gloo over TCP")

SWITCH = "nvswitch0"


@dataclass
class _Parts:
    device_types: dict[str, Any] = field(default_factory=dict)
    link_types: dict[str, Any] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)
    origin: str = ""

    def device(self, id_: str, type_: str, kind: str, name: str, **figures: Figure | None) -> None:
        self.device_types.setdefault(type_, {"kind": kind, "name": name, **_figures(figures, self.origin)})
        self.devices.append({"id": id_, "type": type_})

    def link(
        self, type_: str, kind: str, between: tuple[str, str], count: int = 1, **figures: Figure | None
    ) -> None:
        self.link_types.setdefault(type_, {"kind": kind, **_figures(figures, self.origin)})
        entry: dict[str, Any] = {"type": type_, "between": list(between)}
        self.links.append(entry | ({"count": count} if count > 1 else {}))


def _figures(figures: dict[str, Figure | None], origin: str) -> dict[str, Any]:
    given = {name: figure for name, figure in figures.items() if figure is not None}
    values = {name: figure.value for name, figure in given.items()}
    return {**values, "source": {name: figure.source for name, figure in given.items()} or origin}


def machine_file(facts: Facts) -> dict[str, Any]:
    """The machine as the content of a machine file (docs/reference/machine-files.md)."""
    parts = _Parts(origin=facts.origin)
    _add_host(parts, facts)
    _add_gpus(parts, facts)
    _add_nvlinks(parts, facts.gpus)
    latency = MESSAGE_LATENCY if facts.gpus else {"host": OF_PROCESSES}
    return {
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", facts.name).strip("-._") or "this-machine",
        "description": _description(facts),
        "device_types": parts.device_types,
        "link_types": parts.link_types,
        "devices": parts.devices,
        "links": parts.links,
        "peer_access": _peer_access(facts.gpus),
        "message_latency_s": _figures({**latency}, facts.origin),
    }


def peer_access(
    gpus: list[str], pairs: Iterable[tuple[str, str]], others: str = "none"
) -> str | list[list[str] | str]:
    """Of GPUs of which these pairs have access, as a machine file says it; `others`: "none" or "unknown"."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(gpus)
    graph.add_edges_from(pairs)
    if not graph.edges:
        return others
    groups = [sorted(group, key=gpus.index) for group in nx.find_cliques(graph) if len(group) > 1]
    groups.sort(key=lambda group: [gpus.index(g) for g in group])
    return "all" if groups[0] == gpus else [*groups, *(["unknown"] if others == "unknown" else [])]


def _add_host(parts: _Parts, facts: Facts) -> None:
    nodes, name = facts.host.nodes, facts.host.cpu_name
    is_same = len({node.usable_cores for node in nodes}) == 1
    with_memory = [at for at, node in enumerate(nodes) if node.memory_bytes != 0]
    for at in with_memory:
        parts.device(f"host{at}", "memory", "host_memory", "main memory", bandwidth_bytes_per_s=HOST_MEMORY)
    for at, node in enumerate(nodes):
        usable = node.usable_cores
        known = "cores that this process may use" if facts.origin == DETECTED else facts.origin
        cores = Figure(usable, f"nominal: {known}") if usable else None
        type_ = "cpu" if is_same else f"cpu-{node.usable_cores}"
        parts.device(f"cpu{at}", type_, "cpu", name, cores=cores, reduce_bytes_per_s=CORE_SUM)
    for at in with_memory:
        figures = {"bandwidth_bytes_per_s": HOST_MEMORY, "latency_s": MEMORY_LATENCY}
        parts.link("memory-bus", "memory", (f"cpu{at}", f"host{at}"), 1, **figures)
    _join_nodes(parts, facts)


def _join_nodes(parts: _Parts, facts: Facts) -> None:
    """All nodes of a socket, and neighbours of different sockets."""
    first: dict[int, int] = {}  # socket -> the first of its nodes
    last: dict[int, int] = {}
    for at, node in enumerate(facts.host.nodes):
        first.setdefault(node.socket, at)
        last[node.socket] = at
    for (a, node), (b, other_node) in combinations(enumerate(facts.host.nodes), 2):
        if node.socket == other_node.socket:
            name, bandwidth, latency = "on-socket", HOST_MEMORY, MEMORY_LATENCY
        elif last[node.socket] == a and first[other_node.socket] == b:
            of_nccl, value = ("AMD_BW", 16e9) if "AMD" in facts.host.cpu_name else ("ERP_QPI_BW", 40e9)
            bandwidth = Figure(value, f"assumption: {NCCL.format(file='topo.h')}: {of_nccl}")
            name, latency = "inter-socket", SOCKET_LATENCY
        else:
            continue
        ends = (f"cpu{a}", f"cpu{b}")
        parts.link(name, name, ends, bandwidth_bytes_per_s=bandwidth, latency_s=latency)


def _add_gpus(parts: _Parts, facts: Facts) -> None:
    switches = _switches(facts)
    for root, switch in switches.items():
        parts.device(switch, "pcie-switch", "pcie_switch", "PCIe switch")
        below = next(gpu for gpu in facts.gpus if _root(facts, gpu) == root)
        _pcie_link(parts, facts.bridges.get(root) or below.pcie, (_cpu_of(facts, below), switch))
    kinds: dict[tuple[object, ...], str] = {}
    for gpu in facts.gpus:
        memory = gpu_memory(gpu)
        kind = (gpu.name, gpu.memory_bits, gpu.memory_hz, gpu.memory_bytes_per_s)
        type_ = kinds.setdefault(kind, _unique(_slug(gpu.name), kinds.values()))
        bound = "assumption: a sum is bound by memory, two reads and a write a byte"
        sums = memory and Figure(memory.value / 3, bound)  # bytes of an addend a second
        parts.device(gpu.id, type_, "gpu", gpu.name, bandwidth_bytes_per_s=memory, reduce_bytes_per_s=sums)
        if gpu.cpu_link_bytes_per_s:
            bandwidth = Figure(gpu.cpu_link_bytes_per_s, "nominal: link from GPU to CPU")
            figures = {"bandwidth_bytes_per_s": bandwidth, "latency_s": NVLINK_LATENCY}
            parts.link("gpu-to-cpu", "nvlink-c2c", (_cpu_of(facts, gpu), gpu.id), 1, **figures)
        else:
            above = switches.get(_root(facts, gpu) or "") or _cpu_of(facts, gpu)
            _pcie_link(parts, gpu.pcie, (above, gpu.id))


def _pcie_link(parts: _Parts, link: PcieLink | None, between: tuple[str, str]) -> None:
    type_ = "pcie" if link is None else f"pcie{link.generation}-x{pcie_width(link)}"
    bandwidth = pcie_bandwidth(link)
    parts.link(type_, "pcie", between, bandwidth_bytes_per_s=bandwidth, latency_s=PCIE_LATENCY)


def _root(facts: Facts, gpu: Gpu) -> str | None:
    """The root port above it, where there is a switch between them."""
    place = facts.places.get(gpu.bus_id)
    return place.bridges[0] if place is not None and len(place.bridges) > 1 else None


def _switches(facts: Facts) -> dict[str, str]:
    """Root port -> the id of the PCIe switch below it, where several GPUs share one."""
    roots = [root for gpu in facts.gpus if (root := _root(facts, gpu))]
    shared = [root for root in dict.fromkeys(roots) if roots.count(root) > 1]
    return {root: f"switch{at}" for at, root in enumerate(shared)}


def _cpu_of(facts: Facts, gpu: Gpu) -> str:
    place = facts.places.get(gpu.bus_id)
    node = place.numa_node if place is not None else None
    numbers = [node.number for node in facts.host.nodes]
    return f"cpu{numbers.index(node) if node in numbers else 0}"


def _add_nvlinks(parts: _Parts, gpus: tuple[Gpu, ...]) -> None:
    for first, other in combinations(gpus, 2):
        if count := max(first.nvlinks.get(other.index, 0), other.nvlinks.get(first.index, 0)):
            _nvlink(parts, (first, other), (first.id, other.id), count)
    switched = [gpu for gpu in gpus if gpu.switch_links]
    if switched:
        parts.device(SWITCH, "nvswitch", "nvswitch", "NVSwitch")
    for gpu in switched:
        _nvlink(parts, (gpu,), (gpu.id, SWITCH), gpu.switch_links)


def _nvlink(parts: _Parts, ends: tuple[Gpu, ...], between: tuple[str, str], count: int) -> None:
    """Of the slower end's rate."""
    kind = "xgmi" if ends[0].name.startswith("AMD") else "nvlink"
    rates = [gpu.nvlink_bytes_per_s for gpu in ends if gpu.nvlink_bytes_per_s]
    figures = {
        "bandwidth_bytes_per_s": nvlink_bandwidth(min(rates, default=None), kind),
        "latency_s": NVLINK_LATENCY if len(ends) > 1 else TO_SWITCH_LATENCY,
    }
    stem = kind if len(ends) > 1 else "nvlink-to-switch"
    content = {"kind": kind, **_figures({**figures}, parts.origin)}
    type_ = next((name for name, known in parts.link_types.items() if known == content), None)
    parts.link(type_ or _unique(stem, parts.link_types), kind, between, count, **figures)


def _peer_access(gpus: tuple[Gpu, ...]) -> str | list[list[str] | str]:
    def joined(gpu: Gpu, other: Gpu) -> bool | None:
        if gpu.peers is not None and other.peers is not None:
            return other.index in gpu.peers and gpu.index in other.peers
        is_linked = other.index in gpu.nvlinks or gpu.index in other.nvlinks
        return is_linked or bool(gpu.switch_links and other.switch_links) or None

    access = {(gpu.id, other.id): joined(gpu, other) for gpu, other in combinations(gpus, 2)}
    pairs = [pair for pair, has_it in access.items() if has_it]
    return peer_access([gpu.id for gpu in gpus], pairs, "unknown" if None in access.values() else "none")


def _description(facts: Facts) -> str:
    names = [gpu.name for gpu in facts.gpus]
    sockets = len({node.socket for node in facts.host.nodes})
    gpus = " and ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU"
    return f"{gpus}; {sockets} x {facts.host.cpu_name}; {facts.origin}"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia ")).strip("-") or "gpu"


def _unique(name: str, taken: Iterable[str]) -> str:
    known = set(taken)
    names = (name if at == 1 else f"{name}-{at}" for at in range(1, len(known) + 2))
    return next(name for name in names if name not in known)
