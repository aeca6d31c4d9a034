"""A study resolved for one machine: its cells, one a combination, each with an identity.

A cell's id is a hash of everything that decides its result. Launcher, host, job and time are recorded with a
run, but are no part of it: the same cell measured under another launcher is the same cell.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from scaling.aggregators.base import Aggregator
from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import StudyError
from scaling.study.schema import Alternatives, AnyPart, ConvergencePart, IterationPart, Study, Workload
from scaling.workloads.registry import create_dataset, create_model, resolve_shape


@dataclass(frozen=True)
class Machine:
    """What a study is resolved against.

    Attributes:
        num_gpus: GPUs that torch can use here; on several nodes, of one node.
        num_cores: CPU cores that this process may use.
        num_nodes: nodes of the launch.
    """

    num_gpus: int
    num_cores: int
    num_nodes: int = 1


@dataclass(frozen=True)
class Cell:
    """One combination of a study. Times in seconds; labels are for people, and no part of the identity."""

    kind: str
    model: str
    dataset: str
    aggregator: str
    step: str
    device: str
    scaling: str
    world_size: int
    local_batch: int
    global_batch: int
    threads: int
    peer_access: bool | None
    tf32: bool | None
    seed: int
    learning_rate: float
    momentum: float
    weight_decay: float
    nesterov: bool
    warmup: int | None = None
    iterations: int | None = None
    max_seconds: float | None = None
    epochs: int | None = None
    target_accuracy: float | None = None
    model_parameters: dict[str, Any] = field(default_factory=dict)
    dataset_parameters: dict[str, Any] = field(default_factory=dict)
    aggregator_parameters: dict[str, Any] = field(default_factory=dict)
    model_label: str = ""
    dataset_label: str = ""
    aggregator_label: str = ""
    exchanges: bool = True
    lossy: bool = False

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the identity's SHA-256."""
        labels = ("model_label", "dataset_label", "aggregator_label", "exchanges", "lossy")
        identity = {key: value for key, value in asdict(self).items() if key not in labels}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        return asdict(self)

    def describe(self) -> str:
        """One line for people."""
        return (
            f"{self.kind} {self.model_label} on {self.dataset_label}, {self.aggregator_label}, "
            f"{self.world_size} x {self.local_batch} on {self.device}"
        )


@dataclass(frozen=True)
class ResolvedStudy:
    """A study's cells on one machine.

    Attributes:
        name: the study's.
        repeats: cell -> how often it is run, each time in another launch.
        notes: what was decided for the user: the device, sizes dropped, the data set taken.
    """

    name: str
    repeats: dict[str, int]
    cells: dict[str, Cell]
    notes: list[str]


def resolve(study: Study, machine: Machine) -> ResolvedStudy:
    """All cells of a study on that machine.

    Raises:
        StudyError: a name or parameter is unknown, a combination cannot be, or GPUs are missing.
    """
    cells: dict[str, Cell] = {}
    repeats: dict[str, int] = {}
    notes: list[str] = []
    for index, part in enumerate(study.parts):
        where = f"{study.name}: " + (f"parts.{index}: " if len(study.parts) > 1 else "")
        device = _device(part, machine, notes)
        sizes = _world_sizes(part, device, machine, where, notes)
        threads = part.threads or _default_threads(device, machine)
        for cell in _part_cells(part, device, sizes, threads, where, notes):
            cells[cell.id] = cell
            repeats[cell.id] = max(part.repeats, repeats.get(cell.id, 0))
    return ResolvedStudy(study.name, repeats, cells, list(dict.fromkeys(notes)))


