"""How large a batch this machine needs: `global_batch: auto` becomes a number by a few trial steps.

A step of one worker is to take SHORTEST_S to LONGEST_S: shorter ones are noise and launch overhead, longer
ones make a first study slow. The batch is doubled or halved from FIRST until it does.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import torch

from scaling.experiments.training_step import training_step
from scaling.store import ResultsFolder
from scaling.study.kinds.base import AvailableMachine
from scaling.study.parts import Alternatives, TrainingPart, Workload
from scaling.study.places import device_of
from scaling.study.schema import Study
from scaling.study.workloads import ChosenWorkload

SHORTEST_S, LONGEST_S = 0.010, 0.030

FIRST = {"cuda": 1024, "cpu": 64}
SMALLEST, LARGEST = 16, 65536

STEPS = 3
"""That are timed, after one that is not; the shortest counts."""


def trial_overrides(
    study: Study, machine: AvailableMachine, folder: ResultsFolder, note: Callable[[str], None]
) -> list[str]:
    """Overrides that set each `global_batch: auto` of a study; none where it has no such batch.

    A folder that is there already keeps its batches.

    Args:
        study: what is to be run.
        machine: this one.
        folder: of the results.
        note: takes a line a workload, which says what the trial gave.
    """
    found, known = [], folder.study() if folder.exists() else None
    batches: dict[str, int] = {}
    for part, workload, key in _automatic(study):
        device = device_of(part, machine, [])
        if workload.device not in (None, device):
            continue
        name = f"{workload.model.name} {workload.model.parameters} {workload.dataset.name}"
        if name not in batches:
            before = _stored(known, key) if known else None
            batches[name] = before or _trial(workload, device, part.threads or 1, note)
        found.append(f"{key}.global_batch={batches[name]}")
    return found


def _automatic(study: Study) -> Iterator[tuple[TrainingPart, Workload, str]]:
    """Workloads without a batch of their own, each with its part and its dotted key."""
    for index, part in enumerate(study.parts):
        for number, choice in enumerate(part.workloads if isinstance(part, TrainingPart) else []):
            assert isinstance(part, TrainingPart)
            key = f"parts.{index}.workloads.{number}"
            if isinstance(choice, Alternatives):
                options = [
                    (f"{key}.first_available.{at}", one) for at, one in enumerate(choice.first_available)
                ]
            else:
                options = [(key, choice)]
            yield from ((part, one, place) for place, one in options if one.global_batch == "auto")


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


def _trial(workload: Workload, device: str, threads: int, note: Callable[[str], None]) -> int:
    if device == "cuda":
        batch, seconds = in_own_process(workload, device, threads)
    else:
        batch, seconds = _tried(workload, device, threads)
    note(f"{workload.model.name}: batch {batch} by a trial, {1000 * seconds:.3g} ms a step on one worker")
    return batch


def in_own_process(workload: Workload, device: str, threads: int) -> tuple[int, float]:
    """The batch and its time, found in a process that ends: here its context and memory would stay on the GPU
    while the study is timed.
    """
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as process:
        return process.submit(_tried, workload, device, threads).result()


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
