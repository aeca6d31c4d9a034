"""NCCL's and RCCL's topology XML (NCCL_TOPO_DUMP_FILE) as facts of a machine, for a machine file.

The file is a tree: `system` of `cpu`s (NUMA nodes), each with `pci` devices: bridges, and GPUs, which hold a
`gpu` with its links: `nvlink` (NVIDIA), `xgmi` (AMD), `c2c` (to the CPU). Whatever is not used is named in
`Facts.missing`. A file whose GPUs or links would be lost is refused.

Format: NCCL's source, src/graph/xml.cc and topo.cc; RCCL's, src/graph/xml.cc.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

from scaling.files.texts import clean
from topologies.errors import TopologyError
from topologies.facts import OTHER_PEERS, Facts, Gpu, Host, NumaNode, PcieLink, PciePlace
from topologies.gpus import LINK_BYTES_PER_S, OLD_NAMES, GpuModel, model_named, model_of, slowest

SPEEDS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
GENERATIONS = SPEEDS | {f"{float(speed)}": generation for speed, generation in SPEEDS.items()}
"""GT/s of a lane -> PCIe generation."""
EMULATED = PcieLink(1, 1)
SWITCH_CLASS, CPU_CLASS = "0x068000", "0x068001"  # ends of links: an NVSwitch; a POWER9

GPU_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
USED = {"system", "cpu", "pci", "gpu", "nvlink", "xgmi", "c2c", "nic", "net"}
LINKS = ("nvlink", "xgmi")
READ = {
    *("numaid", "affinity", "arch", "vendor", "host_hash", "busid", "class", "device", "link_speed"),
    *("link_width", "dev", "sm", "gcn", "target", "count", "tclass", "bw"),
}
"""Attributes of these; NICs are left out whole."""

ASSUMED_CORES = 16  # of a NUMA node whose `affinity` says nothing

DUMP = "give what NCCL_TOPO_DUMP_FILE wrote"


class _Card(NamedTuple):
    """A PCI device of GPU class, and its `gpu` where it has one."""

    device: ElementTree.Element
    gpu: ElementTree.Element | None
    bus_id: str


@dataclass
class _Found:
    source: str
    cards: list[_Card] = field(default_factory=list)
    places: dict[str, PciePlace] = field(default_factory=dict)
    bridges: dict[str, PcieLink] = field(default_factory=dict)
    # GPUs and links that cannot be used, for people; they refuse the file
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what else is left out or assumed


def facts_of(
    text: str, name: str, source: str = "", *, gpu: str | None = None, allow_missing_links: bool = False
) -> Facts:
    """The machine, called `name`, that the XML describes; TopologyError if it is no such file, has no CPU,
    describes several hosts, or loses GPUs or links, unless `allow_missing_links`. `source`: where the text is
    from, for messages; `gpu`: name of its GPUs (`topologies.gpus`), where the file's PCI ids do not tell."""
    source = source or name
    system, cpus = _cpus(text, source)
    found = _Found(source)
    nodes = []
    for cpu in cpus:
        number = max(0, _whole(cpu, "numaid", 0, source))
        cores = _cores(cpu)
        if cores is None:
            mask = clean(cpu.get("affinity", ""))
            found.notes.append(f"cores of cpu{number}: {mask!r:.40} is no mask; {ASSUMED_CORES} are assumed")
        nodes.append(NumaNode(number, number, cores or ASSUMED_CORES))
        for device in cpu.findall("pci"):
            _walk(device, number, (), found)
    gpus = _gpus(found, None if gpu is None else model_named(gpu))
    _note_what_is_left_out(system, gpus, found)
    if found.lost and not allow_missing_links:
        raise TopologyError(
            f"{source}: links or GPUs would be lost: {'; '.join(found.lost)}; {DUMP} on the machine "
            "itself, or take the file without them: --allow-missing-links"
        )
    vendor = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(cpus[0].get("vendor", ""), "")
    host = Host(f"{vendor or cpus[0].get('arch', 'unknown')} processor".strip(), tuple(nodes))
    missing = (*(f"left out: {what}" for what in found.lost), *found.notes)
    return Facts(name, host, gpus, found.places, found.bridges, missing, "NCCL's topology XML")


