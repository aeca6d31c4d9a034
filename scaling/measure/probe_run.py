"""Runs the probe: workers with access between GPUs and without, then the machine file of what they measured."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launchers import local
from launchers.processes import run_to_end
from scaling.errors import LaunchError
from scaling.measure.probe import Sample, as_csv
from scaling.measure.probe_series import Series, table
from scaling.measure.probe_topology import measured_file, measurement_of, with_gpus_of
from topologies.detected_file import machine_file
from topologies.facts import Facts
from topologies.file_text import as_yaml, validated

START_LIMIT_S = 180.0
"""What importing, joining and making connections may take beyond the time for measuring."""

SLACK_RATIO = 2.0
"""A launch may measure so much longer than it was told: the least of each size is always measured."""

HOST_ONLY_SHARE = 0.3  # of the time, for the second launch: it measures messages only
CPU_RANKS = 4
LOG_LINES_SHOWN = 15


@dataclass
class Measured:
    """What the launches left.

    Attributes:
        facts: what the first one's workers say of themselves and their versions.
        samples: of all launches.
        notes: what was left out, for people.
        failures: why a launch ended before its end.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ProbeSpec:
    """What is to be measured.

    Attributes:
        world_size: workers.
        device: cuda or cpu.
        seconds: for measuring, of all launches together; starting them comes on top.
        threads: CPU threads of a worker.
        host_only: only without access between GPUs.
    """

    world_size: int
    device: str
    seconds: float
    threads: int
    host_only: bool = False

    def launches(self) -> list[tuple[bool, bool, float]]:
        """Of each launch: without access between GPUs?, messages only?, and its seconds."""
        if self.host_only:
            return [(True, False, self.seconds)]
        if self.device == "cpu" or self.world_size < 2:
            return [(False, False, self.seconds)]
        second_s = self.seconds * HOST_ONLY_SHARE
        return [(False, False, self.seconds - second_s), (True, True, second_s)]


def spec_for(
    num_gpus: int, num_cores: int, world_size: int | None, seconds: float, host_only: bool
) -> ProbeSpec:
    """One worker a GPU; without GPUs, up to four processes.

    Raises:
        LaunchError: there are fewer GPUs than workers, or a number makes no sense.
    """
    if seconds <= 0:
        raise LaunchError(f"--seconds is {seconds:g}; it has to be positive")
    chosen = world_size or num_gpus or min(CPU_RANKS, num_cores)
    if chosen < 1:
        raise LaunchError(f"--world-size is {chosen}; at least one worker is needed")
    if num_gpus and chosen > num_gpus:
        raise LaunchError(
            f"--world-size is {chosen}, but {num_gpus} GPUs are visible; use up to {num_gpus}, or hide the "
            "GPUs (CUDA_VISIBLE_DEVICES=) to measure processes on the CPU"
        )
    if host_only and not num_gpus:
        raise LaunchError("--host-only forbids access between GPUs; there is none here, leave it out")
    threads = max(1, num_cores // chosen)
    return ProbeSpec(chosen, "cuda" if num_gpus else "cpu", seconds, threads, host_only)


def measure(spec: ProbeSpec, say: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Measured:
    """Runs the launches one after the other.

    A launch that fails is told in `failures`; what it measured before is kept.

    Raises:
        LaunchError: the environment contradicts what is asked for, or nothing at all was measured.
    """
    if environ.get("NCCL_P2P_DISABLE", "0") not in ("", "0") and not spec.host_only:
        raise LaunchError("NCCL_P2P_DISABLE is set; unset it, or use --host-only")
    measured = Measured()
    for host_only, only_messages, seconds in spec.launches():
        what = "without access between GPUs, " if host_only else ""
        say(f"{spec.world_size} workers ({spec.device}), {what}about {seconds:.0f} s after the start")
        _launch(spec, host_only, only_messages, seconds, measured, environ)
        if measured.failures:
            break
    if not measured.samples:
        raise LaunchError("\n".join(measured.failures) or "the workers measured nothing")
    return measured


def _launch(
    spec: ProbeSpec,
    host_only: bool,
    only_messages: bool,
    seconds: float,
    measured: Measured,
    environ: Mapping[str, str],
) -> None:
    with tempfile.TemporaryDirectory(prefix="scaling-probe-") as folder, tempfile.TemporaryFile() as log:
        path = Path(folder) / "samples.jsonl"
        arguments = ["--samples", str(path), "--seconds", str(seconds), "--device", spec.device]
        arguments += ["--host-only"] if host_only else []
        arguments += ["--only-messages"] if only_messages else []
        launch = local.LaunchSpec(spec.world_size, spec.threads, "scaling.measure.probe_worker", arguments)
        environment = {**environ, **local.environment(launch)}
        if host_only:
            environment["NCCL_P2P_DISABLE"] = "1"
        limit_s = START_LIMIT_S + seconds * SLACK_RATIO
        code = run_to_end(local.command(launch), environment, log, limit_s)
        is_done = read_lines(path, measured)
        if code != 0 or not is_done:
            how = (
                f"ran past {limit_s:.0f} s and was ended" if code is None else f"ended with exit code {code}"
            )
            log.seek(0)
            lines = log.read().decode(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            measured.failures.append(
                "\n".join([f"the workers' launch {how}; the last that they said:", *lines])
            )


def read_lines(path: Path, measured: Measured) -> bool:
    """Adds what a launch wrote; returns whether it came to its end."""
    is_done = False
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:  # cut off while it was written
            break
        if "sample" in row:
            measured.samples.append(Sample.from_row(row["sample"]))
        elif "note" in row:
            measured.notes.append(row["note"])
        elif "facts" in row:
            measured.facts = measured.facts or row["facts"]
        is_done = is_done or "done" in row
    return is_done


@dataclass(frozen=True)
class ProbeResult:
    """What a probe gives.

    Attributes:
        machine: the text of the machine file.
        measured: all that it was made of.
        table: a line for each thing measured, for people.
        notes: what is missing or does not fit, for people.
    """

    machine: str
    measured: Measured
    table: list[str]
    notes: list[str]

    def samples(self, *, as_json: bool) -> str:
        """The raw samples as CSV, or as JSON with the facts and the notes."""
        if not as_json:
            return as_csv(self.measured.samples)
        rows = [asdict(sample) for sample in self.measured.samples]
        return json.dumps({"facts": self.measured.facts, "notes": self.notes, "samples": rows}, indent=1)


def result_of(measured: Measured, found: Facts, date: str) -> ProbeResult:
    """The machine file of what was found and measured.

    Args:
        measured: by the workers.
        found: by detection.
        date: of today.

    Raises:
        TopologyError: the file would not be valid.
    """
    on_gpus = measured.facts["device"] == "cuda"
    found = with_gpus_of(found, measured.facts["ranks"]) if on_gpus else found
    measurement = measurement_of(machine_file(found), found.gpus, measured.facts, measured.samples, date)
    file, misfits = measured_file(measurement)
    lines = table(Series(measured.samples))
    notes = [*(f"not found: {what}" for what in found.missing), *measured.notes]
    notes += [f"the model does not tell: {what}" for what in misfits]
    head = [f"{file['name']}, {measurement.stamp}.", "", *notes, *([""] if notes else []), *lines]
    text = as_yaml(file, head)
    validated(text, "the probe's machine file")
    return ProbeResult(text, measured, lines, notes)
