"""Makes a machine of what its file says, and checks what the form alone cannot: ids, links, routes.

1. A derived file is the machine it names with types, devices and links added.
2. Every id is its own, every name of a type or device exists, no link ends where it starts.
3. Every CPU, GPU and NIC has a route to every host memory, every GPU to every NIC and to its peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from topologies.errors import TopologyError
from topologies.file_format import DerivedFile, LinkEntry, MachineFile, MessageLatency, unknown
from topologies.model import Device, Link, Machine, Network, Topology


def derived(base: MachineFile, file: DerivedFile, source: str) -> MachineFile:
    """The machine of `base` with what `file` adds to each node; TopologyError if a type's name is taken."""
    for key in ("device_types", "link_types"):
        for name in getattr(file, key):
            if name in getattr(base, key):
                raise TopologyError(f"{source}: {key}.{name}: machine {base.name!r} has this type; rename it")
    latency = {**_latencies(base.message_latency_s), **_latencies(file.message_latency_s)}
    origin = {**_origins(base.message_latency_s), **_origins(file.message_latency_s)}
    return MachineFile(
        name=file.name,
        description=file.description or base.description,
        device_types={**base.device_types, **file.device_types},
        link_types={**base.link_types, **file.link_types},
        devices=[*base.devices, *file.devices],
        links=[*base.links, *file.links],
        peer_access=base.peer_access if file.peer_access is None else file.peer_access,
        message_latency_s=MessageLatency(source=origin, **latency) if latency else None,
    )


def build(
    file: MachineFile, source: str, *, changes: DerivedFile | None = None, node_name: str | None = None
) -> Topology:
    """The topology that a file describes; TopologyError names the key that is wrong, and what is allowed.
    `source`: file or name, for messages; `changes`: the file that names network and number of nodes, of a
    cluster, whose node is called `node_name`."""
    check_ids(file, source, derived=changes)
    network = changes.network if changes is not None else None
    machine = Machine(
        name=node_name if network is not None and node_name is not None else file.name,
        devices=tuple(
            Device(**entry.model_dump(), **file.device_types[entry.type].model_dump(exclude={"source"}))
            for entry in file.devices
        ),
        links=tuple(_link(file, entry) for entry in file.links),
        peer_groups=_peer_groups(file, source),
        other_peers_unknown="unknown" in file.peer_access,
        message_latency_s=_latencies(file.message_latency_s),
    )
    parts = [*file.device_types.items(), *file.link_types.items()]
    figures = [*parts, ("message_latency_s", file.message_latency_s), ("network", network)]
    sources = {
        f"{name}.{key}".rstrip("."): text
        for name, entry in figures
        if entry is not None
        for key, text in entry.sources().items()
    }
    topology = Topology(
        name=file.name,
        machine=machine,
        num_nodes=1 if changes is None else changes.nodes,
        network=None if network is None else Network(**network.model_dump(exclude={"source"})),
        description=file.description,
        sources=sources,
    )
    check(topology, source)
    return topology


def check(topology: Topology, source: str) -> None:
    """TopologyError where a message could not get from any rank to any other, or to the host."""
    machine = topology.machine
    if not machine.of_kind("host_memory"):
        raise TopologyError(f"{source}: devices: no device of kind 'host_memory'; add one, linked to the CPU")
    gpus, nics, memories = (machine.of_kind(kind) for kind in ("gpu", "nic", "host_memory"))
    pairs = [(end, memory) for end in (*gpus, *nics, *machine.of_kind("cpu")) for memory in memories]
    pairs += [(a, b) for a, b in combinations(gpus, 2) if machine.peer_access(a.id, b.id)]
    pairs += [(gpu, nic) for gpu in gpus for nic in nics]
    for a, b in pairs:
        try:
            machine.route(a.id, b.id)
        except TopologyError:
            raise TopologyError(
                f"{source}: links: no route from {a.kind} {a.id!r} to {b.kind} {b.id!r} (GPUs, NICs and host "
                "memories are ends of routes and are inside none); add the links that are missing"
            ) from None
    if topology.num_nodes > 1 and topology.network is None:
        raise TopologyError(f"{source}: nodes is {topology.num_nodes}: several nodes need key 'network'")
    if topology.network is not None and not machine.of_kind("nic"):
        raise TopologyError(f"{source}: devices: no device of kind 'nic', which 'network' needs; add one")


def check_ids(file: MachineFile, source: str, derived: DerivedFile | None = None) -> None:
    """Raises TopologyError where an id is taken, or a device or type that is named does not exist. `derived`:
    the file itself where `file` is a machine with what it adds: its entries are counted from 0."""
    entries = derived or file
    first_device, first_link = len(file.devices) - len(entries.devices), len(file.links) - len(entries.links)
    ids = [device.id for device in file.devices]
    links = [_link_id(link) for link in file.links]
    for key, names, first in (("devices", ids, first_device), ("links", links, first_link)):
        for index, name in enumerate(names):
            if name in names[:index]:
                hint = "; give one of them an id" if key == "links" else ""
                raise TopologyError(f"{source}: {key}.{index - first}.id is {name!r}, which is taken{hint}")
    for index, device in enumerate(file.devices, -first_device):
        _require(f"{source}: devices.{index}.type", "device type", device.type, list(file.device_types))
    for index, link in enumerate(file.links, -first_link):
        key = f"{source}: links.{index}"
        _require(f"{key}.type", "link type", link.type, list(file.link_types))
        for end in link.between:
            _require(f"{key}.between", "device", end, ids)
        if link.between[0] == link.between[1]:
            raise TopologyError(f"{key}.between is {link.between}: a link needs two different devices")


def _require(key: str, what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise TopologyError(f"{key}: {unknown(what, name, known)}")


def _peer_groups(file: MachineFile, source: str) -> tuple[frozenset[str], ...]:
    gpus = [entry.id for entry in file.devices if file.device_types[entry.type].kind == "gpu"]
    if isinstance(file.peer_access, str):
        return (frozenset(gpus),) if file.peer_access == "all" and gpus else ()
    groups = {index: group for index, group in enumerate(file.peer_access) if not isinstance(group, str)}
    for index, group in groups.items():
        for name in group:
            _require(f"{source}: peer_access.{index}", "GPU", name, gpus)
        if len(set(group)) < 2:
            raise TopologyError(f"{source}: peer_access.{index} is {group}: a group needs two different GPUs")
    return tuple(frozenset(group) for group in groups.values())


def _link_id(entry: LinkEntry) -> str:
    return entry.id or "-".join(entry.between)


def _link(file: MachineFile, entry: LinkEntry) -> Link:
    kind, (first, second) = file.link_types[entry.type], entry.between
    rate, back = kind.bandwidth_bytes_per_s * entry.count, kind.back_bytes_per_s
    ends = _link_id(entry), first, second, kind.kind
    back = None if back is None else back * entry.count
    return Link(*ends, rate, kind.latency_s, kind.duplex, back, entry.count, entry.type)


def _latencies(latency: MessageLatency | None) -> dict[str, float]:
    return latency.model_dump(exclude={"source"}, exclude_none=True) if latency else {}


def _origins(latency: MessageLatency | None) -> dict[str, str]:
    return latency.sources() if latency else {}
