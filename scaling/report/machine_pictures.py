"""A topology as an SVG picture: devices as boxes, links as lines with kind and GB/s, a legend.

And the spanning trees of a schedule.

One node is drawn in full. Of a cluster, the network and the other nodes stand on its right. The same topology
always gives the same text.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch

from scaling.analysis.columns import by_key
from scaling.collectives.schedule import Schedule
from scaling.files.texts import compact, gigabytes, gigabytes_per_s, microseconds
from scaling.report.figures.draw import svg_of
from scaling.report.figures.parts import SETTINGS, plate
from topologies.describe import link_rate
from topologies.layout import NIC_WIDTH, PAD, ROW_GAP, TRACK, Box, Layout, lay_out
from topologies.model import Device, DeviceKind, Link, Topology

DEVICES: dict[DeviceKind, tuple[str, str, str]] = {
    "host_memory": ("host memory", "#ece6fa", "#6a4fb3"),
    "cpu": ("CPU", "#dcebfa", "#1f6fb2"),
    "pcie_switch": ("PCIe switch", "#fdf0d0", "#a87a00"),
    "nic": ("NIC", "#fbdfea", "#c2185b"),
    "gpu": ("GPU", "#dff2dc", "#3d8b37"),
    "nvswitch": ("NVSwitch", "#d6f1ee", "#00796b"),
}
"""Word, fill, light enough for black text, and edge."""
LINK_COLORS = {"pcie": "#a87a00", "nvlink": "#00796b", "memory": "#6a4fb3", "network": "#c2185b"}
OTHER_LINK_COLOR = "#1f6fb2"
FRAME, PAPER, GREY = "#8a8a8a", "#fcfcfb", "#555555"
MARGIN, TITLE_HEIGHT, BOARD_LABEL_HEIGHT, LINE_HEIGHT = 28, 66, 26, 22
NETWORK_WIDTH, MIN_WIDTH = 190, 720
LETTER_WIDTH = 5.7
POINTS_PER_INCH = 72
STYLE = {**SETTINGS, "font.size": 12, "legend.fontsize": 12}

Point = tuple[float, float]


def draw(topology: Topology) -> str:
    with matplotlib.rc_context(STYLE):
        return svg_of(_figure(topology), topology.name, topology.description)


def _figure(topology: Topology) -> Figure:
    """In pixels, which are points too, y from above; the drawn node's corner is at (0, 0)."""
    layout = lay_out(topology.machine)
    margin = MARGIN if topology.network is None else 2 * MARGIN
    network_width = 0 if topology.network is None else NETWORK_WIDTH + MARGIN
    width = max(layout.width + 2 * margin + network_width, MIN_WIDTH)
    label = BOARD_LABEL_HEIGHT if any(device.board for device in topology.machine.devices) else 0
    devices, links = _device_samples(topology, 0.43 * width), _link_samples(topology, 0.57 * width)
    bottom = layout.height + label + margin + MARGIN
    top = -TITLE_HEIGHT - margin
    height = bottom - top + LINE_HEIGHT * (max(len(devices), len(links)) + 1)
    figure = Figure(figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-margin, width - margin), ylim=(top + height, top))
    axes.axis("off")
    axes.text(MARGIN - margin, top + 38, topology.name, size=20, weight="bold")
    lines = textwrap.wrap(topology.description, int((width - 2 * MARGIN) / 7))[:2]
    axes.text(MARGIN - margin, top + 46, "\n".join(lines), size=13, va="top")
    _frames(axes, topology, layout)
    _links(axes, topology, layout)
    for box in layout.boxes.values():
        lines = [box.device.id, *(() if box.device.kind == "nic" else _details(box.device, box.width))]
        _box(axes, (box.x, box.y), (box.width, box.height), lines, DEVICES[box.device.kind][1:])
    _network(axes, topology, layout)
    for samples, x in ((devices, MARGIN), (links, 0.43 * width)):
        at = (x / width, 1 - (bottom - top) / height)
        figure.legend(handles=samples, loc="upper left", bbox_to_anchor=at, frameon=False, borderpad=0)
    return figure


