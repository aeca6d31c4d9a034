"""A study resolved for one machine: the cells of its parts, one a combination."""

from __future__ import annotations

import math

from scaling.errors import StudyError
from scaling.study.cell import AnyCell, AvailableMachine, Cell, ResolvedStudy
from scaling.study.kinds import KINDS
from scaling.study.parts import AnyPart, Workload
from scaling.study.schema import Study
from scaling.study.workloads import label

MOST = {"cells": 20_000, "runs": 200_000}
"""Of a study. A run takes a second at least: these would take two days."""

NO_AXES = frozenset({"workloads", "milestones"})
"""Lists of a part that its cells do not differ in."""


def resolve(study: Study, machine: AvailableMachine) -> ResolvedStudy:
    """All cells of a study on that machine. Raises StudyError: a name or parameter is unknown, a combination
    cannot be, or GPUs are missing."""
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
                cell_id = cell.id
                cells[cell_id] = cell
                part_of[cell_id] = index
                repeats[cell_id] = max(part.repeats, repeats.get(cell_id, 0))
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
