"""Machine files by name or path, and clusters of machines.

The form of a file is in topologies/file_format.py and docs/reference/machine-files.md; whatever is wrong in
one is a `TopologyError` that names file, key, what was given and what is allowed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from scaling.files.documents import MAX_YAML_BYTES, DocumentError, read_text
from topologies.build import build, check, check_ids, derived
from topologies.errors import TopologyError
from topologies.file_format import DerivedFile, MachineFile, parse, unknown
from topologies.model import Device, Link, Network, Topology


def shipped() -> dict[str, str]:
    """Name -> text of every machine file that comes with the package, by name."""
    items = [item for item in resources.files("topologies").iterdir() if item.name.endswith(".yaml")]
    files = {item.name.removesuffix(".yaml"): item for item in items}
    return {name: files[name].read_text(encoding="utf-8") for name in sorted(files)}


def load(name_or_path: str | os.PathLike[str]) -> Topology:
    """The topology of a shipped name (`dual-k80`) or of a file: whatever ends in .yaml or .yml, or is a file.
    TopologyError: there is no such machine, it is no YAML, or something in it is wrong."""
    source = os.fspath(name_or_path)
    file, chain = _read(source, folder=Path(), above=())
    if isinstance(file, MachineFile):
        return build(file, source)
    return build(_whole(file, chain, source), source, changes=file, node_name=chain[0].name)


def text_of(name_or_path: str | os.PathLike[str]) -> str:
    """The text of a shipped name or of a file, as it stands; TopologyError where there is no such machine."""
    return _text(os.fspath(name_or_path), Path())[0]


def cluster(
    machine: Topology,
    num_nodes: int,
    network: Network | None = None,
    *,
    devices: Sequence[Device] = (),
    links: Sequence[Link] = (),
    message_latency_s: Mapping[str, float] | None = None,
    name: str | None = None,
) -> Topology:
    """`num_nodes` of a machine on a network: `cluster(load("hgx-h200-x2-infiniband"), 512)`.

    Of `machine` one node is taken, and its network, unless another one is given. `devices` and `links` are
    added to each node: the NICs, where the machine has none. `message_latency_s` replaces the software's
    latency of the kinds of path that it names. The name is by default `<machine>-x<num_nodes>`.
    TopologyError: there is no network or no NIC, an id is taken, or a link leads nowhere."""
    name = name or f"{machine.machine.name}-x{num_nodes}"
    if num_nodes < 1:
        raise TopologyError(f"{name}: num_nodes is {num_nodes}; a cluster has one node at least")
    one = machine.machine
    node = dataclasses.replace(
        one,
        name=name,
        devices=(*one.devices, *devices),
        links=(*one.links, *links),
        message_latency_s={**one.message_latency_s, **(message_latency_s or {})},
    )
    ids = {"device": [d.id for d in node.devices], "link": [link.id for link in node.links]}
    for what, own in ids.items():
        if taken := sorted({id_ for id_ in own if own.count(id_) > 1}):
            raise TopologyError(
                f"{name}: {what} {taken[0]!r} is there already; give the added one another id"
            )
    for made, end in ((link, end) for link in node.links for end in (link.first, link.second)):
        if end not in node.by_id:
            raise TopologyError(f"{name}: link {made.id!r}: {unknown('device', end, node.by_id)}")
    whole = dataclasses.replace(
        machine, name=name, machine=node, num_nodes=num_nodes, network=network or machine.network
    )
    check(whole, name)
    return whole


def _read(
    name: str, folder: Path | None, above: tuple[str, ...]
) -> tuple[MachineFile | DerivedFile, list[MachineFile | DerivedFile]]:
    """A file, and the files that it is made from: the machine that it names, the one that that names, ..."""
    try:
        text, path = _text(name, folder)
    except TopologyError as error:
        raise (TopologyError(f"{above[-1]}: key 'machine': {error}") if above else error) from None
    if path in above:
        raise TopologyError(f"{above[-1]}: key 'machine' leads back to {name}; name a machine in full")
    file = parse(text, name if path == name else os.fspath(folder / name) if folder else name)
    if isinstance(file, MachineFile):
        return file, []
    # A shipped machine names shipped ones only, whatever files lie where the program was started.
    inside = Path(path).parent if os.path.isabs(path) else None
    base, chain = _read(file.machine, inside, (*above, path))
    if isinstance(base, DerivedFile) and base.network is not None:
        raise TopologyError(f"{name}: machine is {file.machine!r}, which is a cluster; name one node of it")
    return file, [base, *chain]


def _beside(source: str, machine: str) -> str:
    """The file that another one names by a path from its own folder; a shipped machine's name."""
    path = Path(source).parent / machine
    return os.fspath(path) if path.is_file() else machine


def _whole(file: DerivedFile, chain: Sequence[MachineFile | DerivedFile], source: str) -> MachineFile:
    base, *further = chain
    full = base if isinstance(base, MachineFile) else _whole(base, further, file.machine)
    check_ids(full, _beside(source, file.machine))  # an error in it is reported as its own
    return derived(full, file, source)


def _text(name: str, folder: Path | None) -> tuple[str, str]:
    """The text of a shipped machine or a file, and which it is: its name, or its absolute path."""
    path = None if folder is None else folder / name
    if path is not None and (path.suffix in (".yaml", ".yml") or os.path.isfile(path)):
        try:
            return read_text(path, MAX_YAML_BYTES), os.path.abspath(path)
        except FileNotFoundError:
            raise TopologyError(f"machine file {path}: cannot be read: No such file or directory") from None
        except DocumentError as error:
            raise TopologyError(f"machine file {path}: {error}") from None
    machines = shipped()
    if name not in machines:
        raise TopologyError(f"{unknown('machine', name, machines)}; or give a YAML file")
    return machines[name], name
