"""NCCL's topology XML (NCCL_TOPO_DUMP_FILE) as facts of a machine, from which a machine file is made.

The file is a tree: `system` of `cpu`s (NUMA nodes), each with `pci` devices, which are bridges where they
hold further ones, and GPUs where they hold a `gpu` with its `nvlink`s. Read are bus addresses, `link_speed`
and `link_width`, `nvlink`'s `target`, `count` and `tclass`. NICs are left out: which network they are on the
file does not say. Nor does it name GPUs, memories and cores: their figures are assumptions.

Format: NCCL's source, src/graph/xml.cc, as its dumps show it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

from scaling.files.texts import clean
from topologies.errors import TopologyError
from topologies.facts import Facts, Gpu, Host, NumaNode, PcieLink, PciePlace

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""GT/s of a lane -> PCIe generation."""

SWITCH_CLASS = "0x0680"

NVLINK_BYTES_PER_S = {60: 20e9, 70: 25e9, 80: 25e9, 90: 25e9, 100: 50e9}
"""Compute capability x 10 -> one NVLink, one direction, raw (NVIDIA's datasheets of P100 to B200)."""

ASSUMED_CORES = 16
"""Of a NUMA node whose `affinity` says nothing."""


@dataclass
class _Found:
    """What the walk through the tree has collected."""

    gpus: list[tuple[ElementTree.Element, str, PcieLink | None]] = field(default_factory=list)
    places: dict[str, PciePlace] = field(default_factory=dict)
    bridges: dict[str, PcieLink] = field(default_factory=dict)
    num_nics: int = 0


def facts_of(text: str, name: str, source: str = "") -> Facts:
    """The machine that the XML describes.

    Args:
        text: of the file.
        name: of the machine.
        source: where the text is from, for messages; by default the name.

    Raises:
        TopologyError: it is no such file, or has no CPU.
    """
    source = source or name
    try:
        system = ElementTree.fromstring(text)  # noqa: S314 (expat limits entities since 2.4.1)
    except ElementTree.ParseError as error:
        raise TopologyError(f"{source}: no XML: {error}; give what NCCL_TOPO_DUMP_FILE wrote") from error
    cpus = system.findall("cpu")
    if system.tag != "system" or not cpus:
        raise TopologyError(f"{source}: no <system> with <cpu>s; give what NCCL_TOPO_DUMP_FILE wrote")
    parts = _Found()
    nodes = []
    for cpu in cpus:
        number = max(0, _whole(cpu, "numaid", 0, source))
        nodes.append(NumaNode(number, number, _cores(cpu)))
        for device in cpu.findall("pci"):
            _walk(device, number, (), parts)
    host = Host(_cpu_name(cpus[0]), tuple(nodes))
    missing = ["names of GPUs, their memories, cores' rates: the XML does not have them"]
    if parts.num_nics:
        missing.append(f"{parts.num_nics} NICs: left out; add them and a network in a file on top")
    return Facts(name, host, _gpus(parts, source), parts.places, parts.bridges, tuple(missing))


def _walk(device: ElementTree.Element, node: int, above: tuple[str, ...], parts: _Found) -> None:
    bus_id = device.get("busid", "")
    link = _link(device)
    gpu = device.find("gpu")
    if gpu is not None:
        parts.gpus.append((gpu, bus_id, link))
        parts.places[bus_id] = PciePlace(node, above)
    parts.num_nics += len(device.findall("nic"))
    # The file leaves root ports out: the first bridge is a switch, and its link leads to the CPU.
    bridges = (*above, bus_id) if above else (f"root of {bus_id}", bus_id)
    inner = device.findall("pci")
    if inner and link is not None:
        parts.bridges.setdefault(bridges[0], link)
    for child in inner:
        _walk(child, node, bridges, parts)


def _gpus(parts: _Found, source: str) -> tuple[Gpu, ...]:
    numbers = {bus_id: index for index, (_, bus_id, _) in enumerate(parts.gpus)}
    return tuple(
        _gpu(numbers[bus_id], gpu, bus_id, link, numbers, source) for gpu, bus_id, link in parts.gpus
    )


def _gpu(
    index: int,
    gpu: ElementTree.Element,
    bus_id: str,
    link: PcieLink | None,
    numbers: dict[str, int],
    source: str,
) -> Gpu:
    direct: dict[int, int] = {}
    to_switches = 0
    for nvlink in gpu.findall("nvlink"):
        target, count = nvlink.get("target", ""), _whole(nvlink, "count", 1, source)
        if target in numbers:
            direct[numbers[target]] = direct.get(numbers[target], 0) + count
        elif nvlink.get("tclass", "").startswith(SWITCH_CLASS):
            to_switches += count
    sm = _whole(gpu, "sm", 0, source)
    rate = NVLINK_BYTES_PER_S.get(sm // 10 * 10)
    has_links = bool(direct or to_switches)
    return Gpu(
        index,
        f"GPU of compute capability {sm // 10}.{sm % 10}",
        f"GPU-{bus_id}",
        bus_id,
        link,
        direct,
        to_switches,
        rate if has_links else None,
    )


def _whole(element: ElementTree.Element, name: str, default: int, source: str) -> int:
    """An attribute that is a small whole number; -1 where NCCL did not know it.

    Raises:
        TopologyError: it is none.
    """
    text = element.get(name, str(default))
    if not re.fullmatch(r"-1|\d{1,5}", text, re.ASCII):
        raise TopologyError(
            f"{source}: {name} of <{element.tag}> is {clean(text)!r:.60}; it must be a whole number below "
            "100000; give what NCCL_TOPO_DUMP_FILE wrote"
        )
    return int(text)


def _link(device: ElementTree.Element) -> PcieLink | None:
    try:
        rate = float(device.get("link_speed", "").split()[0])
        width = int(device.get("link_width", "0"))
    except (IndexError, ValueError):
        return None
    return PcieLink(GENERATIONS[rate], width) if rate in GENERATIONS and width else None


def _cores(cpu: ElementTree.Element) -> int:
    """The bits of the affinity mask; NCCL writes it as hexadecimal words."""
    mask = cpu.get("affinity", "").replace(",", "")
    try:
        return int(mask, 16).bit_count() or ASSUMED_CORES
    except ValueError:
        return ASSUMED_CORES


def _cpu_name(cpu: ElementTree.Element) -> str:
    vendor = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(cpu.get("vendor", ""), "")
    return f"{vendor or cpu.get('arch', 'unknown')} processor".strip()
