"""A study resolved for one machine: the cells of its parts, one a combination; and the job that it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaling.errors import StudyError
from scaling.study.cell import AnyCell, AvailableMachine, Cell, ResolvedStudy
from scaling.study.kinds import KINDS
from scaling.study.parts import AnyPart, Workload
from scaling.study.places import sizes_of
from scaling.study.schema import Study
from scaling.study.workloads import label

MOST = {"cells": 20_000, "runs": 200_000}  # of a study: runs of a second each would take two days


def resolve(study: Study, machine: AvailableMachine) -> ResolvedStudy:
    """All cells of a study on that machine. Raises StudyError: one cannot be, or GPUs are missing."""
    cells: dict[str, AnyCell] = {}
    repeats: dict[str, int] = {}
    part_of: dict[str, int] = {}
    notes: list[str] = []
    labelled: dict[str, Cell] = {}
    for index, part in enumerate(study.parts):
        _require_few(num_combinations(part), _where(study, index))
    _require_few(sum(map(num_combinations, study.parts)), f"{study.name}: ")
    for index, part in enumerate(study.parts):
        try:
            for cell in KINDS[part.kind].cells(part, machine, notes):
                _require_own_label(cell, labelled)
                cell_id = cell.id
                cells[cell_id] = cell
                part_of[cell_id] = index
                repeats[cell_id] = max(part.repeats, repeats.get(cell_id, 0))
        except StudyError as error:
            raise StudyError(f"{_where(study, index)}{error}") from error
    _require_few(sum(repeats.values()), f"{study.name}: ", "runs")
    if not cells:
        # A part that is dropped as a whole says so in its note.
        raise StudyError(f"{study.name}: nothing is left to measure here: {'; '.join(dict.fromkeys(notes))}")
    return ResolvedStudy(study.name, repeats, cells, list(dict.fromkeys(notes)), part_of)


def _where(study: Study, index: int) -> str:
    return f"{study.name}: " + (f"parts.{index}: " if len(study.parts) > 1 else "")


def num_combinations(part: AnyPart) -> int:
    """The most cells that a part may have: the product of the lengths of its lists."""
    names = type(part).model_fields.keys() - {"workloads", "milestones"}  # in which its cells do not differ
    values = {name: getattr(part, name) for name in names}
    axes = math.prod(len(value) for value in values.values() if isinstance(value, list))
    workloads = getattr(part, "workloads", None)
    if workloads is None:
        return axes
    chosen = [max(getattr(one, "first_available", [one]), key=_num_batches) for one in workloads]
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


@dataclass(frozen=True)
class JobShape:
    world_sizes: list[int]  # what it will run, ascending
    nodes: int
    workers_per_node: int  # at most, on each
    gpus_per_node: int  # 0 for a study on CPUs


def job_shape(study: Study, nodes: int | None = None, gpus_per_node: int | None = None) -> JobShape:
    """The shape of a job on `nodes` with `gpus_per_node` (None: as few as do) for the sizes that may not be
    dropped. StudyError: GPUs were not asked for, or no size is left."""
    num_gpus = (nodes or 1) * (gpus_per_node or 0)
    wanted = [(part, sizes_of(part, num_gpus)) for part in study.parts]
    largest = max(size for _, counts in wanted for size in counts)
    on_cpus = all(part.device == "cpu" for part in study.parts)
    per_node = gpus_per_node or -(-largest // (nodes or 1))
    gpus = gpus_per_node if gpus_per_node is not None else (0 if on_cpus else per_node)
    nodes = nodes or -(-largest // per_node)
    if not gpus and any(part.device == "cuda" for part in study.parts):
        raise StudyError(f"study {study.name!r} has device: cuda; give --gpus-per-node, or use device=cpu")
    sizes = {
        size
        for part, counts in wanted
        for size in counts
        if size <= nodes * per_node
        or not (part.missing_devices == "drop" and part.device != "cpu" and gpus > 0)
    }
    if not sizes:
        raise StudyError(f"no world size of study {study.name!r} fits on {nodes} x {per_node} GPUs")
    return JobShape(sorted(sizes), nodes, per_node, gpus)