def _note_what_is_left_out(system: ElementTree.Element, gpus: tuple[Gpu, ...], found: _Found) -> None:
    outside = len(system.findall(".//gpu")) - sum(len(card.device.findall("gpu")) for card in found.cards)
    if outside:
        found.lost.append(f"{outside} <gpu> outside of a <pci> below a <cpu>")
    elif not gpus:
        found.lost.append("all GPUs: the file has none; it leaves them to the driver")
    unused = Counter(element.tag for element in system.iter() if element.tag not in USED)
    found.notes += [f"<{clean(tag)}> ({number}): not used" for tag, number in unused.items()]
    parts = [element for tag in USED - {"system", "nic", "net"} for element in system.iter(tag)]
    names = {name for element in parts for name in element.attrib} - READ
    if names:
        found.notes.append(f"attributes not used: {clean(', '.join(sorted(names))):.200}")
    pci = list(system.iter("pci"))
    nics = [d for d in pci if d.get("class", "").startswith("0x02") and d.find("nic") is None]
    if num_nics := len(nics) + len(system.findall(".//nic")):
        found.notes.append(f"{num_nics} NICs: left out; add them and a network in a file on top")
    _note_odd_links(found)
    if unknown := sum("class" not in device.attrib and not len(device) for device in pci):
        found.notes.append(f"{unknown} <pci> without a class: not used")
    inner = Counter((place.numa_node, at) for place in found.places.values() for at in place.bridges[2:])
    groups = Counter(place.bridges[:1] for place in found.places.values())
    if deep := [at for (_, at), number in inner.items() if 1 < number < max(groups.values())]:
        found.notes.append(f"{len(deep)} PCIe switches below others: each tree of switches counts as one")
    for gpu, other in combinations(gpus, 2):
        there, back = gpu.nvlinks.get(other.index, 0), other.nvlinks.get(gpu.index, 0)
        if there != back:
            ends = f"{there} from one end, {back} from the other; the larger number is taken"
            found.notes.append(f"links of {gpu.id} and {other.id}: {ends}")
    if len(gpus) > 1:
        found.notes.append(f"peer access: the XML does not say; {OTHER_PEERS}")


def _note_odd_links(found: _Found) -> None:
    """PCIe links of GPUs that are not used as they stand in the file."""
    linked = [(card, _link(card.device)) for card in found.cards]
    if some := [card for card, link in linked if link and not _lanes(card.device)]:
        found.notes.append(f"PCIe widths of {len(some)} GPUs: 0 in the file, taken for x16 as NCCL does")
    unknown = {
        f"PCIe speed {clean(card.device.get('link_speed', ''))!r:.40}, width "
        f"{clean(card.device.get('link_width', ''))!r:.10}: unknown, not used"
        for card, link in linked
        if link is None and card.device.get("link_speed")
    }
    found.notes += sorted(unknown)
    emulated = [card for card, _ in linked if _bridge_of(card, found) == EMULATED]
    if emulated:
        found.notes.append(
            f"PCIe gen 1 x1 of {len(emulated)} bridges, as virtual machines emulate them: the link of the "
            "GPU below each is taken"
        )


def _bridge_of(card: _Card, found: _Found) -> PcieLink | None:
    """The link of the bridge below the root that leads to this GPU alone."""
    root = found.places[card.bus_id].bridges[:1]
    alone = sum(place.bridges[:1] == root for place in found.places.values()) == 1
    return found.bridges.get(root[0]) if root and alone else None


def _pcie(card: _Card, found: _Found) -> PcieLink | None:
    """The slower one of the GPU's link and that of a bridge which leads to it alone."""
    links = [link for link in (_link(card.device), _bridge_of(card, found)) if link and link != EMULATED]
    return min(links, key=lambda link: link.width << link.generation, default=None)