def _box(
    axes: Axes, at: Point, size: Point, lines: Sequence[str], colors: tuple[str, str], **more: Any
) -> None:
    """A rectangle with round corners and, in its middle, lines of text, the first in bold."""
    style = {"boxstyle": "round,pad=0,rounding_size=6", "lw": 1.5, "zorder": 3, **more}
    axes.add_patch(FancyBboxPatch(at, *size, facecolor=colors[0], edgecolor=colors[1], **style))
    x, y = at[0] + size[0] / 2, at[1] + size[1] / 2 - 7 * (len(lines) - 1)
    for number, line in enumerate(lines):
        weight, points = ("normal", 10.5) if number else ("bold", 13)
        axes.text(x, y + 14 * number, line, size=points, weight=weight, ha="center", va="center", zorder=4)


def _details(device: Device, width: float) -> list[str]:
    """What fits into the box: the name in two lines at most, or in one with a figure."""
    figure = ""
    if device.cores:
        figure = f"{device.cores} cores"
    elif device.bandwidth_bytes_per_s:
        figure = "memory " * (device.kind == "gpu") + gigabytes_per_s(device.bandwidth_bytes_per_s)
    name = textwrap.wrap(device.name, max(8, int(width / 5.8)))
    return [part for part in (*name, figure) if part][:2] if len(name) < 2 else name[:2]


def _device_samples(topology: Topology, width: float) -> list[Patch]:
    samples = []
    for kind, (word, fill, edge) in DEVICES.items():
        if devices := topology.machine.of_kind(kind):
            names = dict.fromkeys(device.name for device in devices if device.name not in ("", word))
            label = _fitting(f"{word}: {'; '.join(names)}".removesuffix(": "), width)
            samples.append(Patch(facecolor=fill, edgecolor=edge, label=label))
    return samples


def _link_samples(topology: Topology, width: float) -> list[Line2D]:
    """What one cable of each type gives, every type once; the network; notes."""
    kinds = {
        f"{link.type or link.kind}: {link_rate(link, link.count)}, {microseconds(link.latency_s)}": link.kind
        for link in topology.machine.links
    }
    if (network := topology.network) is not None:
        rate = f"{gigabytes_per_s(network.bandwidth_bytes_per_s)} each direction of a NIC"
        kinds[f"{network.kind}: {rate}, {microseconds(network.latency_s)}"] = "network"
    labels = [(_color(kind), _fitting(words, width)) for words, kind in kinds.items()]
    samples = [Line2D([], [], color=color, lw=3, label=label) for color, label in labels]
    machine = topology.machine
    gpus = [gpu.id for gpu in machine.of_kind("gpu")]
    if len(gpus) < 2:
        return samples
    groups = [compact([gpu for gpu in gpus if gpu in group]) for group in machine.peer_groups]
    groups += ["unknown of others, priced without"] * machine.other_peers_unknown
    access = f"Peer access: {'; '.join(groups) or 'none, all between GPUs passes host memory'}"
    notes = [*textwrap.wrap(access, int(width / LETTER_WIDTH) - 8), "Thicker lines have more bandwidth."]
    return samples + [Line2D([], [], lw=0, label=note) for note in notes]


def _fitting(words: str, width: float) -> str:
    return textwrap.shorten(words, int(width / LETTER_WIDTH) - 8, placeholder=" ...")


def _color(kind: str) -> str:
    return LINK_COLORS.get(kind, OTHER_LINK_COLOR)


def _links(axes: Axes, topology: Topology, layout: Layout) -> None:
    for link in topology.machine.links:
        points, at, anchor = _way(link, topology, layout)
        color, width = _color(link.kind), _thickness(link.bandwidth_bytes_per_s)
        axes.plot(*zip(*points, strict=True), color=color, lw=width, zorder=2)
        kind = f"{link.count} x {link.kind}" if link.count > 1 else link.kind
        rate = gigabytes(link.bandwidth_bytes_per_s)
        back = link.back_bytes_per_s
        if back is not None and abs(back / link.bandwidth_bytes_per_s - 1) > 0.02:
            rate += f" / {gigabytes(back)}"
        label = f"{kind} {rate} GB/s" if link.id in layout.tracks else f"{kind}\n{rate} GB/s"
        axes.text(*at, label, size=11, color=color, ha=anchor, va="center", bbox=plate(0.5), zorder=5)


