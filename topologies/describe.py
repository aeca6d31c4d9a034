"""A topology as text for people, and as a dictionary for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import combinations, groupby, permutations, product
from typing import Any

from scaling.files.texts import NO_BREAK, WIDTH, compact, flops_per_s, folded, gigabytes_per_s, microseconds
from topologies.machine import MATRIX_FIGURES
from topologies.model import Device, Link, Topology

INDENT = "  "
NARROW = 24  # characters that the last column of a table must have, to be folded next to the others


def describe(topology: Topology) -> str:
    """Devices, links, peer access, the paths between pairs, and where each figure comes from."""
    machine, of_network = topology.machine, []
    if (network := topology.network) is not None:
        each = f"{gigabytes_per_s(network.bandwidth_bytes_per_s)} each direction of a NIC"
        of_network = [f"{network.kind}, {each}, {microseconds(network.latency_s)}"]
    latencies = [f"{kind} {microseconds(value)}" for kind, value in machine.message_latency_s.items()]
    gpus = len(machine.of_kind("gpu"))
    size = f"{gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "no GPU"
    if topology.num_nodes > 1:
        size = f"{topology.num_nodes} nodes of {machine.name}, each with {size}"
    head = folded("", f"{topology.name}: {topology.description}".rstrip(": "), indent=4)
    rows = [(_device_figures(device), device.id) for device in machine.devices]
    same = [(figures, [name for _, name in of]) for figures, of in groupby(rows, lambda row: row[0])]
    sections = [
        ("", [head, size]),
        ("Devices", _table([compact(names), *figures] for figures, names in same)),
        ("Links", _table(_link_row(link) for link in machine.links)),
        ("Network", of_network),
        ("Software's latency of a message", [", ".join(latencies)] if latencies else []),
        ("Peer access", peer_matrix(topology)),
        ("Paths: kind, bandwidth of a message alone, latency", path_lines(topology)),
        ("Paths without peer access", host_only_path_lines(topology)),
        ("Sources", [f"{figure}: {text}" for figure, text in topology.sources.items()]),
    ]
    told = [(title, lines) for title, lines in sections if lines]
    indented = ["\n".join(folded(INDENT, line, indent=6) for line in lines) for _, lines in told[1:]]
    parts = [f"{title}\n{text}" for (title, _), text in zip(told[1:], indented, strict=True)]
    return "\n\n".join(["\n".join(told[0][1]), *parts])


def as_dict(topology: Topology) -> dict[str, Any]:
    """The same as plain data: units as in the model (bytes, seconds)."""
    machine = topology.machine
    gpus = [gpu.id for gpu in machine.of_kind("gpu")]
    return {
        "name": topology.name,
        "description": topology.description,
        "machine": machine.name,
        "num_nodes": topology.num_nodes,
        "num_gpus": topology.num_gpus,
        "devices": [dataclasses.asdict(device) for device in machine.devices],
        "links": [dataclasses.asdict(link) for link in machine.links],
        "network": None if topology.network is None else dataclasses.asdict(topology.network),
        "message_latency_s": dict(machine.message_latency_s),
        "peer_access": [[a, b] for a, b in combinations(gpus, 2) if machine.peer_access(a, b)],
        "other_peers_unknown": machine.other_peers_unknown,
        "paths": [
            {
                **{"source": _place(source), "target": _place(target), "kind": path.kind},
                "bandwidth_bytes_per_s": topology.bandwidth_bytes_per_s(path),
                "latency_s": path.latency_s,
                "resources": dict(path.resources),
            }
            for source, target in [*_gpu_pairs(topology), *_host_pairs(topology)]
            for path in [topology.path(source, target)]
        ],
        "sources": dict(topology.sources),
    }


def peer_matrix(topology: Topology) -> list[str]:
    """A GPU a line: `yes` where it may access the other's memory, `?` where unknown; [] of one GPU."""
    gpus = [gpu.id for gpu in topology.machine.of_kind("gpu")]
    if len(gpus) < 2:
        return []
    words = {True: "yes", False: "?" if topology.machine.other_peers_unknown else "-"}
    rows = [[a, *("." if a == b else words[topology.machine.peer_access(a, b)] for b in gpus)] for a in gpus]
    return _table([["", *gpus], *rows])


def path_lines(topology: Topology) -> list[str]:
    """`gpu0 -> gpu2, gpu3: staged, 8.0 GB/s, 12 us`: places equal in all three share a line."""
    return _path_lines(topology, [*_gpu_pairs(topology), *_host_pairs(topology)], peer_access=True)


