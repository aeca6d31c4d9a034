"""Where the devices of a machine stand in its drawing: a tree from the CPUs down, one column for each GPU.

1. Every device under a CPU hangs on the one that leads to the CPU in the fewest links.
2. GPUs take a column each, from left to right; what a device has below it decides which columns it spans, so
   that links down are vertical lines.
3. Rows from top: host memory, CPUs, PCIe switches by depth, NICs, GPUs, NVSwitches. A NIC shares the column
   of a GPU under the same device, on its left; one without such a GPU has its own column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from topologies.model import Device, Machine

COLUMN = 150  # width of a column in pixels; all lengths here are in pixels
GROUP_GAP = 96  # between what hangs on different CPUs: room for the label of the link between them
PAD = 10
BOX_HEIGHT = 58
NIC_WIDTH, NIC_HEIGHT = 66, 34
ROW_GAP = 56
TRACK = 24  # height of a track below the GPUs, in which a direct link between two of them runs


@dataclass(frozen=True)
class Box:
    """One device: its upper left corner and its size."""

    device: Device
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True)
class Layout:
    """All boxes by device id, and the size that they take."""

    boxes: Mapping[str, Box]  # by device id
    tracks: Mapping[str, int]  # link id -> the track of a direct link between two GPUs, from 0 down
    ends: Mapping[str, tuple[str, str]]  # link id -> the GPUs of such a link
    width: float  # width, height: of everything
    height: float


def lay_out(machine: Machine) -> Layout:
    """Places the devices of a machine; the upper left corner is (0, 0)."""
    parents = hang(machine)
    columns = _columns(machine, parents)
    spans = {device.id: _span(device, machine, parents, columns) for device in machine.devices}
    left = _column_edges(machine, parents, columns)
    tracks = _tracks(machine, spans)
    tops = _row_tops(machine, parents, num_tracks=max(tracks.values(), default=-1) + 1)
    boxes = {}
    for device in machine.devices:
        first, last = spans[device.id]
        x, width = left[first] + PAD / 2, left[last] + COLUMN - left[first] - PAD
        boxes[device.id] = Box(device, x, tops[_row(device, machine, parents)], width, BOX_HEIGHT)
    boxes |= _side_by_side(boxes)
    nics = machine.of_kind("nic")
    boxes |= {nic.id: replace(boxes[nic.id], width=NIC_WIDTH, height=NIC_HEIGHT) for nic in nics}
    ends = {link.id: (link.first, link.second) for link in machine.links if link.id in tracks}
    height = max(box.bottom for box in boxes.values())
    if not machine.of_kind("nvswitch"):
        height += TRACK * (max(tracks.values(), default=-1) + 1)
    return Layout(boxes, tracks, ends, max(left.values()) + COLUMN, height)


def hang(machine: Machine) -> dict[str, str]:
    """Device -> the CPU or PCIe switch that it hangs on; a host memory hangs on its CPU too."""
    roots = [device.id for device in machine.of_kind("cpu")]
    parents: dict[str, str] = {}
    queue = list(roots)
    while queue:
        above = queue.pop(0)
        for link in machine.links:
            if above not in (link.first, link.second):
                continue
            below = link.second if link.first == above else link.first
            if below in parents or below in roots or machine.by_id[below].kind == "nvswitch":
                continue
            parents[below] = above
            if machine.by_id[below].kind == "pcie_switch":
                queue.append(below)
    return parents


def _columns(machine: Machine, parents: Mapping[str, str]) -> dict[str, int]:
    """Device -> column, for the devices that have one of their own or share it with a GPU (NICs)."""
    columns: dict[str, int] = {}
    number = 0
    for root in [d.id for d in machine.devices if d.id not in parents and d.kind != "nvswitch"]:
        number = _place_below(machine, parents, root, number, columns)
    return columns


def _place_below(
    machine: Machine, parents: Mapping[str, str], above: str, number: int, columns: dict[str, int]
) -> int:
    """Gives columns to all below a device, from `number` on; returns the next free one."""
    start = number
    below = [d for d in machine.devices if parents.get(d.id) == above and d.kind != "host_memory"]
    gpus = [device.id for device in below if device.kind == "gpu"]
    nics = [device.id for device in below if device.kind == "nic"]
    for device in below:
        if device.kind == "gpu":
            columns[device.id] = number
            number += 1
        elif device.kind != "nic":
            number = _place_below(machine, parents, device.id, number, columns)
    for at, nic in enumerate(nics):
        if at < len(gpus):
            columns[nic] = columns[gpus[at]]
        else:
            columns[nic] = number
            number += 1
    if number == start:
        columns[above] = number
        number += 1
    return number


def _span(
    device: Device, machine: Machine, parents: Mapping[str, str], columns: Mapping[str, int]
) -> tuple[int, int]:
    """The first and the last column of a device."""
    if device.kind == "nvswitch":
        ends = [{link.first, link.second} for link in machine.links if device.id in (link.first, link.second)]
        under = [columns[end] for pair in ends for end in pair if end in columns] or list(columns.values())
    elif device.kind == "host_memory" and device.id in parents:
        return _span(machine.by_id[parents[device.id]], machine, parents, columns)
    else:
        under = [column for other, column in columns.items() if device.id in _line(other, parents)]
    return min(under, default=0), max(under, default=0)


def _line(device: str, parents: Mapping[str, str]) -> list[str]:
    """A device and all that it hangs on, up to the root."""
    devices = [device]
    while devices[-1] in parents:
        devices.append(parents[devices[-1]])
    return devices


def _column_edges(
    machine: Machine, parents: Mapping[str, str], columns: Mapping[str, int]
) -> dict[int, float]:
    """Column -> its left edge; a gap between the columns of different roots."""
    roots = {column: _line(device, parents)[-1] for device, column in columns.items()}
    edges: dict[int, float] = {}
    x = 0.0
    for column in sorted(roots):
        if column and roots[column] != roots[column - 1]:
            x += GROUP_GAP
        edges[column] = x
        x += COLUMN
    return edges


def _row(device: Device, machine: Machine, parents: Mapping[str, str]) -> str:
    if device.kind != "pcie_switch":
        return device.id if device.kind == "nvswitch" else device.kind
    depth = sum(machine.by_id[above].kind == "pcie_switch" for above in _line(device.id, parents))
    return f"pcie_switch{depth}"


def _row_tops(machine: Machine, parents: Mapping[str, str], num_tracks: int) -> dict[str, float]:
    """Row -> the y of its upper edge; rows without a device take no room."""
    used = {_row(device, machine, parents) for device in machine.devices}
    switches = sorted(row for row in used if row.startswith("pcie_switch"))
    nvswitches = [device.id for device in machine.of_kind("nvswitch")]
    tops: dict[str, float] = {}
    y = 0.0
    for row in ("host_memory", "cpu", *switches, "nic", "gpu", *nvswitches):
        if row in used:
            tops[row] = y
            y += (NIC_HEIGHT + 16 if row == "nic" else BOX_HEIGHT) + ROW_GAP
        if row == "gpu":
            y += num_tracks * TRACK
    return tops


def _tracks(machine: Machine, spans: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Link id -> track of the direct links between GPUs: short ones above, and none over another."""
    gpus = {device.id for device in machine.of_kind("gpu")}
    direct = [link for link in machine.links if {link.first, link.second} <= gpus]
    ends = {link.id: tuple(sorted((spans[link.first][0], spans[link.second][0]))) for link in direct}
    taken: list[list[tuple[int, ...]]] = []
    tracks: dict[str, int] = {}
    for link_id in sorted(ends, key=lambda identity: (ends[identity][1] - ends[identity][0], ends[identity])):
        a, b = ends[link_id]
        free = (at for at, others in enumerate(taken) if all(b < c or d < a for c, d in others))
        track = next(free, len(taken))
        if track == len(taken):
            taken.append([])
        taken[track].append((a, b))
        tracks[link_id] = track
    return tracks


def _side_by_side(boxes: Mapping[str, Box]) -> dict[str, Box]:
    """Several host memories of a CPU share its width."""
    by_place: dict[tuple[float, float], list[Box]] = {}
    for box in boxes.values():
        if box.device.kind == "host_memory":
            by_place.setdefault((box.x, box.y), []).append(box)
    shared = {}
    for same in by_place.values():
        width = (same[0].width - PAD * (len(same) - 1)) / len(same)
        for at, box in enumerate(same):
            shared[box.device.id] = replace(box, x=box.x + at * (width + PAD), width=width)
    return shared


def shares_column(gpu: Box, layout: Layout) -> bool:
    """Whether a NIC stands in the GPU's column, on the left of its link."""
    return any(box.device.kind == "nic" and box.x == gpu.x for box in layout.boxes.values())
