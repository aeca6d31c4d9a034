"""A study resolved for one machine: its cells, one a combination, each with an identity.

A cell's id is a hash of everything that decides its result. Launcher, host, job and time are recorded with a
run, but are no part of it: the same cell measured under another launcher is the same cell.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from scaling.axes import AXES, Role
from scaling.errors import StudyError
from scaling.study.kinds import KINDS
from scaling.study.kinds.base import AnyCell, AvailableMachine, digest
from scaling.study.parts import AnyPart, Workload
from scaling.study.schema import Study
from scaling.study.workloads import label
from scaling.training.learning_rate import Rule, Schedule

__all__ = ["AnyCell", "AvailableMachine", "Cell", "ResolvedStudy", "resolve"]

MOST = {"cells": 20_000, "runs": 200_000}
"""Of a study. A run takes a second at least: these would take two days."""

NO_AXES = frozenset({"workloads", "milestones"})
"""Lists of a part that its cells do not differ in."""

NO_PART_OF_THE_IDENTITY = frozenset(
    {"model_label", "dataset_label", "aggregator_label", "exchanges", "lossy", "keep_checkpoints"}
)


@dataclass(frozen=True)
class Cell:
    """One combination of a study. Times in seconds; labels are for people, and no part of the identity.

    Of an A/A pair, which tells the noise, one cell is measured twice: with `aa_replicate` 0 and 1.
    `workers_per_gpu` is how many workers share a GPU; None where none do (`scaling.study.sharing`).
    `memory_format` is `channels_last`, or None: contiguous (`scaling.training.memory_format`).
    `precision` is `bf16` or `fp16`, computed by autocast, or None: as `tf32` says.
    `wire` is `bf16` or `fp16`, or None: gradients travel as they are.
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
    profiled_iterations: int | None = None
    input_placement: str = "device"
    loader_workers: int | None = None
    aa_replicate: int = 0
    epochs: int | None = None
    target_accuracy: float | None = None
    target_bits_per_byte: float | None = None
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
    precision: str | None = None
    wire: str | None = None
    optimizer: str = "sgd"
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    clip_gradient: str | None = None
    checkpoint_activations: bool = False
    compile: bool = False
    first_bucket_mb: float | None = None
    bucket_sizes_mb: tuple[float, ...] | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None
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
        added = {axis.name: axis.default for axis in AXES if axis.since > 1}
        names = {axis.name: axis.was for axis in AXES if axis.was}
        names["profiled_iterations"] = "split_iterations"  # what it was called when identities began
        identity = {
            names.get(key, key): value
            for key, value in asdict(self).items()
            if key not in NO_PART_OF_THE_IDENTITY and not (key in added and value in (None, added[key]))
        }
        return digest(identity)

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        return asdict(self)

    def describe(self) -> str:
        """One line for people."""
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


def resolve(study: Study, machine: AvailableMachine) -> ResolvedStudy:
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
        _require_few(num_combinations(part), _where(study, index))
    _require_few(sum(map(num_combinations, study.parts)), f"{study.name}: ")
    for index, part in enumerate(study.parts):
        where = _where(study, index)
        try:
            for cell in KINDS[part.kind].cells(part, machine, where, notes):
                _require_own_label(cell, labelled)
                cells[cell.id] = cell
                part_of[cell.id] = index
                repeats[cell.id] = max(part.repeats, repeats.get(cell.id, 0))
        except StudyError as error:
            message = str(error)
            raise StudyError(message if message.startswith(where) else f"{where}{message}") from error
    _require_few(sum(repeats.values()), f"{study.name}: ", "runs")
    if not cells:
        # A part that is dropped as a whole says so in its note.
        raise StudyError(f"{study.name}: nothing is left to measure here: {'; '.join(dict.fromkeys(notes))}")
    return ResolvedStudy(study.name, repeats, cells, list(dict.fromkeys(notes)), part_of)


def _where(study: Study, index: int) -> str:
    return f"{study.name}: " + (f"parts.{index}: " if len(study.parts) > 1 else "")


def num_combinations(part: AnyPart) -> int:
    """The most cells that a part may have: the product of the lengths of its lists."""
    values = {name: getattr(part, name) for name in type(part).model_fields if name not in NO_AXES}
    axes = math.prod(len(value) for value in values.values() if isinstance(value, list))
    workloads = getattr(part, "workloads", None)
    if workloads is None:
        return axes
    chosen = [
        max(getattr(workload, "first_available", [workload]), key=_num_batches) for workload in workloads
    ]
    return axes * sum(map(_num_batches, chosen))


def _num_batches(workload: Workload) -> int:
    return len(workload.global_batch or workload.local_batch or [1])


def _require_few(number: int, where: str, what: str = "cells") -> None:
    """Raises StudyError before so many are made that nobody could wait for them."""
    if number > MOST[what]:
        raise StudyError(
            f"{where}it would have {number} {what}; at most {MOST[what]} are planned: leave some values out, "
            "or make several studies of it"
        )


def _require_own_label(cell: AnyCell, labelled: dict[str, Cell]) -> None:
    """Raises StudyError where another aggregator has the same label: their results would be in one row."""
    if not isinstance(cell, Cell):
        return
    first = labelled.setdefault(cell.aggregator_label, cell)
    same = (first.aggregator, first.aggregator_parameters) == (cell.aggregator, cell.aggregator_parameters)
    if not same:
        raise StudyError(
            f"aggregators {label(first.aggregator, first.aggregator_parameters)} and "
            f"{label(cell.aggregator, cell.aggregator_parameters)} have the same label "
            f"{cell.aggregator_label!r}: give each class a `name` of its own, and name each class in one way"
        )
