"""Puts measured figures into the content of a machine file, each with its source.

Devices and links of a type share the median; one that is more than a tenth off gets a type of its own.

`with_measured` puts the bandwidths that another tool measured, nvbandwidth, in place of a file's own:

1. GPU i of the tool is the file's i-th GPU.
2. What the copies tell of PCIe links, NVLinks, host memory and its bus is read off as from a probe
   (`scaling.measure.probe.figures`).
3. Latencies, sums and a GPU's own memory stay as the file has them: copies of one size tell nothing of them.
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from scaling.files.texts import flops_per_s, gigabytes_per_s, microseconds
from scaling.measure.probe.cases import ProbeSample
from scaling.measure.probe.figures import ProbeReader
from scaling.measure.probe.series import Observed, Series, size_text
from topologies.errors import TopologyError
from topologies.file_format import DerivedFile
from topologies.file_text import WIDTH, as_yaml, validated
from topologies.parse import parse

OWN_TYPE_RATIO = 0.1
DIGITS = 4


def set_figures(
    file: dict[str, Any], section: str, figures: Mapping[str, Mapping[str, Observed]], stamp: str
) -> None:
    """Replaces figures of devices or links, and their sources. `section`: "devices" or "links"."""
    types = file["device_types" if section == "devices" else "link_types"]
    entries = {entry.get("id") or "-".join(entry["between"]): entry for entry in file[section]}
    by_type: dict[str, list[str]] = {}
    for id_ in figures:
        by_type.setdefault(entries[id_]["type"], []).append(id_)
    for type_, ids in by_type.items():
        middle = _middle([figures[id_] for id_ in ids])
        usual = [id_ for id_ in ids if not _is_off(figures[id_], middle)]
        for id_ in ids:
            if id_ not in usual:
                type_name = f"{type_}-{id_}"
                types[type_name] = copy.deepcopy(types[type_])
                entries[id_]["type"] = type_name
                _set(types[type_name], figures[id_], stamp)
        if usual:
            _set(types[type_], _middle([figures[id_] for id_ in usual]), stamp)


def set_latency(file: dict[str, Any], kind: str, observed: Observed, links_s: float, stamp: str) -> None:
    """Replaces the software's latency of messages on a kind of path."""
    section = file["message_latency_s"]
    section[kind] = rounded(max(0.0, observed.value - links_s))
    less = f", less {microseconds(links_s)} of the links" if links_s > 0 else ""
    section["source"][kind] = (
        f"{stamp}, median of {observed.num_samples}: {observed.what}, {microseconds(observed.low)} to "
        f"{microseconds(observed.high)}{less}"
    )


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _set(type_: dict[str, Any], figures: Mapping[str, Observed], stamp: str) -> None:
    source = type_.pop("source")  # it stands last
    source = dict(source) if isinstance(source, dict) else {}
    for name, figure in figures.items():
        unit = flops_per_s if name.endswith("flops_per_s") else gigabytes_per_s
        spread = f"{unit(figure.low)} to {unit(figure.high)}"
        type_[name] = rounded(figure.value)
        size = f", {size_text(figure.num_bytes)}" if figure.num_bytes else ""
        source[name] = f"{stamp}{size}, median of {figure.num_samples}: {figure.what}, {spread}"
    type_["source"] = source


def _middle(several: Sequence[Mapping[str, Observed]]) -> dict[str, Observed]:
    names = dict.fromkeys(name for figures in several for name in figures)
    return {
        name: Observed.middle([figures[name] for figures in several if name in figures]) for name in names
    }


def _is_off(figures: Mapping[str, Observed], middle: Mapping[str, Observed]) -> bool:
    return any(
        abs(figure.value / middle[name].value - 1) > OWN_TYPE_RATIO for name, figure in figures.items()
    )


NOT_FIGURES = frozenset({"kind", "name", "source", "gpudirect", "duplex"})
"""Keys of a type that need no source."""


def with_measured(
    text: str, machine: str, samples: Sequence[ProbeSample], source: str
) -> tuple[str, dict[str, Any]]:
    """The file with measured figures, as text and as content. `source`: the tool and its file, for the
    figures' sources: `nvbandwidth v0.8 (box.json)`. Raises TopologyError: the machine has fewer GPUs than
    were measured, is made from another, or nothing was measured that it has a link for."""
    file: dict[str, Any] = _content(text, machine)
    topology = validated(text, machine)
    gpus = [gpu.id for gpu in topology.machine.of_kind("gpu")]
    num_measured = 1 + max((rank for sample in samples for rank in sample.ranks), default=-1)
    if num_measured > len(gpus):
        raise TopologyError(f"{source} measured {num_measured} GPUs, {machine} has {len(gpus)}; name another")
    findings = ProbeReader(topology, gpus[:num_measured], Series(samples))
    devices, links = findings.devices(), findings.links()
    if not devices and not links:
        raise TopologyError(
            f"{source}: nothing that {machine} has a link for; copies both ways between host and GPU "
            "(host_to_device_memcpy_ce and device_to_host_memcpy_ce), or between GPUs with NVLink "
            "(device_to_device_memcpy_write_ce) are needed"
        )
    for types in (file["device_types"], file["link_types"]):
        for entry in types.values():
            entry["source"] = _by_figure(entry)
    set_figures(file, "devices", devices, f"measured by {source}")
    set_figures(file, "links", links, f"measured by {source}")
    file["description"] = f"{file.get('description') or machine}; bandwidths by {source}"
    head = f"Measured by {source}: {', '.join(sorted({*devices, *links}))}. The rest is that of {machine}."
    result = as_yaml(file, textwrap.wrap(head, WIDTH - 2))
    validated(result, f"{machine} with {source}")
    return result, file


def _content(text: str, machine: str) -> dict[str, Any]:
    file = parse(text, machine)
    if isinstance(file, DerivedFile):
        raise TopologyError(
            f"{machine} is made from {file.machine!r}; name that one, or a file that has devices of its own"
        )
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def _by_figure(entry: Mapping[str, Any]) -> Any:
    """The source of a type, for each figure its own where one stood for all."""
    source, figures = entry["source"], [name for name in entry if name not in NOT_FIGURES]
    return dict.fromkeys(figures, source) if isinstance(source, str) and figures else source
