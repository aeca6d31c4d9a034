"""A topology as an SVG picture: devices as boxes, links as lines with kind and GB/s, a legend.

One node is drawn in full. Of a cluster, the network and the other nodes stand on its right. The same topology
always gives the same text.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable

from scaling.files.texts import compact, gigabytes, gigabytes_per_s, microseconds
from topologies.layout import NIC_WIDTH, PAD, ROW_GAP, TRACK, Box, Layout, lay_out, shares_column
from topologies.model import Device, DeviceKind, Link, Topology
from topologies.svg import Point, box, document, line, plate, text

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
    return LINK_COLORS.get(kind, OTHER_LINK_COLOR)


def legend_parts(topology: Topology, width: float) -> tuple[list[str], float]:
    """The legend in two columns, its upper left corner at (0, 0), and its height in pixels."""
    right = width * 0.45
    devices = [(kind, _fitting(words, right)) for kind, words in _device_lines(topology)]
    links = [(kind, _fitting(words, width - right)) for kind, words in _link_lines(topology)]
    notes = _notes(topology, width - right)
    parts = [part for at, (kind, words) in enumerate(devices) for part in _legend_device(kind, words, at)]
    parts += [part for at, (kind, words) in enumerate(links) for part in _link(kind, words, right, at)]
    for at, words in enumerate(notes, len(links)):
        parts.append(text((right, at * LINE_HEIGHT), words, anchor="start"))
    return parts, LINE_HEIGHT * (max(len(devices), len(links) + len(notes)) + 0.5)


def _fitting(words: str, width: float) -> str:
    return textwrap.shorten(words, int((width - SAMPLE_WIDTH) / LETTER_WIDTH), placeholder=" ...")


def _legend_device(kind: DeviceKind, words: str, at: int) -> list[str]:
    fill, edge = DEVICE_COLORS[kind]
    y = at * LINE_HEIGHT
    sample = box((0, y - 11), (26, 14), fill=fill, stroke=edge)
    return [sample, text((SAMPLE_WIDTH, y), words, anchor="start")]


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


FRAME = "#8a8a8a"
MARGIN = 28
TITLE_HEIGHT = 66
BOARD_LABEL_HEIGHT = 26
NETWORK_WIDTH = 190
MIN_WIDTH = 720


def draw(topology: Topology) -> str:
    layout = lay_out(topology.machine)
    frame = 0 if topology.network is None else MARGIN
    left, top = MARGIN + frame, TITLE_HEIGHT + MARGIN + frame
    network_width = 0 if topology.network is None else NETWORK_WIDTH + MARGIN
    width = max(left + layout.width + frame + network_width + MARGIN, MIN_WIDTH)
    label = BOARD_LABEL_HEIGHT if any(device.board for device in topology.machine.devices) else 0
    bottom = top + layout.height + label + frame + 2 * MARGIN
    legend, legend_height = legend_parts(topology, width - 2 * MARGIN)
    parts = [
        *_title(topology, width),
        f'<g transform="translate({left} {top})">',
        *_frame(topology, layout),
        *_node(topology, layout),
        *_network(topology, layout),
        "</g>",
        f'<g transform="translate({MARGIN} {bottom:.0f})">',
        *legend,
        "</g>",
    ]
    return document(width, bottom + legend_height, topology.name, parts)


def _title(topology: Topology, width: float) -> list[str]:
    lines = textwrap.wrap(topology.description, int((width - 2 * MARGIN) / 7))[:2]
    parts = [text((MARGIN, 38), topology.name, size=20, anchor="start", bold=True)]
    y = 58
    return parts + [text((MARGIN, y + 16 * at), of, size=13, anchor="start") for at, of in enumerate(lines)]


def _node(topology: Topology, layout: Layout) -> list[str]:
    """Links first, so that boxes lie over their ends, then labels over all."""
    lines, labels = [], []
    for link in topology.machine.links:
        points, at, anchor = _way(link, layout)
        lines.append(line(points, color=link_color(link.kind), width=_thickness(link.bandwidth_bytes_per_s)))
        labels += _link_label(link, at, anchor, one_line=link.id in layout.tracks)
    boards = _boards(layout)
    return [*boards, *lines, *(part for box_ in layout.boxes.values() for part in _device(box_)), *labels]


def _way(link: Link, layout: Layout) -> tuple[list[Point], Point, str]:
    """The points of a link, where its label is, and how that is anchored."""
    a, b = layout.boxes[link.first], layout.boxes[link.second]
    if link.id in layout.tracks:
        return _below(link, a, b, layout)
    if a.y == b.y:
        return _beside(a, b, layout)
    upper, lower = sorted((a, b), key=lambda box_: box_.y)
    # The narrower of the two decides: the wider spans its column.
    narrow = min((lower, upper), key=lambda box_: box_.width)
    x = narrow.middle
    if narrow.device.kind == "gpu" and lower is narrow and shares_column(narrow, layout):
        x = narrow.x + (NIC_WIDTH + narrow.width) / 2 + PAD / 2
        middle = lower.y - ROW_GAP / 2 - 2
        return [(x, upper.bottom), (x, lower.y)], (x - 6, middle + 8), "end"
    if not upper.x <= x <= upper.x + upper.width:  # no straight way down
        points = [(upper.middle, upper.bottom), (lower.middle, lower.y)]
        return points, ((upper.middle + lower.middle) / 2 + 6, (upper.bottom + lower.y) / 2), "start"
    return [(x, upper.bottom), (x, lower.y)], (x + 6, lower.y - ROW_GAP / 2), "start"


def _beside(a: Box, b: Box, layout: Layout) -> tuple[list[Point], Point, str]:
    """Straight between two boxes of a row; over what stands between them."""
    left, right = sorted((a, b), key=lambda box_: box_.x)
    start, end, y = left.x + left.width, right.x, left.y
    if any(box_.y == y and start < box_.x < end for box_ in layout.boxes.values()):
        over = [(start - 16, y), (start - 16, y - 16), (end + 16, y - 16), (end + 16, y)]
        return over, ((start + end) / 2, y - 36), "middle"
    y += left.height / 2
    return [(start, y), (end, y)], ((start + end) / 2, y - 20), "middle"


def _below(link: Link, a: Box, b: Box, layout: Layout) -> tuple[list[Point], Point, str]:
    """Down from one GPU, along the link's track, up to the other; each link has its own port at a GPU."""
    left, right = sorted((a, b), key=lambda box_: box_.x)
    y = left.bottom + TRACK * (layout.tracks[link.id] + 0.8)
    x0, x1 = _port(link, left, layout), _port(link, right, layout)
    return [(x0, left.bottom), (x0, y), (x1, y), (x1, right.bottom)], ((x0 + x1) / 2, y + 4), "middle"


