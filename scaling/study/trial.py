"""How large a batch this machine needs: `global_batch: auto` becomes a number by a few trial steps.

A step of one worker is to take SHORTEST_S to LONGEST_S: shorter ones are noise and launch overhead, longer
ones make a first study slow. The batch is doubled or halved from FIRST until it does.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from launchers.base import LaunchSpec
from launchers.zygote import STARTED_AT_ONCE, Zygotes
from scaling.device_studies.training_step import training_step
from scaling.errors import LaunchError
from scaling.store import ResultsFolder
from scaling.store.files import write_whole
from scaling.study.cell import AvailableMachine, ResolvedStudy
from scaling.study.overrides import load_study
from scaling.study.parts import Alternatives, TrainingPart, Workload
from scaling.study.places import device_of
from scaling.study.prepare import this_machine
from scaling.study.resolve import resolve
from scaling.study.schema import Study
from scaling.study.workloads import ChosenWorkload, choose
from topologies.detect import num_usable_cores

Note = Callable[[str], None]
SHORTEST_S, LONGEST_S = 0.010, 0.030

FIRST = {"cuda": 1024, "cpu": 64}
SMALLEST, LARGEST = 16, 65536

STEPS = 3  # that are timed, after one that is not; the shortest counts


def trial_overrides(
    study: Study, machine: AvailableMachine, folder: ResultsFolder, note: Note, zygotes: Zygotes
) -> list[str]:
    """Overrides that set each `global_batch: auto`; a folder that is there keeps its batches. LaunchError."""
    sized, known = [], folder.study() if folder.exists() else None
    batches: dict[str, int] = {}
    for index, part in enumerate(study.parts):
        if not isinstance(part, TrainingPart):
            continue
        device = device_of(part, machine, [])
        for number, choice in enumerate(part.workloads):
            workload = choose(choice, device, lambda _: None).keys  # `resolve` notes what was chosen
            if workload.global_batch != "auto":
                continue
            key = f"parts.{index}.workloads.{number}"
            if isinstance(choice, Alternatives):
                key += f".first_available.{choice.first_available.index(workload)}"
            name = f"{workload.model.name} {workload.model.parameters} {workload.dataset.name}"
            if name not in batches:
                before = _stored(known, key) if known else None
                batches[name] = before or _trial(workload, device, part.threads or 1, note, zygotes)
            sized.append(f"{key}.global_batch={batches[name]}")
    return sized


def sized_study(
    name: str,
    loaded: Study,
    overrides: list[str],
    num_nodes: int,
    folder: ResultsFolder,
    note: Note,
    zygotes: Zygotes,
) -> tuple[Study, list[str], ResolvedStudy]:
    """The study with these overrides and `trial_overrides`, as this machine runs it; its notes are said."""
    machine = this_machine(num_nodes)
    if sized := trial_overrides(loaded, machine, folder, note, zygotes):
        overrides = [*overrides, *sized]
        loaded = load_study(name, overrides)
    resolved = resolve(loaded, machine)
    for text in resolved.notes:
        note(text)
    return loaded, overrides, resolved


def _stored(study: object, key: str) -> int | None:
    """The batch that a results folder's study has at that place."""
    for step in [*key.split("."), "global_batch"]:
        if isinstance(study, list) and step.isdigit() and int(step) < len(study):
            study = study[int(step)]
        elif isinstance(study, dict):
            study = study.get(step)
        else:
            return None
    first = study[0] if isinstance(study, list) and study else study
    return first if isinstance(first, int) else None


def _trial(workload: Workload, device: str, threads: int, note: Note, zygotes: Zygotes) -> int:
    if device == "cuda":
        batch, seconds = in_forked_process(workload, device, threads, zygotes)
    else:
        zygotes.wait_until_imported()  # nothing is imported while something is timed
        batch, seconds = _tried(workload, device, threads)
    note(f"{workload.model.name}: batch {batch} by a trial, {1000 * seconds:.3g} ms a step on one worker")
    return batch


def in_forked_process(workload: Workload, device: str, threads: int, zygotes: Zygotes) -> tuple[int, float]:
    """The batch and its time, of a process that gives its GPU memory back. Raises LaunchError."""
    with tempfile.TemporaryDirectory(prefix="scaling-trial-") as folder:
        request, log = Path(folder, "trial.json"), Path(folder, "log")
        asked = {"workload": workload.model_dump(mode="json"), "device": device, "threads": threads}
        write_whole(request, json.dumps(asked).encode())
        spec = LaunchSpec(1, threads, __name__, [str(request)])
        has_cores = num_usable_cores() > 2 * STARTED_AT_ONCE  # a GPU's steps need one of them
        code = zygotes.launch(0, spec, os.environ, log, others_may_import=has_cores).wait()
        result = json.loads(request.read_text(encoding="utf-8"))
    if code or "error" in result:
        why = result.get("error", f"its process ended with exit code {code}")
        raise LaunchError(f"trial step of {workload.model.name} on {device}: {why}")
    return result["batch"], result["seconds"]


def main(arguments: Sequence[str]) -> None:
    """The forked process: reads the request in that file, and writes what it found in its place."""
    path = Path(arguments[0])
    asked = json.loads(path.read_text(encoding="utf-8"))
    try:
        workload = Workload.model_validate(asked["workload"])
        batch, seconds = _tried(workload, asked["device"], asked["threads"])
        result: dict[str, object] = {"batch": batch, "seconds": seconds}
    except Exception as error:  # noqa: BLE001 (the command says it)
        result = {"error": f"{type(error).__name__}: {error}"}
    write_whole(path, json.dumps(result).encode())


def _tried(workload: Workload, device: str, threads: int) -> tuple[int, float]:
    chosen, before = ChosenWorkload.of(workload), torch.get_num_threads()
    torch.set_num_threads(threads if device == "cpu" else before)
    try:
        return _fitting(lambda size: _step_s(chosen, device, size), FIRST[device])
    finally:
        torch.set_num_threads(before)


def _fitting(step_s: Callable[[int], float], first: int) -> tuple[int, float]:
    """The batch whose step is neither too short nor too long, with its time."""
    batch, seconds = first, step_s(first)
    while seconds < SHORTEST_S and batch < LARGEST:
        try:
            larger_s = step_s(2 * batch)
        except torch.OutOfMemoryError:
            break
        batch, seconds = 2 * batch, larger_s
    while seconds > LONGEST_S and batch > SMALLEST:
        batch //= 2
        seconds = step_s(batch)
    return batch, seconds


def _step_s(workload: ChosenWorkload, device: str, batch: int) -> float:
    """Seconds of a training step of one worker, on random input."""
    module = workload.module.to_empty(device=device)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.01)
    inputs = torch.rand(batch, *workload.shape.input_shape, device=device)
    targets = torch.zeros(batch, dtype=torch.long, device=device)
    step = training_step(module, inputs, targets, loss=workload.model.loss)
    times = []
    for _ in range(1 + STEPS):
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])