def _way(link: Link, topology: Topology, layout: Layout) -> tuple[list[Point], Point, str]:
    """The points of a link, where its label is, and how that is anchored."""
    a, b = layout.boxes[link.first], layout.boxes[link.second]
    left, right = sorted((a, b), key=lambda box: box.x)
    if link.id in layout.tracks:  # down from one GPU, along the link's track, up to the other
        y = left.bottom + TRACK * (layout.tracks[link.id] + 0.8)
        x0, x1 = (_port(link, box, topology, layout) for box in (left, right))
        return [(x0, left.bottom), (x0, y), (x1, y), (x1, right.bottom)], ((x0 + x1) / 2, y), "center"
    if a.y == b.y:  # straight between two boxes of a row; over what stands between them
        start, end, y = left.x + left.width, right.x, left.y
        if any(box.y == y and start < box.x < end for box in layout.boxes.values()):
            over = [(start - 16, y), (start - 16, y - 16), (end + 16, y - 16), (end + 16, y)]
            return over, ((start + end) / 2, y - 33), "center"
        y += left.height / 2
        return [(start, y), (end, y)], ((start + end) / 2, y - 18), "center"
    upper, lower = sorted((a, b), key=lambda box: box.y)
    # The narrower of the two decides: the wider spans its column.
    narrow = min((lower, upper), key=lambda box: box.width)
    x = narrow.middle
    nics = (box for box in layout.boxes.values() if box.device.kind == "nic")
    if narrow.device.kind == "gpu" and lower is narrow and any(nic.x == narrow.x for nic in nics):
        x = narrow.x + (NIC_WIDTH + narrow.width) / 2 + PAD / 2
        return [(x, upper.bottom), (x, lower.y)], (x - 6, lower.y - ROW_GAP / 2 + 8), "right"
    if not upper.x <= x <= upper.x + upper.width:  # no straight way down
        x = (upper.middle + lower.middle) / 2 + 6
        return (
            [(upper.middle, upper.bottom), (lower.middle, lower.y)],
            (x, (upper.bottom + lower.y) / 2),
            "left",
        )
    return [(x, upper.bottom), (x, lower.y)], (x + 6, lower.y - ROW_GAP / 2), "left"


def _port(link: Link, at: Box, topology: Topology, layout: Layout) -> float:
    """Ports from left to right: links to the left, deep ones first; then to the right, deep ones last."""
    order = []
    for other in topology.machine.links:
        ends = {other.first, other.second}
        if other.id in layout.tracks and at.device.id in ends:
            (far,) = ends - {at.device.id}
            to_right, track = layout.boxes[far].x > at.x, layout.tracks[other.id]
            order.append((to_right, track if to_right else -track, other.id))
    number = [link_id for *_, link_id in sorted(order)].index(link.id)
    return at.x + at.width * (number + 1) / (len(order) + 1)


def _frames(axes: Axes, topology: Topology, layout: Layout) -> None:
    """Round GPUs that share a board; of a cluster, round the node that is drawn."""
    if topology.network is not None:
        size = (layout.width + 2 * MARGIN, layout.height + 2 * MARGIN)
        _box(axes, (-MARGIN, -MARGIN), size, (), (PAPER, FRAME), zorder=0)
        words = f"one of {topology.num_nodes} nodes: {topology.machine.name}"
        axes.text(layout.width, -MARGIN - 8, words, ha="right", color=GREY)
    boxes = [box for box in layout.boxes.values() if box.device.board is not None]
    for name, gpus in by_key(boxes, lambda box: box.device.board).items():
        x, right, y = min(b.x for b in gpus) - 6, max(b.x + b.width for b in gpus) + 6, gpus[0].y - 8
        size = (right - x, gpus[0].height + BOARD_LABEL_HEIGHT + 8)
        _box(axes, (x, y), size, (), ("#f7f7f4", FRAME), zorder=1, linestyle="--")
        axes.text((x + right) / 2, gpus[0].bottom + 19, f"board {name}", size=11, color=GREY, ha="center")