def _port(link: Link, at: Box, layout: Layout) -> float:
    """Ports from left to right: links to the left, deep ones first; then to the right, deep ones last."""
    order = []
    for link_id, (a, b) in layout.ends.items():
        if at.device.id in (a, b):
            to_right = layout.boxes[b if a == at.device.id else a].x > at.x
            track = layout.tracks[link_id]
            order.append((to_right, track if to_right else -track, link_id))
    number = [link_id for *_, link_id in sorted(order)].index(link.id)
    return at.x + at.width * (number + 1) / (len(order) + 1)


def _link_label(link: Link, at: Point, anchor: str, *, one_line: bool) -> list[str]:
    kind = f"{link.count} x {link.kind}" if link.count > 1 else link.kind
    rate = gigabytes(link.bandwidth_bytes_per_s)
    back = link.back_bytes_per_s
    if back is not None and abs(back / link.bandwidth_bytes_per_s - 1) > 0.02:
        rate += f" / {gigabytes(back)}"
    color = link_color(link.kind)
    if one_line:
        label = f"{kind} {rate} GB/s"
        return [plate(at, label, size=11), text(at, label, size=11, color=color)]
    lines = (kind, f"{rate} GB/s")
    return [
        text((at[0], at[1] + 13 * row), line, size=11, anchor=anchor, color=color, halo=True)
        for row, line in enumerate(lines)
    ]


def _device(box_: Box) -> list[str]:
    device = box_.device
    fill, edge = DEVICE_COLORS[device.kind]
    lines = [] if device.kind == "nic" else _details(device, box_.width)
    top = box_.y + box_.height / 2 + 5 - 7 * len(lines)
    return [
        box((box_.x, box_.y), (box_.width, box_.height), fill=fill, stroke=edge, label=device.name or None),
        text((box_.middle, top), device.id, size=13, bold=True),
        *(text((box_.middle, top + 14 * (at + 1)), line, size=10.5) for at, line in enumerate(lines)),
    ]


