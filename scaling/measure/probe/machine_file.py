"""The text of the machine file that a probe gives: what was detected, with what was measured in its place.

Nothing here needs torch or the machine itself: reports make the file of a results folder anew.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scaling.measure.probe.cases import ProbeSample
from scaling.measure.probe.series import Series, table
from scaling.measure.probe.topology import ProbedTopology, measured_file
from topologies.detected_file import machine_file
from topologies.facts import Facts, Gpu
from topologies.file_text import WIDTH, as_yaml, validated


@dataclass(frozen=True)
class ProbeResult:
    """What a probe gives.

    Attributes:
        table: a line for each thing measured, for people.
        notes: what is missing or does not fit, for people.
    """

    machine: str
    table: list[str]
    notes: list[str]


def with_detected(facts: Mapping[str, Any], detected: Facts, date: str) -> dict[str, Any]:
    """The workers' facts, with all of the machine that its file needs besides.

    Args:
        facts: of the workers (`probe_ranks.facts`).
        found: by detection, where they ran.
    """
    ranks, ids = facts["ranks"], []
    if facts["device"] == "cuda":
        detected = _with_gpus_of(detected, ranks)
        ids = gpu_ids(detected.gpus, [rank.get("uuid", "") for rank in ranks])
    return {
        **facts,
        "date": date,
        "detected": machine_file(detected),
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
    """The machine file of what was found and measured.

    Args:
        facts: what `with_detected` made.
        command: that measured, for the sources: `scaling topology probe`.

    Raises:
        TopologyError: the file would not be valid.
    """
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