def _cpus(text: str, source: str) -> tuple[ElementTree.Element, list[ElementTree.Element]]:
    try:
        system = ElementTree.fromstring(text)  # noqa: S314 (expat limits entities since 2.4.1)
    except ElementTree.ParseError as error:
        raise TopologyError(f"{source}: no XML from line {error.position[0]} on; {DUMP}") from error
    cpus = system.findall("cpu")
    if system.tag != "system" or not cpus:
        raise TopologyError(f"{source}: no <system> with <cpu>s; {DUMP}")
    hosts = {cpu.get("host_hash", "") for cpu in cpus}
    if len(hosts) > 1:
        raise TopologyError(f"{source}: {len(hosts)} hosts (host_hash of <cpu>); give the dump of one host")
    return system, cpus


def _walk(device: ElementTree.Element, node: int, above: tuple[str, ...], found: _Found) -> None:
    bus_id, inner = device.get("busid", ""), device.findall("pci")
    gpus = device.findall("gpu")
    # 3D controllers and accelerators; displays of makers of GPUs alone: servers have others.
    pci_class = device.get("class", "")
    is_display = pci_class.startswith(("0x0300", "0x0380")) and device.get("vendor") in GPU_VENDORS
    is_gpu = is_display or pci_class.startswith(("0x0302", "0x1200"))
    if gpus or (not inner and is_gpu):
        found.cards.append(_Card(device, gpus[0] if gpus else None, bus_id))
        found.places[bus_id] = PciePlace(node, above)
    if len(gpus) > 1:
        found.lost.append(f"{len(gpus) - 1} more <gpu> in {clean(bus_id)}, which is one device")
    # The file leaves root ports out: the first bridge is a switch, and its link leads to the CPU.
    bridges = (*above, bus_id) if above else (f"root of {bus_id}", bus_id)
    if inner and (link := _link(device)) is not None:
        found.bridges.setdefault(bridges[0], link)
    for child in inner:
        _walk(child, node, bridges, found)


def _gpus(found: _Found, model: GpuModel | None) -> tuple[Gpu, ...]:
    numbers = _numbers(found)
    without = [card.bus_id for card in found.cards if card.gpu is None]
    if without:
        found.lost.append(
            f"links of {len(without)} GPUs that have no <gpu> ({', '.join(map(clean, without[:8]))}): a file "
            "for NCCL_TOPO_FILE leaves them to the driver"
        )
    gpus = [_gpu(card, numbers, found, model) for card in found.cards]
    if unnamed := [gpu.id for gpu in gpus if " GPU" in f" {gpu.name}"]:
        found.notes.append(f"names of {', '.join(unnamed)}: the PCI ids do not tell; name them with --gpu")
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _numbers(found: _Found) -> dict[str, int]:
    """Bus id -> number of the GPU: NCCL's `dev` where every GPU has its own, else the order of the file."""
    given = [_whole(card.gpu, "dev", -1, found.source) for card in found.cards if card.gpu is not None]
    if len(given) == len(found.cards) and len(set(given)) == len(given) and -1 not in given:
        return {card.bus_id: number for card, number in zip(found.cards, given, strict=True)}
    if given:
        found.notes.append("numbers of the GPUs (dev): missing or used twice; the file's order is taken")
    return {card.bus_id: number for number, card in enumerate(found.cards)}


def _gpu(card: _Card, numbers: dict[str, int], found: _Found, model: GpuModel | None) -> Gpu:
    architecture, vendor = _architecture(card, found.source)
    known = model or model_of(card.device.get("device", ""), architecture)
    assumed = known or slowest(architecture)
    links, to_switches, to_cpu = _links_of(card, numbers, found)
    arch = known.architecture if known else architecture
    rate = LINK_BYTES_PER_S.get(arch)
    if to_cpu and not rate:
        found.lost.append(f"{to_cpu} links from {clean(card.bus_id)} to the CPU: of unknown rate, see --gpu")
    c2c = _c2c(card, found.source)
    id_ = f"gpu{numbers[card.bus_id]}"
    pcie = _pcie(card, found)
    if c2c and pcie is not None:
        found.notes.append(f"PCIe gen {pcie.generation} x{pcie.width} of {id_}: its link to the CPU is used")
    guess = "" if known else f"assumption: as {assumed.name}, the slowest known of {arch or 'all'}; "
    return Gpu(
        numbers[card.bus_id],
        f"{vendor or known.vendor} {known.name}" if known else f"{vendor} GPU {arch}".strip(),
        f"GPU-{card.bus_id}",
        card.bus_id,
        pcie,
        links,
        to_switches,
        rate if links or to_switches else None,
        cpu_link_bytes_per_s=c2c or (to_cpu * rate if to_cpu and rate else None),
        memory_bytes_per_s=assumed.memory_bytes_per_s,
        memory_source=f"{guess}data sheet of {assumed.name}",
    )


