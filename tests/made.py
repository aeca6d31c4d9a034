"""What tests of all folders are made of."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scaling.errors import StudyError
from scaling.study.cell import AvailableMachine, Cell, ResolvedStudy
from scaling.study.resolve import resolve
from scaling.study.schema import Study, parse_study

CPU = AvailableMachine(num_gpus=0, num_cores=8)
GPUS = AvailableMachine(num_gpus=4, num_cores=64)
WORKLOAD = {"model": "mlp", "dataset": "digits", "global_batch": 64}
ABSENT = object()


def loaded(path: Path) -> ModuleType:
    """A script as a module, which is not in the table of those that are imported."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look there
        spec.loader.exec_module(module)
    return module


def contents(folder: Path) -> dict[str, bytes]:
    """What each file of a folder holds, without links and locks that say nothing."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    held = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {name: held[name] for name in held if held[name] or not Path(name).name.startswith(".lock")}


def cell_of(**changes: Any) -> Cell:
    """A timed cell of two CPU ranks, or another one."""
    values = {
        **{"kind": "iteration", "model": "mlp", "dataset": "digits", "aggregator": "ring", "step": "eager"},
        **{"device": "cpu", "scaling": "strong", "world_size": 2, "local_batch": 32, "global_batch": 64},
        **{"threads": 1, "peer_access": None, "tf32": None, "seed": 0, "nesterov": False},
        **{"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.0},
    }
    return Cell(**{**values, **changes})


def made_study(**changes: Any) -> Study:
    """A study of one part on 1 and 2 workers, with other keys, or without one that is ABSENT."""
    values = {"name": "by-hand", "workloads": [WORKLOAD], "aggregators": ["ring"], "world_sizes": [1, 2]}
    raw = {**values, "scaling": "strong", **changes}
    return parse_study({key: value for key, value in raw.items() if value is not ABSENT}, "my.yaml")


def resolved_study(machine: AvailableMachine = CPU, **changes: Any) -> ResolvedStudy:
    """That study on a machine."""
    return resolve(made_study(**changes), machine)


def made_cells(machine: AvailableMachine = CPU, **changes: Any) -> list[Cell]:
    """Its cells with a model, without the second ones of A/A pairs."""
    return [cell for cell in resolved_study(machine, **changes).trained if not cell.aa_replicate]


def problem_of(machine: AvailableMachine = CPU, **changes: Any) -> str:
    """What is said where it cannot be."""
    with pytest.raises(StudyError) as caught:
        resolved_study(machine, **changes)
    return str(caught.value)