def _details(device: Device, width: float) -> list[str]:
    """What fits into the box: the name in two lines at most, or in one with a figure."""
    figure = ""
    if device.cores:
        figure = f"{device.cores} cores"
    elif device.bandwidth_bytes_per_s:
        figure = gigabytes_per_s(device.bandwidth_bytes_per_s)
        figure = f"memory {figure}" if device.kind == "gpu" else figure
    name = textwrap.wrap(device.name, max(8, int(width / 5.8)))
    if len(name) < 2:
        return [part for part in (*name, figure) if part]
    return name[:2]


def _boards(layout: Layout) -> list[str]:
    """A frame round GPUs that share a board."""
    boards: dict[str, list[Box]] = {}
    for box_ in layout.boxes.values():
        if box_.device.board is not None:
            boards.setdefault(box_.device.board, []).append(box_)
    parts = []
    for name, gpus in boards.items():
        x, right = min(b.x for b in gpus) - 6, max(b.x + b.width for b in gpus) + 6
        y = gpus[0].y - 8
        size, at = (
            (right - x, gpus[0].height + BOARD_LABEL_HEIGHT + 8),
            ((x + right) / 2, y + gpus[0].height + 27),
        )
        parts.append(box((x, y), size, fill="#f7f7f4", stroke=FRAME, dashed=True))
        parts.append(text(at, f"board {name}", size=11, color="#555555"))
    return parts


def _frame(topology: Topology, layout: Layout) -> list[str]:
    """Of a cluster: the frame of the node that is drawn, over those of others."""
    if topology.network is None:
        return []
    size = (layout.width + 2 * MARGIN, layout.height + 2 * MARGIN)
    words = f"one of {topology.num_nodes} nodes: {topology.machine.name}"
    return [
        box((-MARGIN, -MARGIN), size, fill="#fcfcfb", stroke=FRAME),
        text((layout.width, -MARGIN - 8), words, anchor="end", color="#555555"),
    ]


def _network(topology: Topology, layout: Layout) -> list[str]:
    """A line under the NICs to the network, and the other nodes behind it."""
    network = topology.network
    nics = [box_ for box_ in layout.boxes.values() if box_.device.kind == "nic"]
    if network is None or not nics:
        return []
    y = nics[0].bottom + 12
    left, color = layout.width + 2 * MARGIN, link_color("network")
    width = _thickness(network.bandwidth_bytes_per_s)
    parts = [line([(nic.middle, nic.bottom), (nic.middle, y)], color=color, width=width) for nic in nics]
    parts.append(line([(min(nic.middle for nic in nics), y), (left, y)], color=color, width=width + 1.5))
    each = f"{gigabytes_per_s(network.bandwidth_bytes_per_s)} a NIC"
    fill, edge = DEVICE_COLORS["nic"]
    parts.append(box((left, y - 42), (NETWORK_WIDTH, 84), fill=fill, stroke=edge))
    lines = ("network", network.kind, each, microseconds(network.latency_s))
    parts += [
        text((left + NETWORK_WIDTH / 2, y - 22 + 18 * at), line, size=14 if not at else 12, bold=not at)
        for at, line in enumerate(lines)
    ]
    return parts + _other_nodes(topology, left, y + 42)


def _other_nodes(topology: Topology, left: float, y: float) -> list[str]:
    color = link_color("network")
    parts = [line([(left + NETWORK_WIDTH / 2, y), (left + NETWORK_WIDTH / 2, y + 34)], color=color, width=3)]
    for at in (2, 1, 0):  # three cards, the first on top
        corner, size = (left + 10 + 7 * at, y + 34 + 7 * at), (NETWORK_WIDTH - 34, 64)
        parts.append(box(corner, size, fill="#fcfcfb", stroke=FRAME))
    middle = left + 10 + (NETWORK_WIDTH - 34) / 2
    parts.append(text((middle, y + 62), f"x {topology.num_nodes} nodes", size=15, bold=True))
    parts.append(text((middle, y + 82), f"{topology.num_gpus} GPUs in all", size=12))
    return parts


def _thickness(bytes_per_s: float) -> float:
    """From 1.5 to 6 with the logarithm of the bandwidth: in proportion, slow links would vanish."""
    return min(6.0, max(1.5, 0.5 + 0.8 * math.log2(1 + bytes_per_s / 5e9)))
