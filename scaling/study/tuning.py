"""The two studies of `scaling tune`: one that shows where the buckets' times go, one that measures the best.

The probe has each gradient in a bucket of its own, and DDP's own buckets: profiled iterations tell when
gradients are ready and what exchanges take. Of the best partitions by that (`scaling.prediction.buckets`) the
second study measures the best few, DDP's own and the step without exchange, in the same launches; then it
goes on with the fastest and DDP's own alone, compared over all their launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from scaling.aggregators.registry import create as create_aggregator
from scaling.axes import AXES, BYTE_MB, key_of
from scaling.bucket import DDP_BUCKETS_MB
from scaling.errors import StudyError
from scaling.study.cell import Cell, ResolvedStudy
from scaling.study.kinds.iteration import IterationPart
from scaling.study.pruning import part_of_cells
from scaling.study.schema import Study
from scaling.study.variants import wraps_in_ddp

PROBE_ITERATIONS = 10  # unprofiled ones of the probe, which are not used
SCREENING_LAUNCHES, DECIDING_LAUNCHES = 2, 4  # at least (`benchmarks/tune_decisions.py`)

CONTROL = "none"


def cells_to_tune(study: Study, resolved: ResolvedStudy) -> list[Cell]:
    """One cell for each setting with DDP's buckets, whatever their size. Raises StudyError: it has none."""
    cells: dict[Any, Cell] = {}
    of_buckets = ("bucket_mb", "first_bucket_mb", "bucket_sizes_mb")
    axes = [axis for axis in AXES if axis.key and axis.name not in of_buckets]
    for cell in resolved.trained:
        aggregator = create_aggregator(cell.aggregator, cell.aggregator_parameters)
        is_timed = isinstance(study.parts[resolved.part_of[cell.id]], IterationPart)
        exchanges = cell.world_size > 1 and cell.exchanges and not cell.find_unused_parameters
        if is_timed and exchanges and wraps_in_ddp(cell.step, aggregator):
            cells.setdefault(key_of(axes, {**vars(cell), "aa_replicate": 0}), cell)
    if not cells:
        raise StudyError(
            f"{study.name} has no cell whose gradients DDP exchanges in buckets: add step=overlapped and an "
            "aggregator that it takes, such as all_reduce, with world sizes above 1"
        )
    return list(cells.values())


def probe_study(study: Study, resolved: ResolvedStudy, cells: Sequence[Cell]) -> Study:
    """The study that shows where the time goes: a part for each cell."""
    sizes = [BYTE_MB, list(DDP_BUCKETS_MB)]
    changed = {"bucket_mb": sizes, "iterations": PROBE_ITERATIONS, "precision_goal": None, "min_seconds": 0.0}
    parts = tuple(_part(study, resolved, cell, 1, changed) for cell in cells)
    return study.model_copy(update={"name": f"{study.name}-probe", "parts": parts})


def measured_study(
    study: Study,
    resolved: ResolvedStudy,
    cells: Sequence[Cell],
    sizes_mb: Sequence[Sequence[Sequence[float]]],
) -> Study:
    """The study that screens: of each cell DDP's own buckets, the candidates (sizes), and no exchange."""
    parts = []
    for cell, candidates in zip(cells, sizes_mb, strict=True):
        part = _of_sizes(study, resolved, cell, SCREENING_LAUNCHES, candidates)
        arms = [*part.model_dump()["aggregators"], CONTROL]
        parts.append(IterationPart.model_validate({**part.model_dump(), "aggregators": arms}))
    return study.model_copy(update={"name": f"{study.name}-buckets", "parts": tuple(parts)})


def deciding_study(
    screening: Study,
    study: Study,
    resolved: ResolvedStudy,
    cells: Sequence[Cell],
    fastest: Sequence[Sequence[float] | None],
) -> Study:
    """The screening study with more launches of DDP's own buckets and each cell's fastest, if it has one."""
    parts = [
        _of_sizes(study, resolved, cell, max(DECIDING_LAUNCHES, resolved.repeats[cell.id]), [sizes])
        for cell, sizes in zip(cells, fastest, strict=True)
        if sizes is not None
    ]
    return screening.model_copy(update={"parts": (*screening.parts, *parts)})


def _of_sizes(
    study: Study, resolved: ResolvedStudy, cell: Cell, repeats: int, sizes_mb: Sequence[Sequence[float]]
) -> IterationPart:
    """A part of the cell with DDP's own buckets and with these."""
    buckets = [list(sizes) for sizes in (DDP_BUCKETS_MB, *sizes_mb)]
    return _part(study, resolved, cell, repeats, {"bucket_mb": buckets})


def _part(
    study: Study, resolved: ResolvedStudy, cell: Cell, repeats: int, changed: dict[str, Any]
) -> IterationPart:
    whole = study.parts[resolved.part_of[cell.id]]
    assert isinstance(whole, IterationPart)
    part = part_of_cells(whole, [cell], repeats).model_dump()
    return IterationPart.model_validate({**part, "first_bucket_mb": None, **changed})


def text_of(study: Study) -> str:
    return yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False)
