"""The machine file that a probe gives: what was detected, with measured figures in place of nominal ones.

`scaling.measure.probe.figures` says what the samples tell of devices and links. The latency of a message is
the latency that was fitted, less that of the links, which stays nominal. What the model then gets wrong of
the probe's own samples is said in words. Nothing here needs torch or the machine itself: reports make the
file of a results folder anew.
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scaling.files.texts import gigabytes_per_s
from scaling.measure.probe.cases import ProbeSample
from scaling.measure.probe.edit import set_figures, set_latency
from scaling.measure.probe.figures import ProbeReader
from scaling.measure.probe.series import Observed, OneSeries, Series, size_text, table, together
from topologies.build import build
from topologies.detected_file import machine_file as file_of_detected
from topologies.detected_file import peer_access
from topologies.facts import DETECTED, Facts, Gpu
from topologies.file_text import WIDTH, as_yaml, validated
from topologies.model import Path, Topology
from topologies.parse import machine_file

DIFFERS_RATIO = 0.25
"""A prediction that is further off than this is reported."""


@dataclass(frozen=True)
class ProbedTopology:
    """What is put into the file. `gpu_ids`: the device of each rank; empty where ranks are processes on the
    CPU; `peers`: pairs of ranks whose GPUs can access each other's memory; `stamp`: what every source starts
    with: `measured by scaling topology probe on ...`."""

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
    return build(machine_file(file, str(file["name"])), str(file["name"]))


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
        Gpu(
            index=rank,
            name=fields["name"],
            uuid=fields.get("uuid", ""),
            bus_id="",
            peers=frozenset(fields["peers"]),
        )
        for rank, fields in enumerate(ranks)
    )
    missing = ("the GPUs' links: neither NVML nor nvidia-smi found as many GPUs as CUDA",)
    return replace(detected, gpus=gpus, places={}, bridges={}, missing=(*detected.missing, *missing))


def gpu_ids(gpus: Sequence[Gpu], uuids: Sequence[str]) -> list[str]:
    """The detected GPU of each rank: by its UUID, which CUDA writes without `GPU-`; else by its place."""
    by_uuid = {gpu.uuid.lower().removeprefix("gpu-"): gpu.id for gpu in gpus if gpu.uuid}
    ids = [by_uuid.get(uuid.lower().removeprefix("gpu-")) for uuid in uuids]
    if all(ids):
        return [id_ for id_ in ids if id_]
    return [gpu.id for gpu in gpus][: len(uuids)]


def result_of(
    facts: Mapping[str, Any], samples: Sequence[ProbeSample], notes: Sequence[str], command: str
) -> ProbeResult:
    """The machine file of what was found and measured. `command`: that measured, for the sources: `scaling
    topology probe`. Raises TopologyError: the file would not be valid."""
    measurement = _measurement(facts, samples, command)
    file, misfits = measured_file(measurement)
    lines = table(Series(samples))
    remarks = [*(f"not found: {what}" for what in facts["missing"]), *notes]
    remarks += [f"not in the model: {what}" for what in misfits]
    remark_lines = [line for note in remarks for line in textwrap.wrap(note, WIDTH, subsequent_indent="    ")]
    head = [
        f"{file['name']}, {measurement.stamp}",
        "",
        *remark_lines,
        *([""] if remark_lines else []),
        *lines,
    ]
    text = as_yaml(file, head)
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
    return ProbedTopology(
        detected=facts["detected"],
        gpu_ids=facts["gpu_ids"],
        samples=samples,
        peers=peers,
        stamp=f"measured by {command} on {facts['date']}, {len(ranks)} {kind}{plural}, torch "
        f"{facts['torch']}{nccl}{mpi}",
    )
