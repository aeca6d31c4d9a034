"""Where the devices of a machine stand in its drawing: a tree from the CPUs down, one column for each GPU.

1. Every device under a CPU hangs on the one that leads to the CPU in the fewest links.
2. GPUs take a column each, from left to right; what a device has below it decides which columns it spans, so
   that links down are vertical lines.
3. Rows from top: host memory, CPUs, PCIe switches by depth, NICs, GPUs, NVSwitches. A NIC shares the column
   of a GPU under the same device, on its left; one without such a GPU has its own column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import networkx as nx

from topologies.model import Device, Machine

COLUMN = 150  # width of a column in pixels; all lengths here are in pixels
GROUP_GAP = 96  # between what hangs on different CPUs: room for the label of the link between them
PAD = 10
BOX_HEIGHT = 58
NIC_WIDTH, NIC_HEIGHT = 66, 34
ROW_GAP = 56
TRACK = 24  # height of a track below the GPUs, in which a direct link between two of them runs
ROWS = ("host_memory", "cpu", "pcie_switch", "nic", "gpu", "nvswitch")
TOP = ""  # of the tree, above the CPUs


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
    boxes: Mapping[str, Box]  # by device id
    tracks: Mapping[str, int]  # link id -> the track of a direct link between two GPUs, from 0 down
    width: float  # width, height: of everything
    height: float


def lay_out(machine: Machine) -> Layout:
    """Places the devices of a machine; the upper left corner is (0, 0)."""
    tree = hang(machine)
    columns = _columns(machine, tree)
    spans = {device.id: _span(device, machine, tree, columns) for device in machine.devices}
    left, x = dict[int, float](), 0.0
    roots = {columns[id_]: root for root in tree[TOP] for id_ in _below(tree, root) if id_ in columns}
    for column in sorted(roots):
        x += GROUP_GAP if column and roots[column] != roots[column - 1] else 0
        left[column], x = x, x + COLUMN
    tracks = _tracks(machine, columns)
    height_of_tracks = TRACK * (max(tracks.values(), default=-1) + 1)
    rows = {device.id: _row(device, machine, tree) for device in machine.devices}
    tops, y = dict[tuple[int, int], float](), 0.0
    for row in sorted(set(rows.values())):
        y += height_of_tracks if ROWS[row[0]] == "nvswitch" and row[1] == 0 else 0
        tops[row] = y
        y += (NIC_HEIGHT + 16 if ROWS[row[0]] == "nic" else BOX_HEIGHT) + ROW_GAP
    boxes = {}
    for device in machine.devices:
        first, last = spans[device.id]
        box_x, width = left[first] + PAD / 2, left[last] + COLUMN - left[first] - PAD
        if device.kind == "host_memory":  # several of a CPU share its width
            (above,) = tree.predecessors(device.id)
            same = [id_ for id_ in tree[above] if above and machine.by_id[id_].kind == "host_memory"]
            width = (width + PAD) / max(len(same), 1) - PAD
            box_x += (width + PAD) * (same.index(device.id) if same else 0)
        size = (NIC_WIDTH, NIC_HEIGHT) if device.kind == "nic" else (width, BOX_HEIGHT)
        boxes[device.id] = Box(device, box_x, tops[rows[device.id]], *size)
    height = max(box.bottom for box in boxes.values())
    return Layout(boxes, tracks, x, height if machine.of_kind("nvswitch") else height + height_of_tracks)


def hang(machine: Machine) -> nx.DiGraph[str]:
    """The tree of the CPUs and all below them; a device that no CPU leads to hangs on the top."""
    kinds = {device.id: device.kind for device in machine.devices if device.kind != "nvswitch"}
    order = [TOP, *kinds]
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(kinds)
    for a, b in ((link.first, link.second) for link in machine.links):
        ends = {kinds.get(a), kinds.get(b)}
        if None not in ends and ends & {"cpu", "pcie_switch"} and ends != {"cpu"}:
            graph.add_edge(a, b)
    for together in list(nx.connected_components(graph)):
        cpus = [id_ for id_ in together if kinds[id_] == "cpu"]
        graph.add_edges_from((TOP, id_) for id_ in cpus or together)
    return nx.bfs_tree(graph, TOP, sort_neighbors=lambda ids: sorted(ids, key=order.index))


def _below(tree: nx.DiGraph[str], device: str) -> set[str]:
    return {device, *nx.descendants(tree, device)}


def _columns(machine: Machine, tree: nx.DiGraph[str]) -> dict[str, int]:
    """Device -> column, for the devices that have one of their own or share it with a GPU (NICs)."""
    columns: dict[str, int] = {}
    sharing: dict[str, str] = {}  # NIC -> GPU
    for above in nx.dfs_preorder_nodes(tree, TOP):
        below = [machine.by_id[id_] for id_ in tree[above]]
        nics, gpus = ([device.id for device in below if device.kind == kind] for kind in ("nic", "gpu"))
        sharing |= dict(zip(nics, gpus, strict=False))
    number = 0
    for id_ in list(nx.dfs_preorder_nodes(tree, TOP))[1:]:
        is_memory = machine.by_id[id_].kind == "host_memory" and id_ not in tree[TOP]
        is_leaf = all(machine.by_id[below].kind == "host_memory" for below in tree[id_])
        if is_leaf and not is_memory and id_ not in sharing:
            columns[id_] = number
            number += 1
    return columns | {nic: columns[gpu] for nic, gpu in sharing.items()}


def _span(
    device: Device, machine: Machine, tree: nx.DiGraph[str], columns: Mapping[str, int]
) -> tuple[int, int]:
    """The first and the last column of a device."""
    if device.kind == "nvswitch":
        links = [{link.first, link.second} for link in machine.links]
        ids = set().union(*(ends for ends in links if device.id in ends))
    else:
        (above,) = tree.predecessors(device.id)
        ids = _below(tree, above if device.kind == "host_memory" and above else device.id)
    under = [columns[id_] for id_ in ids if id_ in columns] or list(columns.values())
    return min(under, default=0), max(under, default=0)


def _row(device: Device, machine: Machine, tree: nx.DiGraph[str]) -> tuple[int, int]:
    """Number of the row of its kind, and within that: PCIe switches by depth, NVSwitches one by one."""
    level = 0
    if device.kind == "pcie_switch":
        level = int(nx.shortest_path_length(tree, TOP, device.id))
    elif device.kind == "nvswitch":
        level = machine.of_kind("nvswitch").index(device)
    return ROWS.index(device.kind), level


def _tracks(machine: Machine, columns: Mapping[str, int]) -> dict[str, int]:
    """Link id -> track of the direct links between GPUs: short ones above, and none over another."""
    gpus = {device.id for device in machine.of_kind("gpu")}
    direct = [link for link in machine.links if {link.first, link.second} <= gpus]
    ends = {link.id: sorted((columns[link.first], columns[link.second])) for link in direct}
    meeting: nx.Graph[str] = nx.Graph()
    shortest_first = sorted((b - a, a, id_) for id_, (a, b) in ends.items())
    meeting.add_nodes_from(id_ for _, _, id_ in shortest_first)
    meeting.add_edges_from(
        (a, b) for a, b in combinations(ends, 2) if ends[a][0] <= ends[b][1] and ends[b][0] <= ends[a][1]
    )
    tracks: dict[str, int] = nx.greedy_color(meeting, lambda graph, _: list(graph))
    return tracks
