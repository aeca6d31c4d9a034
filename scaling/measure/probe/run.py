"""Runs the probe: workers with access between GPUs and without; then makes the machine file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import IO, Any

from launchers.base import Launcher, LaunchSpec
from launchers.processes import run_to_end
from launchers.registry import launcher_class
from scaling.errors import LaunchError
from scaling.measure.environment import collect
from scaling.measure.probe.cases import ProbeSample, as_csv
from scaling.measure.probe.machine_file import ProbeResult, result_of, with_detected
from topologies.detect import num_usable_cores
from topologies.facts import Facts

START_LIMIT_S = 180.0  # what importing, joining and making connections may take beyond the time for measuring

SLACK_RATIO = 2.0
"""A launch may measure so much longer than its budget: the least of each size is always measured."""

HOST_ONLY_SHARE = 0.3  # of the time, for the second launch: it measures messages only
CPU_RANKS = 4
LAUNCHERS = ("local", "mpirun")
LOG_LINES_SHOWN = 15


@dataclass
class ProbeMeasurement:
    """What the launches left. `facts`: what the first one's workers say of themselves and their versions."""

    environment: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[ProbeSample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def samples_text(self, *, as_json: bool) -> str:
        """The raw samples as CSV, or as JSON with environment, facts and notes."""
        if not as_json:
            return as_csv(self.samples)
        rows = [asdict(sample) for sample in self.samples]
        fields = {"environment": self.environment, "facts": self.facts, "notes": self.notes, "samples": rows}
        return json.dumps(fields, indent=1)


@dataclass(frozen=True)
class ProbeLaunch:
    host_only: bool
    only_messages: bool
    seconds: float


@dataclass(frozen=True)
class ProbeSpec:
    """`seconds`: of measuring, all launches together; `launcher`: "local" (torchrun) or "mpirun"."""

    world_size: int
    device: str
    seconds: float
    threads: int
    host_only: bool = False
    launcher: str = "local"

    def launches(self) -> list[ProbeLaunch]:
        if self.host_only or self.device == "cpu" or self.world_size < 2:
            return [ProbeLaunch(self.host_only, only_messages=False, seconds=self.seconds)]
        second_s = self.seconds * HOST_ONLY_SHARE
        return [ProbeLaunch(False, False, self.seconds - second_s), ProbeLaunch(True, True, second_s)]


def this_machine() -> tuple[int, int]:
    import torch

    return torch.cuda.device_count(), num_usable_cores()


def spec_for(
    num_gpus: int,
    num_cores: int,
    world_size: int | None,
    seconds: float,
    host_only: bool,
    launcher: str = "local",
) -> ProbeSpec:
    """One worker a GPU, else up to four processes. LaunchError: too few GPUs, or a number makes no sense."""
    if seconds <= 0:
        raise LaunchError(f"--seconds is {seconds:g}; it has to be positive")
    if launcher not in LAUNCHERS:
        raise LaunchError(f"--launcher is {launcher!r}; allowed: {', '.join(LAUNCHERS)}")
    chosen = (num_gpus or min(CPU_RANKS, num_cores)) if world_size is None else world_size
    if chosen < 1:
        raise LaunchError(f"--world-size is {chosen}; at least one worker is needed")
    if num_gpus and chosen > num_gpus:
        raise LaunchError(
            f"--world-size is {chosen}, but {num_gpus} GPUs are visible; use up to {num_gpus}, or hide the "
            "GPUs (CUDA_VISIBLE_DEVICES=) to measure processes on the CPU"
        )
    if host_only and not num_gpus:
        raise LaunchError("--no-peer-access forbids access between GPUs; there is none here, leave it out")
    threads = max(1, num_cores // chosen)
    return ProbeSpec(chosen, "cuda" if num_gpus else "cpu", seconds, threads, host_only, launcher)


def measure(
    spec: ProbeSpec, say: Callable[[str], None], environ: Mapping[str, str] = os.environ
) -> ProbeMeasurement:
    """A launch that fails is recorded in `failures`; what it measured before is kept. LaunchError: the
    environment contradicts what is asked for, there is no such launcher, or nothing at all was measured."""
    if environ.get("NCCL_P2P_DISABLE", "0") not in ("", "0") and not spec.host_only:
        raise LaunchError("NCCL_P2P_DISABLE is set; unset it, or use --no-peer-access")
    try:
        starter = launcher_class(spec.launcher).from_environment(environ)
    except ValueError as error:
        raise LaunchError(str(error)) from error
    measured = ProbeMeasurement(environment=collect(environ))
    for launch in spec.launches():
        what = "without access between GPUs, " if launch.host_only else ""
        say(f"{spec.world_size} workers ({spec.device}), {what}about {launch.seconds:.0f} s after the start")
        _run(spec, launch, starter, measured, environ)
        if not measured.samples:
            raise LaunchError("\n".join(measured.failures) or "the workers measured nothing")
    return measured


def _run(
    spec: ProbeSpec,
    launch: ProbeLaunch,
    starter: Launcher,
    measured: ProbeMeasurement,
    environ: Mapping[str, str],
) -> None:
    with tempfile.TemporaryDirectory(prefix="scaling-probe-") as folder, tempfile.TemporaryFile() as log:
        path = Path(folder) / "samples.jsonl"
        flags = {"--no-peer-access": launch.host_only, "--only-messages": launch.only_messages}
        arguments = ["--samples", str(path), "--device", spec.device, "--seconds", str(launch.seconds)]
        arguments += [name for name, is_on in flags.items() if is_on]
        started = LaunchSpec(spec.world_size, spec.threads, "scaling.measure.probe.worker", arguments)
        # torchrun leaves a folder behind; it may do so in ours.
        environment = {**environ, **starter.environment(started), "TMPDIR": folder}
        if launch.host_only:
            environment["NCCL_P2P_DISABLE"] = "1"
        limit_s = START_LIMIT_S + launch.seconds * SLACK_RATIO
        code = run_to_end(starter.command(started), environment, log, limit_s)
        is_done = read_lines(path, measured)
        if code is None:
            measured.failures.append(_failure(f"ran past {limit_s:.0f} s and was ended", log))
        elif code != 0 or not is_done:
            measured.failures.append(_failure(f"ended with exit code {code}", log))


def _failure(how: str, log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    return "\n".join([f"the workers' launch {how}; the last that they said:", *lines])


def read_lines(path: Path, measured: ProbeMeasurement) -> bool:
    is_done = False
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:  # cut off while it was written
            break
        if "sample" in row:
            measured.samples.append(ProbeSample.from_row(row["sample"]))
        elif "note" in row:
            measured.notes.append(row["note"])
        elif "facts" in row:
            measured.facts = measured.facts or row["facts"]
        is_done = is_done or "done" in row
    return is_done


def machine_of(measured: ProbeMeasurement, detected: Facts, today: date | None = None) -> ProbeResult:
    """The machine file of what was found and measured. Raises TopologyError: the file would not be valid."""
    facts = with_detected(measured.facts, detected, (today or datetime.now().astimezone().date()).isoformat())
    return result_of(facts, measured.samples, measured.notes, "scaling topology probe")
