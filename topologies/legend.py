"""What the colours of the drawing mean: kinds of device, types of link, and who has peer access."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from scaling.files.texts import compact, gigabytes, gigabytes_per_s, microseconds
from topologies.model import DeviceKind, Link, Topology
from topologies.svg import box, line, text

DEVICE_COLORS: dict[DeviceKind, tuple[str, str]] = {
    "host_memory": ("#ece6fa", "#6a4fb3"),
    "cpu": ("#dcebfa", "#1f6fb2"),
    "pcie_switch": ("#fdf0d0", "#a87a00"),
    "nic": ("#fbdfea", "#c2185b"),
    "gpu": ("#dff2dc", "#3d8b37"),
    "nvswitch": ("#d6f1ee", "#00796b"),
}
"""Fill and edge, light enough for black text."""
DEVICE_WORDS: dict[DeviceKind, str] = {
    "host_memory": "host memory",
    "cpu": "CPU",
    "pcie_switch": "PCIe switch",
    "nic": "NIC",
    "gpu": "GPU",
    "nvswitch": "NVSwitch",
}
LINK_COLORS = {"pcie": "#a87a00", "nvlink": "#00796b", "memory": "#6a4fb3", "network": "#c2185b"}
OTHER_LINK_COLOR = "#1f6fb2"
LINE_HEIGHT = 22
LETTER_WIDTH = 5.7
SAMPLE_WIDTH = 34


def link_color(kind: str) -> str:
    """The colour of links of a kind."""
    return LINK_COLORS.get(kind, OTHER_LINK_COLOR)


def legend_parts(topology: Topology, width: float) -> tuple[list[str], float]:
    """The legend in two columns, its upper left corner at (0, 0), and its height in pixels."""
    right = width * 0.45
    devices = [(kind, _fitting(words, right)) for kind, words in _device_lines(topology)]
    links = [(kind, _fitting(words, width - right)) for kind, words in _link_lines(topology)]
    notes = _notes(topology, width - right)
    parts = [part for at, (kind, words) in enumerate(devices) for part in _device(kind, words, at)]
    parts += [part for at, (kind, words) in enumerate(links) for part in _link(kind, words, right, at)]
    parts += [
        text((right, (len(links) + at) * LINE_HEIGHT), words, anchor="start")
        for at, words in enumerate(notes)
    ]
    return parts, LINE_HEIGHT * (max(len(devices), len(links) + len(notes)) + 0.5)


def _fitting(words: str, width: float) -> str:
    return textwrap.shorten(words, int((width - SAMPLE_WIDTH) / LETTER_WIDTH), placeholder=" ...")


def _device(kind: DeviceKind, words: str, at: int) -> list[str]:
    fill, edge = DEVICE_COLORS[kind]
    y = at * LINE_HEIGHT
    return [
        box((0, y - 11), (26, 14), fill=fill, stroke=edge),
        text((SAMPLE_WIDTH, y), words, anchor="start"),
    ]


def _link(kind: str, words: str, x: float, at: int) -> list[str]:
    y = at * LINE_HEIGHT
    sample = line([(x, y - 4), (x + 26, y - 4)], color=link_color(kind), width=3)
    return [sample, text((x + SAMPLE_WIDTH, y), words, anchor="start")]


def _device_lines(topology: Topology) -> list[tuple[DeviceKind, str]]:
    lines = []
    for kind, word in DEVICE_WORDS.items():
        devices = topology.machine.of_kind(kind)
        names = dict.fromkeys(device.name for device in devices if device.name not in ("", word))
        if devices:
            lines.append((kind, f"{word}: {'; '.join(names)}" if names else word))
    return lines


def _link_lines(topology: Topology) -> list[tuple[str, str]]:
    lines = _link_types(topology.machine.links)
    network = topology.network
    if network is not None:
        rate = gigabytes_per_s(network.bandwidth_bytes_per_s)
        words = f"{network.kind}: {rate} each direction of a NIC, {microseconds(network.latency_s)}"
        lines.append(("network", words))
    return lines


def _link_types(links: Iterable[Link]) -> list[tuple[str, str]]:
    """(kind, what one cable of each type gives), every type once."""
    entries: dict[tuple[str, str], None] = {}
    for link in links:
        words = gigabytes_per_s(link.bandwidth_bytes_per_s / link.count)
        if link.back_bytes_per_s is not None:
            words += f" there, {gigabytes(link.back_bytes_per_s / link.count)} back"
        else:
            words += " each direction" if link.duplex else " both directions together"
        entries[link.kind, f"{link.type or link.kind}: {words}, {microseconds(link.latency_s)}"] = None
    return list(entries)


def _notes(topology: Topology, width: float) -> list[str]:
    machine = topology.machine
    gpus = [gpu.id for gpu in machine.of_kind("gpu")]
    if len(gpus) < 2:
        return []
    groups = [compact([gpu for gpu in gpus if gpu in group]) for group in machine.peer_groups]
    access = "; ".join(groups) or "none, all between GPUs passes host memory"
    return [
        *textwrap.wrap(f"Peer access: {access}", int(width / LETTER_WIDTH)),
        "Thicker lines have more bandwidth.",
    ]
