"""The machine file that a probe gives: what was detected, with measured figures in place of nominal ones.

The latency of a message is the fitted one, less that of the links, which stays nominal. What the model then
gets wrong of the probe's own samples is said in words. Nothing here needs torch or the machine itself.
Devices and links of a type share the median; one that is more than a tenth off gets a type of its own.

`with_measured` puts nvbandwidth's bandwidths in place of a file's own: GPU i of the tool is the file's i-th
GPU. Latencies, sums and a GPU's own memory stay: copies of one size tell nothing of them.
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from scaling.files.texts import flops_per_s, gigabytes_per_s, microseconds
from scaling.measure.probe.cases import ProbeSample
from scaling.measure.probe.figures import ProbeReader
from scaling.measure.probe.series import Observed, OneSeries, Series, size_text, table, together
from topologies.build import build
from topologies.detected_file import machine_file as file_of_detected
from topologies.detected_file import peer_access
from topologies.errors import TopologyError
from topologies.facts import DETECTED, Facts, Gpu
from topologies.file_format import DerivedFile, MachineFile, of_form, parse
from topologies.file_text import WIDTH, as_yaml, validated
from topologies.model import Path, Topology

DIFFERS_RATIO = 0.25  # a prediction that is further off than this is reported


@dataclass(frozen=True)
class ProbedTopology:
    """`gpu_ids`: the device of each rank; empty for processes on the CPU; `peers`: pairs of ranks whose GPUs
    can access each other's memory; `stamp`: what every source starts with."""

    detected: Mapping[str, Any]
    gpu_ids: Sequence[str]
    samples: Sequence[ProbeSample]
    peers: Sequence[tuple[int, int]]
    stamp: str


def measured_file(measurement: ProbedTopology) -> tuple[dict[str, Any], list[str]]:
    """The content of the machine file, and what the model gets wrong."""
    file: dict[str, Any] = copy.deepcopy(dict(measurement.detected))
    topology = _topology(file)
    series = Series(measurement.samples)
    findings = ProbeReader(topology, measurement.gpu_ids, series)
    set_figures(file, "devices", findings.devices(), measurement.stamp)
    set_figures(file, "links", findings.links(), measurement.stamp)
    gpus = [gpu.id for gpu in topology.machine.of_kind("gpu")]
    if measurement.gpu_ids and sorted(gpus) == sorted(measurement.gpu_ids):
        ids = measurement.gpu_ids
        file["peer_access"] = peer_access(gpus, [(ids[a], ids[b]) for a, b in measurement.peers])
    file["description"] = file["description"].replace(DETECTED, "measured on this machine")
    for kind, observed, path in _latencies(measurement, topology, series):
        links_s = path.latency_s - topology.machine.message_latency_s.get(path.kind, 0.0)
        set_latency(file, kind, observed, links_s, measurement.stamp)
    return file, misfits(_topology(file), measurement, series)


def _topology(file: Mapping[str, Any]) -> Topology:
    return build(of_form(MachineFile, file, str(file["name"])), str(file["name"]))


def _latencies(
    measurement: ProbedTopology, topology: Topology, series: Series
) -> Iterator[tuple[str, Observed, Path]]:
    """Kind of path, the whole latency of a message on it, and such a path."""
    ids, messages = measurement.gpu_ids, series.messages("default")
    copies = [*series.where("h2d", memory="pinned"), *series.where("d2h", memory="pinned")]
    copies = [series for series in copies if len(series.example.ranks) == 1]
    joined = {frozenset(pair) for pair in measurement.peers}
    direct = [series for series in messages if frozenset(series.example.ranks) in joined]
    candidates = [
        ("peer", direct if ids else [], "messages between two GPUs"),
        ("staged", series.messages("host_only") if ids else [], "messages through host memory"),
        ("host", copies if ids else messages, "copies of pinned memory" if ids else "messages of processes"),
    ]
    for kind, several, what in candidates:
        observed = together(several, lambda single: single.latency)
        if observed is not None:
            how = ", captured in a CUDA graph" if several[0].example.captured else ""
            path = _path(measurement, topology, several[0], peers=kind == "peer")
            yield kind, replace(observed, what=f"{what}{how}"), path


def _path(measurement: ProbedTopology, topology: Topology, series: OneSeries, *, peers: bool) -> Path:
    host = topology.host(0)[1]
    ends = [measurement.gpu_ids[rank] if measurement.gpu_ids else host for rank in series.example.ranks]
    if len(ends) == 1:
        ends.append(topology.machine.nearest(ends[0], "host_memory"))
    return topology.path((0, ends[0]), (0, ends[1]), peer_access=peers)


def misfits(topology: Topology, measurement: ProbedTopology, series: Series) -> list[str]:
    """Where the model is far from what was measured between two GPUs or processes."""
    lines = []
    for title, several, peers in (
        ("copies into a peer's memory", series.where("peer_copy"), True),
        ("messages", series.messages("default"), True),
        ("messages, host-only", series.messages("host_only"), False),
    ):
        priced = [
            (series, series.bandwidth.value, topology.bandwidth_bytes_per_s(path))
            for series in several
            for path in [_path(measurement, topology, series, peers=peers)]
        ]
        off = [row for row in priced if abs(row[2] / row[1] - 1) > DIFFERS_RATIO]
        for single, reached, model in off[:1]:
            pair, size = " and ".join(map(str, single.example.ranks)), size_text(single.largest_bytes)
            lines.append(
                f"{title}: ranks {pair} reach {gigabytes_per_s(reached)} at {size}, {reached / model:.2f} of "
                f"the {gigabytes_per_s(model)} that the model gives them ({len(off)} of {len(several)} pairs "
                "are more than a quarter off)"
            )
    return lines


