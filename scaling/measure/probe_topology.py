"""A machine file of what was detected and measured: nominal figures give way to measured ones.

`probe_figures` says what the samples tell of devices and links. The software's latency of a message is the
latency that was fitted, less that of the links, which stays nominal. What the model then gets wrong of the
probe's own samples is told in words.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scaling.measure.probe import Sample
from scaling.measure.probe_edit import set_figures, set_latency
from scaling.measure.probe_figures import Findings
from scaling.measure.probe_series import Observed, OneSeries, Series, together
from topologies.build import build
from topologies.detected_file import FOUND, peer_access
from topologies.facts import Facts, Gpu
from topologies.file_format import MachineFile
from topologies.model import Path, Topology
from topologies.texts import gigabytes_per_s

DIFFERS_RATIO = 0.25
"""A prediction that is further off than this is told."""


@dataclass(frozen=True)
class Measurement:
    """What is put into the file.

    Attributes:
        detected: the machine as the content of a machine file.
        gpu_ids: the device of each rank; empty where ranks are processes on the CPU.
        samples: of all launches.
        peers: pairs of ranks whose GPUs can access each other's memory.
        stamp: what every source starts with: `measured by scaling topology probe on ...`.
    """

    detected: Mapping[str, Any]
    gpu_ids: Sequence[str]
    samples: Sequence[Sample]
    peers: Sequence[tuple[int, int]]
    stamp: str


def measurement_of(
    detected: Mapping[str, Any],
    gpus: Sequence[Gpu],
    facts: Mapping[str, Any],
    samples: Sequence[Sample],
    date: str,
) -> Measurement:
    """Joins what was detected with what the workers say of themselves.

    Args:
        detected: the content of a machine file.
        gpus: its GPUs.
        facts: of the workers (`probe_worker.facts`).
        samples: what they measured.
        date: of today.
    """
    ranks = facts["ranks"]
    on_gpus = facts["device"] == "cuda"
    workers = f"{len(ranks)} {'GPU' if on_gpus else 'CPU process'}{_plural(len(ranks), on_gpus)}"
    nccl = f", NCCL {facts['nccl']}" if facts.get("nccl") else ""
    peers = [
        (a, b)
        for a, one in enumerate(ranks)
        for b in one.get("peers", [])
        if a < b and a in ranks[b].get("peers", [])
    ]
    return Measurement(
        detected=detected,
        gpu_ids=gpu_ids(gpus, [one.get("uuid", "") for one in ranks]) if on_gpus else [],
        samples=samples,
        peers=peers,
        stamp=f"measured by scaling topology probe on {date}, {workers}, torch {facts['torch']}{nccl}",
    )


def _plural(number: int, on_gpus: bool) -> str:
    return "" if number == 1 else "s" if on_gpus else "es"


def with_gpus_of(found: Facts, ranks: Sequence[Mapping[str, Any]]) -> Facts:
    """The facts with the workers' GPUs in place of detected ones, where detection found fewer."""
    if len(found.gpus) >= len(ranks):
        return found
    gpus = tuple(
        Gpu(index=rank, name=one["name"], uuid=one.get("uuid", ""), bus_id="", peers=frozenset(one["peers"]))
        for rank, one in enumerate(ranks)
    )
    missing = ("the GPUs' links: neither NVML nor nvidia-smi found as many GPUs as CUDA",)
    return replace(found, gpus=gpus, places={}, bridges={}, missing=(*found.missing, *missing))


def gpu_ids(gpus: Sequence[Gpu], uuids: Sequence[str]) -> list[str]:
    """The detected GPU of each rank: by its UUID, which CUDA writes without `GPU-`; else by its place."""
    by_uuid = {gpu.uuid.lower().removeprefix("gpu-"): gpu.id for gpu in gpus if gpu.uuid}
    found = [by_uuid.get(uuid.lower().removeprefix("gpu-")) for uuid in uuids]
    if all(found):
        return [id_ for id_ in found if id_]
    return [gpu.id for gpu in gpus][: len(uuids)]