def _default_threads(device: str, machine: Machine) -> int:
    """CPU threads of a worker: one where it is a CPU process, else three quarters of its GPU's cores.

    The rest is left to the driver, the library's own threads and the loader: sums in host memory that take
    every core wait for the one that something else runs on. The same at every world size, and whatever other
    sizes the study has.
    """
    if device != "cuda" or not machine.num_gpus:
        return 1
    return max(1, 3 * (machine.num_cores // machine.num_gpus) // 4)


def _device(part: AnyPart, machine: Machine, notes: list[str]) -> str:
    if part.device != "auto":
        return part.device
    if machine.num_gpus:
        notes.append(f"device: {machine.num_gpus} GPU{'s' if machine.num_gpus > 1 else ''} found, NCCL")
        return "cuda"
    notes.append("device: no GPU found, CPU processes over Gloo")
    return "cpu"


def _world_sizes(part: AnyPart, device: str, machine: Machine, where: str, notes: list[str]) -> list[int]:
    if len(set(part.world_sizes)) != len(part.world_sizes):
        raise StudyError(f"{where}world_sizes {part.world_sizes} holds a size twice")
    if device == "cpu":
        return part.world_sizes
    available = machine.num_gpus * machine.num_nodes
    missing = [size for size in part.world_sizes if size > available]
    sizes = [size for size in part.world_sizes if size <= available]
    if missing and (part.missing_devices == "error" or not sizes):
        raise StudyError(
            f"{where}world size {min(missing)} needs {min(missing)} GPUs and {available} can be used; "
            + (f"use world_sizes={sizes}, missing_devices=drop, or device=cpu" if sizes else "use device=cpu")
        )
    if missing:
        notes.append(f"world sizes {missing} dropped: {available} GPUs here")
    return sizes


def _part_cells(
    part: AnyPart, device: str, sizes: list[int], threads: int, where: str, notes: list[str]
) -> Iterator[Cell]:
    aggregators = [(spec.name, create_aggregator(spec.name, spec.parameters)) for spec in part.aggregators]
    for _, aggregator in aggregators:
        _check_aggregator(aggregator, part, sizes, where)
        _check_step(aggregator, part, device, where)
    peer_access = part.peer_access if device == "cuda" else [None]
    tf32 = part.tf32 if device == "cuda" else [None]
    for choice in part.workloads:
        workload = _choose(choice, notes)
        batches = workload.global_batch or workload.local_batch or []
        axes = itertools.product(batches, sizes, aggregators, part.step, peer_access, tf32, part.seed)
        for batch, size, aggregator, step, peer, tf, seed in axes:
            local, total = _batch_sizes(part, batch, size, where)
            _check_data(workload, total, where)
            yield Cell(
                kind=part.kind,
                **_names(workload, *aggregator),
                step=step,
                device=device,
                scaling=part.scaling,
                world_size=size,
                local_batch=local,
                global_batch=total,
                threads=threads,
                peer_access=peer,
                tf32=tf,
                seed=seed,
                **_training(workload, part),
                **_extent(workload, part),
            )


def _check_aggregator(aggregator: Aggregator[Any], part: AnyPart, sizes: list[int], where: str) -> None:
    label = aggregator.label()
    if isinstance(part, ConvergencePart) and not aggregator.exchanges and max(sizes) > 1:
        raise StudyError(
            f"{where}aggregator {label!r} exchanges nothing: replicas drift apart, so it is never a "
            "convergence result at world sizes above 1; leave it out of this part"
        )
    if min(sizes) < aggregator.min_world_size:
        raise StudyError(
            f"{where}aggregator {label!r} needs a world size of {aggregator.min_world_size} at least, "
            f"world_sizes has {min(sizes)}"
        )


def _check_step(aggregator: Aggregator[Any], part: AnyPart, device: str, where: str) -> None:
    if "captured" not in part.step:
        return
    if device != "cuda":
        raise StudyError(f"{where}step: captured is a CUDA graph and needs GPUs; on {device} use step: eager")
    if not aggregator.graph_capturable or aggregator.update_site != "replica":
        raise StudyError(
            f"{where}aggregator {aggregator.label()!r} cannot be captured in a CUDA graph: its sums or its "
            "update are the processor's or an owner's work; use step: eager, or a part of its own"
        )


def _choose(choice: Workload | Alternatives, notes: list[str]) -> Workload:
    if isinstance(choice, Workload):
        return choice
    for workload in choice.first_available[:-1]:
        if create_dataset(workload.dataset.name, workload.dataset.parameters).available():
            break
    else:
        workload = choice.first_available[-1]
    notes.append(f"data set: {workload.dataset.name} (the first available of its alternatives)")
    return workload


def _batch_sizes(part: AnyPart, batch: int, world_size: int, where: str) -> tuple[int, int]:
    if part.scaling == "weak":
        return batch, batch * world_size
    if batch % world_size:
        raise StudyError(
            f"{where}global_batch {batch} does not divide by world size {world_size}; every worker takes "
            f"the same share: use a multiple of {world_size}, or leave that size out"
        )
    return batch // world_size, batch


def _check_data(workload: Workload, global_batch: int, where: str) -> None:
    dataset = create_dataset(workload.dataset.name, workload.dataset.parameters)
    if dataset.num_train is not None and global_batch > dataset.num_train:
        raise StudyError(
            f"{where}a global batch of {global_batch} is larger than data set {dataset.name!r}, which has "
            f"{dataset.num_train} training samples; use a smaller batch or another data set"
        )


def _label(name: str, parameters: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{k}={v}' for k, v in parameters.items())})" if parameters else name


def _names(workload: Workload, name: str, aggregator: Aggregator[Any]) -> dict[str, Any]:
    model = create_model(workload.model.name, workload.model.parameters)
    dataset = create_dataset(workload.dataset.name, workload.dataset.parameters)
    resolve_shape(model, dataset)  # raises where they do not fit
    return {
        "model": workload.model.name,
        "model_parameters": model.parameters,
        "model_label": _label(workload.model.name, workload.model.parameters),
        "dataset": workload.dataset.name,
        "dataset_parameters": asdict(dataset),
        "dataset_label": _label(workload.dataset.name, workload.dataset.parameters),
        "aggregator": name,
        "aggregator_parameters": aggregator.parameters(),
        "aggregator_label": aggregator.label(),
        "exchanges": aggregator.exchanges,
        "lossy": aggregator.lossy,
    }


def _training(workload: Workload, part: AnyPart) -> dict[str, Any]:
    def own(key: str) -> Any:
        value = getattr(workload, key)
        return getattr(part, key) if value is None else value

    values = {key: own(key) for key in ("learning_rate", "momentum", "weight_decay", "nesterov")}
    if values["nesterov"] and not values["momentum"]:
        raise StudyError("nesterov: true needs a momentum above 0")
    return values


def _extent(workload: Workload, part: AnyPart) -> dict[str, Any]:
    if isinstance(part, IterationPart):
        return {"warmup": part.warmup, "iterations": part.iterations, "max_seconds": part.max_seconds}
    target = workload.target_accuracy if workload.target_accuracy is not None else part.target_accuracy
    return {"epochs": workload.epochs or part.epochs, "target_accuracy": target}
