"""A study resolved for one machine: its cells, one a combination, each with an identity.

A cell's id is a hash of everything that decides its result. Launcher, host, job and time are recorded with a
run, but are no part of it: the same cell measured under another launcher is the same cell.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scaling.aggregators.base import Aggregator
from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import StudyError
from scaling.study.device import DeviceCell, device_cells
from scaling.study.dtypes import check_dtypes
from scaling.study.memory_format import memory_formats
from scaling.study.recipes import recipe_of, timed_augmentation
from scaling.study.rules import check_part
from scaling.study.schema import (
    Alternatives,
    AnyPart,
    DevicePart,
    IterationPart,
    Study,
    TrainedPart,
    TransferPart,
    Workload,
)
from scaling.study.sharing import (
    check_sharing,
    most_workers_a_gpu,
    notes_on_sharing,
    way_out,
    workers_a_gpu,
)
from scaling.study.transfer import TransferCell, transfer_cells
from scaling.training.learning_rate import Rule, Schedule
from scaling.workloads.registry import create_dataset, create_model, resolve_shape

# What keys are where the study does not say; only some cells have them.
DEFAULT_BUCKET_MB = 25.0
DEFAULT_LOADER_WORKERS = 2
MIN_SECONDS_ON_GPU = 0.5
"""Unsplit iterations last so long, unless the study says otherwise: a GPU's counter of energy moves ten times
a second."""


NO_PART_OF_THE_IDENTITY = frozenset(
    {"model_label", "dataset_label", "aggregator_label", "exchanges", "lossy", "keep_checkpoints"}
)
ADDED_LATER = {
    "learning_rate_rule": "fixed",
    "base_batch": None,
    "warmup_epochs": 0.0,
    "schedule": "constant",
    "milestones": None,
    "gamma": None,
    "augmentation": "none",
    "batch_norm": "replica",
    "workers_per_gpu": None,
    "memory_format": None,
}
"""Fields with what every cell had before they were there: with that value, or none, a cell is the same as
before."""


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
    """One combination of a study. Times in seconds; labels are for people, and no part of the identity.

    Of an A/A pair, which tells the noise, one cell is measured twice, under the identities `twin` 0 and 1.
    `workers_per_gpu` is how many workers share a GPU; None where none do (`scaling.study.sharing`).
    `memory_format` is `channels_last`, or None: contiguous (`scaling.training.memory_format`).
    `augmentation` is `standard`, or, where there is none, None in a timed cell and `none` in a training.
    """

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
    bucket_mb: float | None = None
    warmup: int | None = None
    iterations: int | None = None
    precision_goal: float | None = None
    min_seconds: float | None = None
    max_seconds: float | None = None
    split_iterations: int | None = None
    input_placement: str = "device"
    loader_workers: int | None = None
    twin: int = 0
    epochs: int | None = None
    target_accuracy: float | None = None
    learning_rate_rule: Rule | None = None
    base_batch: int | None = None
    warmup_epochs: float | None = None
    schedule: Schedule | None = None
    milestones: tuple[float, ...] | None = None
    gamma: float | None = None
    augmentation: str | None = None
    batch_norm: str = "replica"
    workers_per_gpu: int | None = None
    memory_format: str | None = None
    model_parameters: dict[str, Any] = field(default_factory=dict)
    dataset_parameters: dict[str, Any] = field(default_factory=dict)
    aggregator_parameters: dict[str, Any] = field(default_factory=dict)
    model_label: str = ""
    dataset_label: str = ""
    aggregator_label: str = ""
    exchanges: bool = True
    lossy: bool = False
    keep_checkpoints: bool = False

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the identity's SHA-256."""
        identity = {
            key: value
            for key, value in asdict(self).items()
            if key not in NO_PART_OF_THE_IDENTITY
            and not (key in ADDED_LATER and value in (None, ADDED_LATER[key]))
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        return asdict(self)

    def describe(self) -> str:
        """One line for people."""
        return (
            f"{self.kind} {self.model_label} on {self.dataset_label}, {self.aggregator_label}, "
            f"{self.world_size} x {self.local_batch} on {self.device}, {self.step}{self._axes()}"
        )

    def _axes(self) -> str:
        parts = [
            f"buckets of {self.bucket_mb:g} MiB" if self.bucket_mb is not None else "",
            f"input {self.input_placement}" if self.input_placement != "device" else "",
            self.memory_format or "",
            "augmented" if self.augmentation == "standard" else "",
            f"seed {self.seed}" if self.seed else "",
            "A/A pair" if self.twin else "",
            f"{self.workers_per_gpu} workers a GPU" if self.workers_per_gpu is not None else "",
        ]
        return "".join(f", {part}" for part in parts if part)


AnyCell = Cell | TransferCell | DeviceCell


@dataclass(frozen=True)
class ResolvedStudy:
    """A study's cells on one machine.

    Attributes:
        name: the study's.
        repeats: cell -> how often it is run, each time in another launch.
        notes: what was decided for the user: the device, sizes dropped, the data set taken.
        part_of: cell id -> number of the study's part that it is of, from 0; of several the last.
    """

    name: str
    repeats: dict[str, int]
    cells: dict[str, AnyCell]
    notes: list[str]
    part_of: dict[str, int] = field(default_factory=dict)

    @property
    def trained(self) -> list[Cell]:
        """The cells that have a model."""
        return [cell for cell in self.cells.values() if isinstance(cell, Cell)]


def resolve(study: Study, machine: Machine) -> ResolvedStudy:
    """All cells of a study on that machine.

    Raises:
        StudyError: a name or parameter is unknown, a combination cannot be, or GPUs are missing.
    """
    cells: dict[str, AnyCell] = {}
    repeats: dict[str, int] = {}
    part_of: dict[str, int] = {}
    notes: list[str] = []
    labelled: dict[str, Cell] = {}
    for index, part in enumerate(study.parts):
        where = f"{study.name}: " + (f"parts.{index}: " if len(study.parts) > 1 else "")
        for cell in _part_of(part, machine, where, notes):
            _require_own_label(cell, labelled)
            cells[cell.id] = cell
            part_of[cell.id] = index
            repeats[cell.id] = max(part.repeats, repeats.get(cell.id, 0))
    if not cells:
        # A part that is dropped as a whole says so in its note.
        raise StudyError(f"{study.name}: nothing is left to measure here: {'; '.join(dict.fromkeys(notes))}")
    return ResolvedStudy(study.name, repeats, cells, list(dict.fromkeys(notes)), part_of)


def _require_own_label(cell: AnyCell, labelled: dict[str, Cell]) -> None:
    """Raises StudyError where another aggregator has the same label: their results would be in one row."""
    if not isinstance(cell, Cell):
        return
    first = labelled.setdefault(cell.aggregator_label, cell)
    same = (first.aggregator, first.aggregator_parameters) == (cell.aggregator, cell.aggregator_parameters)
    if not same:
        raise StudyError(
            f"aggregators {_label(first.aggregator, first.aggregator_parameters)} and "
            f"{_label(cell.aggregator, cell.aggregator_parameters)} have the same label "
            f"{cell.aggregator_label!r}: give each class a `name` of its own, and name each class in one way"
        )


def _part_of(part: AnyPart, machine: Machine, where: str, notes: list[str]) -> Sequence[AnyCell]:
    if isinstance(part, DevicePart):
        gpu_threads = _default_threads("cuda", machine)
        return list(device_cells(part, machine.num_gpus, machine.num_cores, gpu_threads, where, notes))
    device = _device(part, machine, notes)
    sizes = _world_sizes(part, device, machine, where, notes)
    if not sizes:
        return []
    if isinstance(part, TransferPart):
        threads = part.threads or _default_threads(device, machine)
        return list(transfer_cells(part, device, sizes, threads))
    shares = {size: workers_a_gpu(size, device, machine.num_gpus * machine.num_nodes) for size in sizes}
    notes += notes_on_sharing(part, shares, device)
    most = max(share or 1 for share in shares.values())
    threads = part.threads or _default_threads(device, machine, most)
    own = list(_part_cells(part, device, shares, threads, machine, where, notes))
    twins = _twins(own) if isinstance(part, IterationPart) and part.noise_pair else ()
    return [*own, *twins]


def _default_threads(device: str, machine: Machine, workers_per_gpu: int = 1) -> int:
    """CPU threads of a worker: one for a CPU process, else its share of three quarters of its GPU's cores.

    The rest is left to the driver, the library's own threads and the loader: sums in host memory that take
    every core wait for the one that something else runs on. The same at every world size of a part, so that
    they are compared, and, unless its workers share GPUs, whatever other sizes the study has.

    Args:
        device: "cpu" or "cuda".
        machine: where they run.
        workers_per_gpu: the most that share a GPU in the part.
    """
    if device != "cuda" or not machine.num_gpus:
        return 1
    return max(1, 3 * (machine.num_cores // machine.num_gpus) // 4 // workers_per_gpu)


def _device(part: TrainedPart | TransferPart, machine: Machine, notes: list[str]) -> str:
    if part.device != "auto":
        return part.device
    if machine.num_gpus:
        notes.append(f"device: {machine.num_gpus} GPU{'s' if machine.num_gpus > 1 else ''} found, NCCL")
        return "cuda"
    notes.append("device: no GPU found, CPU processes over Gloo")
    return "cpu"


def _world_sizes(
    part: TrainedPart | TransferPart, device: str, machine: Machine, where: str, notes: list[str]
) -> list[int]:
    if len(set(part.world_sizes)) != len(part.world_sizes):
        raise StudyError(f"{where}world_sizes {part.world_sizes} holds a size twice")
    if device == "cpu":
        return part.world_sizes
    available = machine.num_gpus * machine.num_nodes
    most = most_workers_a_gpu(part, machine.num_nodes) if available else 1
    missing = [size for size in part.world_sizes if size > available * most]
    sizes = [size for size in part.world_sizes if size <= available * most]
    each = f" for {most} workers each at most" if most > 1 else ""
    if missing and (part.missing_devices == "error" or not available):
        share = way_out(part, max(missing), machine.num_gpus, machine.num_nodes)
        raise StudyError(
            f"{where}world size {min(missing)} needs {-(-min(missing) // most)} GPUs{each} and {available} "
            f"can be used; use {share}"
            + (f"world_sizes={sizes}, missing_devices=drop, or device=cpu" if sizes else "device=cpu")
        )
    if missing:
        notes.append(f"world sizes {missing} dropped: {available} GPUs here{each}")
    return sizes


def _part_cells(
    part: TrainedPart,
    device: str,
    shares: Mapping[int, int | None],
    threads: int,
    machine: Machine,
    where: str,
    notes: list[str],
) -> Iterator[Cell]:
    aggregators = [(spec.name, create_aggregator(spec.name, spec.parameters)) for spec in part.aggregators]
    made, sizes = [aggregator for _, aggregator in aggregators], list(shares)
    check_part(part, made, sizes, device, where)
    check_sharing(part, made, [size for size in sizes if shares[size]], machine.num_gpus, where)
    peer_access = part.peer_access if device == "cuda" else [None]
    tf32 = part.tf32 if device == "cuda" else [None]
    placements = part.input_placement if isinstance(part, IterationPart) else ["device"]
    for choice in part.workloads:
        workload = _choose(choice, notes)
        check_dtypes(workload, made, where)
        batches = workload.global_batch or workload.local_batch or []
        axes = itertools.product(
            *(batches, sizes, aggregators, part.step, peer_access, tf32, part.seed, placements),
            *(part.batch_norm, memory_formats(workload, part, where)),
        )
        for batch, size, aggregator, step, peer, tf, seed, placement, batch_norm, memory_format in axes:
            local, total = _batch_sizes(part, batch, size, where)
            _check_data(workload, total, where)
            if shares[size] and peer is not peer_access[0]:
                continue  # no GPU of sharing workers accesses another, whatever may be
            for bucket_mb in _bucket_sizes(part, step, aggregator[1]):
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
                    bucket_mb=bucket_mb,
                    input_placement=placement,
                    batch_norm=batch_norm,
                    workers_per_gpu=shares[size],
                    memory_format=memory_format,
                    **_training(workload, part),
                    **_extent(workload, part, device, placement),
                )


def _bucket_sizes(part: TrainedPart, step: str, aggregator: Aggregator[Any]) -> Sequence[float | None]:
    """Those of DDP, and of captured steps that overlap if the study asks for it."""
    if step == "captured" and part.bucket_mb and aggregator.overlaps and aggregator.update_site == "replica":
        return part.bucket_mb
    if step != "overlapped" or aggregator.ddp_path() in ("bare", "optimizer"):  # without DDP
        return [None]
    return part.bucket_mb or [DEFAULT_BUCKET_MB]


def _twins(cells: Sequence[Cell]) -> Iterator[Cell]:
    """The second cells of the A/A pairs: one for each workload, step and peer access, at the largest world
    size, of the first aggregator that exchanges (of the first one, where none does)."""
    kinds: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        key = (cell.model_label, cell.dataset_label, cell.step, cell.device, cell.peer_access)
        kinds.setdefault(key, []).append(cell)
    for alike in kinds.values():
        size = max(cell.world_size for cell in alike)
        largest = [cell for cell in alike if cell.world_size == size]
        yield replace(next((cell for cell in largest if cell.exchanges), largest[0]), twin=1)


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


def _batch_sizes(part: TrainedPart, batch: int, world_size: int, where: str) -> tuple[int, int]:
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


def _training(workload: Workload, part: TrainedPart) -> dict[str, Any]:
    def own(key: str) -> Any:
        value = getattr(workload, key)
        return getattr(part, key) if value is None else value

    values = {key: own(key) for key in ("learning_rate", "momentum", "weight_decay", "nesterov")}
    if values["nesterov"] and not values["momentum"]:
        raise StudyError("nesterov: true needs a momentum above 0")
    return values


def _extent(workload: Workload, part: TrainedPart, device: str, placement: str) -> dict[str, Any]:
    if isinstance(part, IterationPart):
        names = ("warmup", "iterations", "precision_goal", "max_seconds", "split_iterations")
        min_seconds = part.min_seconds
        if min_seconds is None:
            min_seconds = MIN_SECONDS_ON_GPU if device == "cuda" else 0.0
        loader_workers = part.loader_workers or DEFAULT_LOADER_WORKERS
        return {
            **{name: getattr(part, name) for name in names},
            "min_seconds": min_seconds,
            "loader_workers": loader_workers if placement == "loader" else None,
            "augmentation": timed_augmentation(workload, part),
        }
    return {**recipe_of(workload, part), "keep_checkpoints": part.keep_checkpoints}