def measured_file(measurement: Measurement) -> tuple[dict[str, Any], list[str]]:
    """The content of the machine file, and what the model gets wrong."""
    file: dict[str, Any] = copy.deepcopy(dict(measurement.detected))
    topology = _topology(file)
    series = Series(measurement.samples)
    findings = Findings(topology, measurement.gpu_ids, series)
    set_figures(file, "devices", findings.devices(), measurement.stamp)
    set_figures(file, "links", findings.links(), measurement.stamp)
    gpus = [gpu.id for gpu in topology.machine.of_kind("gpu")]
    if measurement.gpu_ids and sorted(gpus) == sorted(measurement.gpu_ids):
        ids = measurement.gpu_ids
        file["peer_access"] = peer_access(gpus, [(ids[a], ids[b]) for a, b in measurement.peers])
    file["description"] = file["description"].replace(FOUND, "measured on this machine")
    for kind, observed, path in _latencies(measurement, topology, series):
        links_s = path.latency_s - topology.machine.message_latency_s.get(path.kind, 0.0)
        set_latency(file, kind, observed, links_s, measurement.stamp)
    return file, misfits(_topology(file), measurement, series)


def _topology(file: Mapping[str, Any]) -> Topology:
    return build(MachineFile.model_validate(file), str(file["name"]))


def _latencies(
    measurement: Measurement, topology: Topology, series: Series
) -> Iterator[tuple[str, Observed, Path]]:
    """Kind of path, the whole latency of a message on it, and such a path."""
    ids, messages = measurement.gpu_ids, series.messages("default")
    copies = [*series.where("h2d", memory="pinned"), *series.where("d2h", memory="pinned")]
    copies = [one for one in copies if len(one.example.ranks) == 1]
    joined = {frozenset(pair) for pair in measurement.peers}
    direct = [one for one in messages if frozenset(one.example.ranks) in joined]
    candidates = [
        ("peer", direct if ids else [], "messages between two GPUs"),
        ("staged", series.messages("host_only") if ids else [], "messages through host memory"),
        ("host", copies if ids else messages, "copies of pinned memory" if ids else "messages of processes"),
    ]
    for kind, found, what in candidates:
        observed = together(found, lambda one: one.latency)
        if observed is not None:
            how = ", captured in a CUDA graph" if found[0].example.captured else ""
            path = _path(measurement, topology, found[0], peers=kind == "peer")
            yield kind, replace(observed, what=f"{what}{how}"), path


def _path(measurement: Measurement, topology: Topology, one: OneSeries, *, peers: bool) -> Path:
    """Of the messages or copies of a series."""
    host = topology.host(0)[1]
    ends = [measurement.gpu_ids[rank] if measurement.gpu_ids else host for rank in one.example.ranks]
    if len(ends) == 1:
        ends.append(topology.machine.nearest(ends[0], "host_memory"))
    return topology.path((0, ends[0]), (0, ends[1]), peer_access=peers)


def misfits(topology: Topology, measurement: Measurement, series: Series) -> list[str]:
    """Where the model is far from what was measured between two GPUs or processes."""
    lines = []
    for title, found, peers in (
        ("copies into a peer's memory", series.where("peer_copy"), True),
        ("messages", series.messages("default"), True),
        ("messages, host-only", series.messages("host_only"), False),
    ):
        priced = [
            (one, topology.bandwidth_bytes_per_s(_path(measurement, topology, one, peers=peers)))
            for one in found
        ]
        off = [
            (one, model)
            for one, model in priced
            if abs(model / one.bandwidth_bytes_per_s - 1) > DIFFERS_RATIO
        ]
        for one, model in off[:1]:
            pair = " and ".join(map(str, one.example.ranks))
            lines.append(
                f"{title}: ranks {pair} reach {gigabytes_per_s(one.bandwidth_bytes_per_s)}, the model says "
                f"{gigabytes_per_s(model)} ({len(off)} of {len(found)} pairs are more than a quarter off)"
            )
    return lines