def _links_of(card: _Card, numbers: dict[str, int], found: _Found) -> tuple[dict[int, int], int, int]:
    """Number of another GPU -> links to it; links to switches; links to the CPU."""
    direct: dict[int, int] = {}
    to_switches = to_cpu = 0
    for link in (element for tag in LINKS if card.gpu is not None for element in card.gpu.findall(tag)):
        target, count = link.get("target", ""), _whole(link, "count", 1, found.source)
        if target in numbers and target != card.bus_id:
            direct[numbers[target]] = direct.get(numbers[target], 0) + count
        elif link.get("tclass", "").startswith(CPU_CLASS):
            to_cpu += count
        elif link.get("tclass", "").startswith(SWITCH_CLASS):
            to_switches += count
        else:
            unknown = f"{clean(target) or 'nothing'}, which is not in the file"
            end = "itself" if target == card.bus_id else unknown
            found.lost.append(f"{count} <{link.tag}> from {clean(card.bus_id)} to {end}")
    return direct, to_switches, to_cpu


def _c2c(card: _Card, source: str) -> float | None:
    """Bytes a second, one direction, of a chip-to-chip link to the CPU: `count` links of `bw` MB/s."""
    links = [] if card.gpu is None else card.gpu.findall("c2c")
    rate = sum(_whole(link, "bw", 0, source) * _whole(link, "count", 1, source) for link in links)
    return rate * 1e6 or None


def _architecture(card: _Card, source: str) -> tuple[str, str]:
    """("sm_90", "NVIDIA") or ("gfx942", "AMD"): in AMD's dumps `sm` counts compute units."""
    id_ = card.device.get("vendor", "")
    vendor = GPU_VENDORS.get(id_, f"vendor {clean(id_)}" if id_ else "")
    if card.gpu is None:
        return "", vendor
    if (gcn := card.gpu.get("gcn")) is not None or vendor == "AMD":
        target = clean(gcn or "")
        target = target if target.startswith("gfx") or not target else f"gfx{target}"
        return OLD_NAMES.get(target, target), vendor or "AMD"
    sm = _whole(card.gpu, "sm", 0, source)
    return (f"sm_{sm}" if sm > 0 else ""), vendor or "NVIDIA"


def _whole(element: ElementTree.Element, name: str, default: int, source: str) -> int:
    """An attribute that is a small whole number, -1 where NCCL did not know it; else TopologyError."""
    text = element.get(name, str(default))
    if not re.fullmatch(r"-1|\d{1,6}", text, re.ASCII):
        raise TopologyError(
            f"{source}: {name} of <{element.tag}> is {clean(text)!r:.60}; it must be a whole number below "
            f"1000000; {DUMP}"
        )
    return int(text)


def _link(device: ElementTree.Element) -> PcieLink | None:
    """None without a known speed. A width of 0 is 16 lanes: NCCL, src/graph/topo.cc, ncclTopoAddPci."""
    generation, width = GENERATIONS.get(device.get("link_speed", "").partition(" ")[0]), _lanes(device)
    return PcieLink(generation, width or 16) if generation and width is not None else None


def _lanes(device: ElementTree.Element) -> int | None:
    width = device.get("link_width", "0")
    return int(width) if width.isdecimal() and len(width) < 4 else None


def _cores(cpu: ElementTree.Element) -> int | None:
    """The bits of the affinity mask, which NCCL writes as hexadecimal words; None where it is none."""
    mask = cpu.get("affinity", "").replace(",", "")
    return int(mask, 16).bit_count() or None if re.fullmatch(r"[0-9a-fA-F]{1,1024}", mask) else None
