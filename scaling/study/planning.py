"""What a study would do, for `scaling plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from scaling.files.texts import folded
from scaling.store import ResultsFolder
from scaling.study.cell import Cell, ResolvedStudy
from scaling.study.kinds import KINDS
from scaling.study.kinds.base import Kind, ModelSize
from scaling.study.launches import Launch, estimate_seconds, remaining_launches
from scaling.study.rank.process_state import kept_state
from scaling.training.compute import model_flops
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from topologies.detect import num_usable_cores

BATCH = 2  # with which operations are counted


def plan_as_dict(study: ResolvedStudy, path: Path) -> dict[str, Any]:
    """Cells, launches that are left, and the estimate, as JSON has them."""
    launches = remaining_launches(ResultsFolder(path), study)
    sizes = model_sizes(study)
    return {
        "study": study.name,
        "notes": study.notes,
        "cells": [
            {
                "id": cell.id,
                "repeats": study.repeats[cell.id],
                "num_parameters": sizes[cell.id].num_parameters if cell.id in sizes else None,
                **cell.to_dict(),
            }
            for cell in study.cells.values()
        ],
        "launches": [_launch(launch, sizes) for launch in launches],
        "estimated_seconds": round(
            sum(estimate_seconds(launch, sizes, num_usable_cores()) for launch in launches)
        ),
    }


def describe_plan(study: ResolvedStudy, path: Path) -> str:
    plan = plan_as_dict(study, path)
    notes = [folded("", note, indent=2) for note in study.notes]
    lines = [f"study {study.name}", *notes, "", f"{len(study.cells)} cells:"]
    for cell in study.cells.values():
        times = study.repeats[cell.id]
        how_often = f", {times} times" if times > 1 else ""
        lines.append(folded(f"  {cell.id}  ", f"{cell.describe()}{how_often}"))
    lines += ["", f"{len(plan['launches'])} launches left:"]
    for launch in plan["launches"]:
        lines.append(
            f"  repeat {launch['repeat']}: {launch['world_size']} x {launch['threads']} threads on "
            f"{launch['device']}, {launch['num_cells']} cells, about {launch['estimated_seconds']} s"
        )
    minutes = plan["estimated_seconds"] / 60
    sources = {KINDS[cell.kind].estimated_from for cell in study.cells.values()}
    how = sources.pop() if len(sources) == 1 else Kind.estimated_from
    lines += ["", f"estimate: {minutes:.1f} minutes (rough: {how}, not measured here)"]
    return "\n".join(lines)


def _launch(launch: Launch, sizes: dict[str, ModelSize]) -> dict[str, Any]:
    settings = launch.settings
    return {
        "repeat": launch.repeat,
        "world_size": settings.world_size,
        "device": settings.device,
        "threads": settings.threads,
        "peer_access": settings.peer_access,
        "variables": dict(settings.variables),
        "num_cells": len(launch.cells),
        "cells": [cell.id for cell in launch.cells],
        "estimated_seconds": round(estimate_seconds(launch, sizes, num_usable_cores())),
    }


def model_sizes(study: ResolvedStudy) -> dict[str, ModelSize]:
    def size_of(cell: Cell) -> ModelSize:
        model = create_model(cell.model, cell.model_parameters)
        shape = resolve_shape(model, create_dataset(cell.dataset, cell.dataset_parameters))
        with kept_state(), torch.device("meta"):
            module = build_module(model, shape)
            dtype = torch.int64 if shape.tokens else torch.float32
            inputs = torch.empty((BATCH, *shape.input_shape), dtype=dtype)
            targets = torch.zeros(inputs.shape if shape.tokens else (BATCH,), dtype=torch.int64)
        trained = [parameter.numel() for parameter in module.parameters() if parameter.requires_grad]
        is_dense = all(isinstance(one, nn.Linear) for one in module.modules() if one._parameters)
        # Counting imports torch's compiler, some seconds; of dense layers the number of weights says it.
        flops = None if is_dense else model_flops(module, model.loss, inputs, targets)
        return ModelSize(sum(trained), len(trained), flops and flops / BATCH)

    known: dict[str, ModelSize] = {}
    sizes = {}
    for cell in study.trained:
        key = f"{cell.model} {cell.model_parameters} {cell.dataset_label}"
        if key not in known:
            known[key] = size_of(cell)
        sizes[cell.id] = known[key]
    return sizes