@dataclass(frozen=True)
class ProbeResult:
    machine: str
    table: list[str]
    notes: list[str]


def with_detected(facts: Mapping[str, Any], detected: Facts, date: str) -> dict[str, Any]:
    """The workers' facts, with all of the machine that its file needs besides."""
    ranks, ids = facts["ranks"], []
    if facts["device"] == "cuda":
        detected = _with_gpus_of(detected, ranks)
        ids = gpu_ids(detected.gpus, [rank.get("uuid", "") for rank in ranks])
    return {
        **facts,
        "date": date,
        "detected": file_of_detected(detected),
        "gpu_ids": ids,
        "missing": list(detected.missing),
    }


def _with_gpus_of(detected: Facts, ranks: Sequence[Mapping[str, Any]]) -> Facts:
    """The facts with the workers' GPUs in place of detected ones, where detection found fewer."""
    if len(detected.gpus) >= len(ranks):
        return detected
    gpus = tuple(
        Gpu(rank, of["name"], uuid=of.get("uuid", ""), bus_id="", peers=frozenset(of["peers"]))
        for rank, of in enumerate(ranks)
    )
    missing = ("the GPUs' links: neither NVML nor nvidia-smi found as many GPUs as CUDA",)
    return replace(detected, gpus=gpus, places={}, bridges={}, missing=(*detected.missing, *missing))


def gpu_ids(gpus: Sequence[Gpu], uuids: Sequence[str]) -> list[str]:
    """The detected GPU of each rank: by its UUID, which CUDA writes without `GPU-`; else by its place."""
    by_uuid = {gpu.uuid.lower().removeprefix("gpu-"): gpu.id for gpu in gpus if gpu.uuid}
    ids = [by_uuid.get(uuid.lower().removeprefix("gpu-")) for uuid in uuids]
    known = [id_ for id_ in ids if id_]
    return known if len(known) == len(ids) else [gpu.id for gpu in gpus][: len(uuids)]


def result_of(
    facts: Mapping[str, Any], samples: Sequence[ProbeSample], notes: Sequence[str], command: str
) -> ProbeResult:
    """`command`: that measured, for the sources. TopologyError: the file would not be valid."""
    measurement = _measurement(facts, samples, command)
    file, misfits = measured_file(measurement)
    lines = table(Series(samples))
    remarks = [*(f"not found: {what}" for what in facts["missing"]), *notes]
    remarks += [f"not in the model: {what}" for what in misfits]
    wrapped = [line for note in remarks for line in textwrap.wrap(note, WIDTH, subsequent_indent="    ")]
    between = ["", *wrapped, ""] if wrapped else [""]
    text = as_yaml(file, [f"{file['name']}, {measurement.stamp}", *between, *lines])
    validated(text, "the probe's machine file")
    return ProbeResult(text, lines, remarks)


def _measurement(facts: Mapping[str, Any], samples: Sequence[ProbeSample], command: str) -> ProbedTopology:
    ranks = facts["ranks"]
    kind = "GPU" if facts["device"] == "cuda" else "CPU process"
    plural = "" if len(ranks) == 1 else "s" if kind == "GPU" else "es"
    nccl = f", NCCL {facts['nccl']}" if facts.get("nccl") else ""
    mpi = f", {facts['mpi']}" if facts.get("mpi") else ""
    peers = [
        (a, b)
        for a, fields in enumerate(ranks)
        for b in fields.get("peers", [])
        if a < b and a in ranks[b].get("peers", [])
    ]
    with_what = f"{len(ranks)} {kind}{plural}, torch {facts['torch']}{nccl}{mpi}"
    stamp = f"measured by {command} on {facts['date']}, {with_what}"
    return ProbedTopology(facts["detected"], facts["gpu_ids"], samples, peers, stamp)


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
    ratios = [figure.value / middle[name].value for name, figure in figures.items()]
    return any(abs(ratio - 1) > OWN_TYPE_RATIO for ratio in ratios)


NOT_FIGURES = frozenset({"kind", "name", "source", "gpudirect", "duplex"})
"""Keys of a type that need no source."""


def with_measured(
    text: str, machine: str, samples: Sequence[ProbeSample], source: str
) -> tuple[str, dict[str, Any]]:
    """As text and as content. `source`: the tool and its file: `nvbandwidth v0.8 (box.json)`. TopologyError:
    the machine has too few GPUs, is made from another, or has no link for what was measured."""
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
    return yaml.safe_load(text)


def _by_figure(entry: Mapping[str, Any]) -> Any:
    """The source of a type, for each figure its own where one stood for all."""
    source, figures = entry["source"], [name for name in entry if name not in NOT_FIGURES]
    return dict.fromkeys(figures, source) if isinstance(source, str) and figures else source
