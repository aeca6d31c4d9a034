"""Makes a results folder ready for a study, or checks that the one that is there belongs to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from scaling.errors import StoreError, StudyError
from scaling.measure.environment import collect, require_same
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine, ResolvedStudy
from scaling.study.schema import Study
from scaling.workloads.registry import create_dataset
from topologies.detect import detect, num_usable_cores


def this_machine(num_nodes: int = 1) -> AvailableMachine:
    return AvailableMachine(torch.cuda.device_count(), num_usable_cores(), num_nodes)


def prepare(folder: ResultsFolder, study: Study, resolved: ResolvedStudy) -> None:
    """Writes study, environment, topology and planned runs, and fetches data sets, once; or checks that a
    study, perhaps with other cells, goes on in its own folder, for one job at a time. Raises StudyError:
    variables contradict it; StoreError: the folder is of another study or environment; DataError."""
    check_settings(resolved, os.environ)
    # In this order: another job may write the study between the two looks.
    if folder.holds_foreign_files() and not folder.exists():
        raise StoreError(f"{folder.path} is not empty and holds no study; use another --out")
    with folder.lock(".prepare", wait=True):
        _prepare(folder, study, resolved)


def _prepare(folder: ResultsFolder, study: Study, resolved: ResolvedStudy) -> None:
    environment = collect(os.environ)
    description = {"schema_version": 1, **study.model_dump(mode="json"), "notes": resolved.notes}
    recorded: set[str] = set()
    # Which cell of a study has a second one, to make an A/A pair, changes when the study grows.
    cells = {key for key, cell in resolved.cells.items() if not cell.to_dict().get("aa_replicate")}
    if folder.exists():
        recorded = {record.cell_id for record in folder.runs() if not record.cell.get("aa_replicate")}
        if not recorded <= cells and not cells <= recorded:
            raise StoreError(_other_study(folder, description))
        require_same(folder.environment(), environment, folder.path)
        over = {(run.cell_id, run.repeat) for run in folder.runs() if run.state in ("done", "failed")}
        if any((key, one) not in over for key in resolved.cells for one in range(resolved.repeats[key])):
            folder.refuse_archived()
    datasets = {cell.dataset_label: cell for cell in resolved.trained}
    for dataset in datasets.values():
        create_dataset(dataset.dataset, dataset.dataset_parameters).fetch()
    if not folder.exists():
        folder.write_environment(environment)
        folder.write_topology(detect())
    if not folder.exists() or cells >= recorded:
        folder.write_study(description)
    for cell_id, cell in resolved.cells.items():
        for repeat in range(resolved.repeats[cell_id]):
            folder.plan_run(cell_id, repeat, cell.to_dict())


def check_settings(resolved: ResolvedStudy, environ: Mapping[str, str]) -> None:
    """Refuses environment variables that contradict the cells. Raises StudyError: naming the variable."""

    def is_set(name: str) -> bool:
        return environ.get(name, "0") not in ("", "0")

    if is_set("NCCL_P2P_DISABLE") and any(cell.peer_access for cell in resolved.cells.values()):
        raise StudyError(
            "NCCL_P2P_DISABLE is set, but the study has cells with peer_access: true; "
            "unset it, or use peer_access=false"
        )
    for name in ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"):
        if is_set(name) and any(cell.tf32 is False for cell in resolved.cells.values()):
            raise StudyError(
                f"{name} is set, but the study has cells with tf32: false; unset it, or use tf32=true"
            )


def _other_study(folder: ResultsFolder, description: Mapping[str, Any]) -> str:
    before, now = folder.study(), description
    difference = _first_difference(before, now, "")
    what = f"it was resolved as {before.get('notes')}, and is now resolved as {now.get('notes')}"
    if difference is not None:
        key, there, here = difference
        what = f"{key} is {_said(there)} there and {_said(here)} here"
    return (
        f"{folder.path} holds another study: {what}; use another --out, or the same settings to go on with it"
    )


def _said(value: Any) -> str:
    return "not set" if value is None else repr(value)


def _first_difference(before: Any, now: Any, key: str) -> tuple[str, Any, Any] | None:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        pairs = [(name, before.get(name), now.get(name)) for name in {**before, **now} if name != "notes"]
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = [(str(index), a, b) for index, (a, b) in enumerate(zip(before, now, strict=True))]
    else:
        return None if before == now else (key, before, now)
    for name, a, b in pairs:
        difference = _first_difference(a, b, f"{key}.{name}" if key else name)
        if difference:
            return difference
    return None