def host_only_path_lines(topology: Topology) -> list[str]:
    """The same between GPUs where peer access is forbidden; nothing where there is none to forbid."""
    if not topology.machine.peer_groups:
        return []
    return _path_lines(topology, _gpu_pairs(topology), peer_access=False)


DevicePlace = tuple[int, str]
Pairs = Iterable[tuple[DevicePlace, DevicePlace]]


def _gpu_pairs(topology: Topology) -> Pairs:
    """All ordered pairs of GPUs of a node, and its first GPU to those of the next."""
    gpus = [gpu.id for gpu in topology.machine.of_kind("gpu")]
    yield from (((0, a), (0, b)) for a, b in permutations(gpus, 2))
    if topology.num_nodes > 1:
        yield from (((0, gpus[0]), (1, gpu)) for gpu in gpus)


def _host_pairs(topology: Topology) -> Pairs:
    """Every GPU and every host memory, there and back; host memories alone where no GPU is."""
    gpus = [(0, gpu.id) for gpu in topology.machine.of_kind("gpu")]
    memories = [(0, memory.id) for memory in topology.machine.of_kind("host_memory")]
    if not gpus:  # ranks on cores exchange through the memory that they share
        other_node = [(1, memory) for _, memory in memories] if topology.num_nodes > 1 else []
        return product(memories, [*memories, *other_node])
    return [*product(gpus, memories), *product(memories, gpus)]


def _path_lines(topology: Topology, pairs: Pairs, *, peer_access: bool) -> list[str]:
    targets: dict[tuple[str, str], list[str]] = {}  # of a source and figures
    for source, target in pairs:
        path = topology.path(source, target, peer_access=peer_access)
        bandwidth = gigabytes_per_s(topology.bandwidth_bytes_per_s(path))
        figures = f"{path.kind}, {bandwidth}, {microseconds(path.latency_s)}"
        targets.setdefault((_place(source), figures), []).append(_place(target))
    sources: dict[tuple[str, str], list[str]] = {}  # of targets and figures
    for (name, figures), names in targets.items():
        sources.setdefault((compact(names), figures), []).append(name)
    return [f"{compact(names)} -> {to}: {figures}" for (to, figures), names in sources.items()]


def _place(place: DevicePlace) -> str:
    node, device = place
    return device if node == 0 else f"node{node}/{device}"


def _device_figures(device: Device) -> list[str]:
    figures = [
        f"board {device.board}" if device.board else "",
        f"{device.cores} cores" if device.cores else "",
        _rate("memory", device.bandwidth_bytes_per_s),
        _rate("a core sums" if device.kind == "cpu" else "sums", device.reduce_bytes_per_s),
        *(
            f"{name.removesuffix('_flops_per_s')} {flops_per_s(rate)}"
            for name in MATRIX_FIGURES
            if (rate := getattr(device, name))
        ),
        "GPUDirect" if device.gpudirect else "",
    ]
    whole = (figure.replace(" ", NO_BREAK) for figure in figures if figure)
    return [device.kind, device.name, ", ".join(whole)]


def _rate(what: str, bytes_per_s: float | None) -> str:
    return f"{what} {gigabytes_per_s(bytes_per_s)}" if bytes_per_s else ""


def _link_row(link: Link) -> list[str]:
    kind = f"{link.count} x {link.kind}" if link.count > 1 else link.kind
    return [f"{link.first} - {link.second}", kind, link_rate(link), microseconds(link.latency_s)]


def link_rate(link: Link, cables: int = 1) -> str:
    """Of the link, or of one of its `cables`."""
    there = gigabytes_per_s(link.bandwidth_bytes_per_s / cables)
    if link.back_bytes_per_s is not None:
        return f"{there} there, {gigabytes_per_s(link.back_bytes_per_s / cables)} back"
    return f"{there} {'each direction' if link.duplex else 'both directions together'}"


def _table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns side by side; what is too long of the last one goes below it, all of it where it is narrow."""
    cells = [list(row) for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]) - 1)] if cells else []
    lines = []
    for *starts, last in cells:
        start = "".join(f"{cell:{width}}  " for cell, width in zip(starts, widths, strict=True))
        if len(start) + len(last) > WIDTH - len(INDENT) < len(start) + NARROW:
            lines.append(start.rstrip())
            start = " " * 6
        lines += folded(start, last, width=WIDTH - len(INDENT)).splitlines()
    return lines
