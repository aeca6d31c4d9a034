"""The same machine with something else: links, peer access, more GPUs, more nodes.

nvlink4.bandwidth=2x            a link type, a link's id, its kind (nvlink, pcie, ...) or `network`
pcie5-x16.bandwidth=12e9        bytes a second of a direction, all cables of the link together
network.latency=5e-6            seconds
memory.bandwidth=200e9          a device type's, a device's or a kind's memory
peer_access=off                 or on: all GPUs of a node
gpus=2x                         of each node, or a number; new ones are linked as those there are
nodes=16                        or 2x; on the network of the topology
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from topologies.errors import TopologyError
from topologies.machine import Link
from topologies.model import Topology

FIGURES = {"bandwidth": ("bandwidth_bytes_per_s", "back_bytes_per_s"), "latency": ("latency_s",)}
EXAMPLES = "as in nvlink.bandwidth=2x, network.latency=5e-6, peer_access=off, gpus=2x or nodes=16"

MAX_GPUS = 64  # of a node
MAX_NODES = 1024


def what_if(topology: Topology, changes: Iterable[str]) -> Topology:
    """The topology with those changes in turn, and named so; TopologyError: one cannot be read or made."""
    for change in changes:
        key, _, value = change.partition("=")
        if not value:
            raise TopologyError(f"what-if {change!r} has no value; write KEY=VALUE, {EXAMPLES}")
        topology = replace(_changed(topology, key.strip(), value.strip()), name=f"{topology.name}, {change}")
    return topology


def _changed(topology: Topology, key: str, value: str) -> Topology:
    whole = {"peer_access": _peer_access, "gpus": _gpus, "nodes": _nodes}
    if key in whole:
        return whole[key](topology, value)
    name, _, figure = key.rpartition(".")
    if figure not in FIGURES or not name:
        raise TopologyError(f"what-if {key!r} is not known; {EXAMPLES}")
    if name == "network":
        if topology.network is None:
            raise TopologyError(f"what-if network.{figure}: {topology.name} is one node without a network")
        return replace(topology, network=_with(topology.network, figure, value))
    machine: Any = topology.machine
    links, devices = (
        tuple(_with(one, figure, value) if name in (one.id, one.type, one.kind) else one for one in parts)
        for parts in ([*machine.links], [*machine.devices])
    )
    if links == machine.links and devices == machine.devices:
        known = sorted({part.type or part.kind for part in (*machine.links, *machine.devices)})
        raise TopologyError(
            f"what-if {name}.{figure}: {topology.name} has no such link or device, or that is its figure "
            f"already; allowed: {', '.join(known)}, a kind or an id"
        )
    return replace(topology, machine=replace(machine, links=links, devices=devices))


def _with(part: Any, figure: str, value: str) -> Any:
    """A link, device or network with another figure, if it has that."""
    now = {key: getattr(part, key, None) for key in FIGURES[figure]}
    new = {key: _number(before, value, figure) for key, before in now.items() if before is not None}
    return replace(part, **new)


def _number(before: float, value: str, key: str) -> float:
    try:
        new = before * float(value[:-1]) if value.endswith("x") else float(value)
    except ValueError:
        raise TopologyError(f"what-if {key}={value}: give a number, or a factor as in 2x") from None
    if not 0 < new < float("inf") and not (key == "latency" and new == 0):
        raise TopologyError(f"what-if {key}={value}: must be above 0")
    return new


def _peer_access(topology: Topology, value: str) -> Topology:
    if value not in ("on", "off"):
        raise TopologyError(f"what-if peer_access={value}: allowed are on and off")
    gpus = frozenset(gpu.id for gpu in topology.machine.of_kind("gpu"))
    groups = (gpus,) if value == "on" else ()
    return replace(topology, machine=replace(topology.machine, peer_groups=groups, other_peers_unknown=False))


def _gpus(topology: Topology, value: str) -> Topology:
    machine = topology.machine
    gpus = machine.of_kind("gpu")
    number = _count(len(gpus), value, "gpus", MAX_GPUS)
    if not gpus or number < 1:
        raise TopologyError(f"what-if gpus={value}: {topology.name} has {len(gpus)} GPUs a node")
    if any({link.first, link.second} <= {gpu.id for gpu in gpus} for link in machine.links):
        raise TopologyError(
            f"what-if gpus={value}: GPUs of {topology.name} have links to one another, and it is not clear "
            "where more would go; write a machine file"
        )
    keep = {gpu.id for gpu in gpus[:number]}
    dropped = {gpu.id for gpu in gpus} - keep
    devices = [device for device in machine.devices if device.id not in dropped]
    links = [link for link in machine.links if not {link.first, link.second} & dropped]
    groups = [set(group) - dropped for group in machine.peer_groups]
    for index in range(len(gpus), number):
        like = gpus[index % len(gpus)]
        new = f"{like.id}-{index // len(gpus) + 1}"
        devices.append(replace(like, id=new))
        links += [_relinked(one, like.id, new) for one in machine.links if like.id in (one.first, one.second)]
        for group in groups:
            if like.id in group:
                group.add(new)
    peers = tuple(frozenset(group) for group in groups)
    changed = replace(machine, devices=tuple(devices), links=tuple(links), peer_groups=peers)
    return replace(topology, machine=changed)


def _count(now: int, value: str, what: str, most: int) -> int:
    number = _number(now, value, what)
    if number > most:
        raise TopologyError(f"what-if {what}={value}: at most {most} can be simulated")
    return round(number)


def _relinked(link: Link, old: str, new: str) -> Link:
    first, second = (new if end == old else end for end in (link.first, link.second))
    return replace(link, first=first, second=second, id=f"{link.id}:{new}")


def _nodes(topology: Topology, value: str) -> Topology:
    number = _count(topology.num_nodes, value, "nodes", MAX_NODES)
    if number > 1 and topology.network is None:
        raise TopologyError(
            f"what-if nodes={value}: {topology.name} has no network; name a topology that has one, as "
            "hgx-h200-x16-infiniband"
        )
    return replace(topology, num_nodes=max(1, number))