def _network(axes: Axes, topology: Topology, layout: Layout) -> None:
    """A line under the NICs to the network, and the other nodes behind it."""
    network = topology.network
    nics = [box for box in layout.boxes.values() if box.device.kind == "nic"]
    if network is None or not nics:
        return
    y, left, color = nics[0].bottom + 12, layout.width + 2 * MARGIN, _color("network")
    width = _thickness(network.bandwidth_bytes_per_s)
    for nic in nics:
        axes.plot([nic.middle] * 2, [nic.bottom, y], color=color, lw=width)
    axes.plot([min(nic.middle for nic in nics), left], [y, y], color=color, lw=width + 1.5)
    rate = f"{gigabytes_per_s(network.bandwidth_bytes_per_s)} a NIC"
    lines = ("network", network.kind, rate, microseconds(network.latency_s))
    _box(axes, (left, y - 42), (NETWORK_WIDTH, 84), lines, DEVICES["nic"][1:])
    axes.plot([left + NETWORK_WIDTH / 2 - 7] * 2, [y + 42, y + 76], color=color, lw=3)
    words = (f"x {topology.num_nodes} nodes", f"{topology.num_gpus} GPUs in all")
    for at in (2, 1, 0):  # three cards, the first on top
        corner, size = (left + 10 + 7 * at, y + 76 + 7 * at), (NETWORK_WIDTH - 34, 64)
        _box(axes, corner, size, () if at else words, (PAPER, FRAME))


def _thickness(bytes_per_s: float) -> float:
    """From 1.5 to 6 with the logarithm of the bandwidth: in proportion, slow links would vanish."""
    return min(6.0, max(1.5, 0.5 + 0.8 * math.log2(1 + bytes_per_s / 5e9)))


MAX_CHUNKS = 16
PANELS_PER_ROW = 4
SIZE, TOP = 170.0, 34.0
COLORS = ("#1b6ca8", "#d1495b", "#2e8b57", "#b8860b", "#6a4c93", "#777777")


def draw_trees(schedule: Schedule, title: str) -> str:
    """Of a schedule's chunks, of many the first ones, how each goes from rank to rank at the end.

    That is the all-gather, its transfers numbered by their steps; the reduce-scatter before it goes up trees
    of the same kind."""
    chunks = min(schedule.num_chunks, MAX_CHUNKS)
    columns = min(chunks, PANELS_PER_ROW)
    rows = math.ceil(chunks / columns)
    width, height = max(SIZE * columns, 7.0 * len(title)), TOP + SIZE * rows
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH))
        figure.text(8 / width, 1 - 20 / height, title, size=12, weight="bold")
        for chunk in range(chunks):
            corner = SIZE * (chunk % columns), height - TOP - SIZE * (chunk // columns + 1)
            place = (corner[0] / width, corner[1] / height, SIZE / width, SIZE / height)
            _panel(figure.add_axes(place, xlim=(-1.5, 1.5), ylim=(-1.5, 1.5)), schedule, chunk)
        return svg_of(figure, title, title)


def _panel(axes: Axes, schedule: Schedule, chunk: int) -> None:
    axes.axis("off")
    axes.text(0, -1.45, f"chunk {chunk}", size=10, ha="center")
    angles = 2 * math.pi * np.arange(schedule.world_size) / schedule.world_size
    places = np.stack([np.sin(angles), np.cos(angles)], axis=1)
    for rank, (x, y) in enumerate(places):
        axes.text(x, y, str(rank), size=11, ha="center", va="center")
    moves = [
        (number, transfer)
        for number, step in enumerate(schedule.steps, 1)
        for transfer in step
        if transfer.operation == "copy" and transfer.start <= chunk < transfer.stop
    ]
    for number, transfer in moves:
        start, way = places[transfer.source], places[transfer.target] - places[transfer.source]
        color = COLORS[(number - moves[0][0]) % len(COLORS)]
        axes.plot(*np.stack([start + 0.12 * way, start + 0.88 * way], axis=1), color=color, lw=1.8)
        x, y = start + 0.72 * way
        axes.text(x, y, str(number), size=9, color=color, ha="center", va="center", bbox=plate(0.5))
