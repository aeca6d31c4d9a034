"""A cell: one combination of a study, with an identity. Data alone: `scaling.study.resolve` makes cells.

A cell's id is a hash of everything that decides its result. Launcher, host, job and time are recorded with a
run, but are no part of it: the same cell measured under another launcher is the same cell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

from scaling.axes import AXES, DEFAULTS, Role
from scaling.training.learning_rate import Rule, Schedule

TIMING_BATCHES = 4  # different global batches that timed iterations take in turn

NO_PART_OF_THE_IDENTITY = frozenset(
    {"model_label", "dataset_label", "aggregator_label", "exchanges", "lossy", "keep_checkpoints"}
)


@dataclass(frozen=True)
class AvailableMachine:
    """What a study is resolved against."""

    num_gpus: int  # GPUs that torch can use here; on several nodes, of one node
    num_cores: int  # CPU cores that this process may use
    num_nodes: int = 1  # nodes of the launch


class AnyCell(Protocol):
    @property
    def kind(self) -> str: ...  # a name of `scaling.study.kinds.KINDS`
    @property
    def world_size(self) -> int: ...  # world_size, threads: of its launch
    @property
    def device(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def peer_access(self) -> bool | None: ...  # whether GPUs may access each other; None: there are none
    @property
    def tf32(self) -> bool | None: ...  # whether products may be rounded so; None: there are no GPUs
    @property
    def workers_per_gpu(self) -> int | None: ...  # that share a GPU; None where none do
    @property
    def id(self) -> str: ...  # twelve hexadecimal digits, of all that decides its result
    def to_dict(self) -> dict[str, Any]: ...  # all fields, as JSON has them
    def describe(self) -> str: ...  # one line for people


def digest(identity: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits of an identity's SHA-256."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class CellWithoutModel:
    """What the cells of kinds without a model have in common; a subclass is a dataclass with a `kind`."""

    kind: ClassVar[str]
    tf32: ClassVar[bool | None] = None
    workers_per_gpu: ClassVar[int | None] = None
    not_in_identity: ClassVar[tuple[str, ...]] = ()

    @property
    def id(self) -> str:
        """Of all fields but `not_in_identity`."""
        return digest(
            {key: value for key, value in self.to_dict().items() if key not in self.not_in_identity}
        )

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


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
    bucket_mb: float | None = None
    warmup: int | None = None
    iterations: int | None = None
    precision_goal: float | None = None
    min_seconds: float | None = None
    max_seconds: float | None = None
    profiled_iterations: int | None = None
    input_placement: str = DEFAULTS["input_placement"]
    loader_workers: int | None = None
    aa_replicate: int = DEFAULTS["aa_replicate"]  # 0; 1 of the second of an A/A pair, which tells the noise
    epochs: int | None = None
    target_accuracy: float | None = None
    target_bits_per_byte: float | None = None
    learning_rate_rule: Rule | None = None
    base_batch: int | None = None
    warmup_epochs: float | None = None
    schedule: Schedule | None = None
    milestones: tuple[float, ...] | None = None
    gamma: float | None = None
    augmentation: str | None = None  # standard; else None in a timed cell and none in a training
    batch_norm: str = DEFAULTS["batch_norm"]
    workers_per_gpu: int | None = None  # that share a GPU; None where none do (`scaling.study.places`)
    memory_format: str | None = None  # channels_last; None: contiguous (`scaling.training.compute`)
    precision: str | None = None  # bf16 or fp16, computed by autocast; None: as `tf32` says
    wire: str | None = None  # bf16 or fp16; None: gradients travel as they are
    optimizer: str = DEFAULTS["optimizer"]
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    accumulate: int = DEFAULTS["accumulate"]
    clip_norm: float | None = None
    clip_gradient: str | None = None
    checkpoint_activations: bool = DEFAULTS["checkpoint_activations"]
    compile: bool = DEFAULTS["compile"]
    first_bucket_mb: float | None = None
    bucket_sizes_mb: tuple[float, ...] | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None
    sync_every: int = DEFAULTS["sync_every"]
    outer_update: str | None = None  # of blocks of `sync_every` steps (`scaling.training.outer_updates`)
    outer_momentum: float | None = None
    outer_learning_rate: float | None = None
    model_parameters: dict[str, Any] = field(default_factory=dict)
    dataset_parameters: dict[str, Any] = field(default_factory=dict)
    aggregator_parameters: dict[str, Any] = field(default_factory=dict)
    model_label: str = ""
    dataset_label: str = ""
    aggregator_label: str = ""
    exchanges: bool = True
    lossy: bool = False
    keep_checkpoints: bool = False

    @cached_property
    def id(self) -> str:
        axes = {axis.name: axis for axis in AXES}
        names = {axis.name: axis.was for axis in AXES if axis.was}
        names["profiled_iterations"] = "split_iterations"  # what it was called when identities began
        identity = {
            names.get(key, key): value
            for key, value in vars(self).items()
            if key not in NO_PART_OF_THE_IDENTITY and (key not in axes or axes[key].is_in_identity(value))
        }
        return digest(identity)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        values = {axis: getattr(self, axis.name) for axis in AXES if axis.role & Role.DESCRIBED}
        described = "".join(
            f", {axis.text(axis.show(value))}"
            for axis, value in values.items()
            if value and value != axis.default
        )
        described += ", without peer access" if self.peer_access is False else ""
        return (
            f"{self.kind} {self.model_label} on {self.dataset_label}, {self.aggregator_label}, "
            f"{self.world_size} x {self.local_batch} on {self.device}, {self.step}{described}"
        )


@dataclass(frozen=True)
class ResolvedStudy:
    name: str
    repeats: dict[str, int]  # cell -> how often it is run, each time in another launch
    cells: dict[str, AnyCell]
    notes: list[str]  # what was decided for the user: the device, sizes dropped, the data set taken
    part_of: dict[str, int] = field(default_factory=dict)  # cell id -> its part's number, the last one

    @property
    def trained(self) -> list[Cell]:
        return [cell for cell in self.cells.values() if isinstance(cell, Cell)]
