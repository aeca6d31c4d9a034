"""Reads a results folder once for the commands that answer questions about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scaling.analysis.samples import CellResult, read_cells
from scaling.analysis.summary import build_table, study_name
from scaling.store import ResultsFolder


@dataclass(frozen=True)
class MeasuredStudy:
    """The contents of a folder.

    Attributes:
        name: the study's.
        table: the summary.
        cells: the samples it was made of.
        num_cores: CPU cores of a node; None where the environment does not say.
    """

    name: str
    table: pd.DataFrame
    cells: list[CellResult]
    num_cores: int | None


def read_study(folder: ResultsFolder) -> MeasuredStudy:
    """Reads a folder, finished or not.

    Raises:
        StoreError: it is none, or samples of a done run are missing or damaged.
    """
    name, cells = study_name(folder.require()), read_cells(folder)
    return MeasuredStudy(name, build_table(name, cells), cells, num_cores(environment_of(folder)))


def environment_of(folder: ResultsFolder) -> dict[str, Any] | None:
    """The recorded environment; None if the folder has none.

    Raises:
        StoreError: it is damaged.
    """
    return folder.environment() if (folder.path / "environment.json").exists() else None


def num_cores(environment: Mapping[str, Any] | None) -> int | None:
    """The CPU cores of a node that workers could use; None if not recorded."""
    cpu = (environment or {}).get("cpu")
    cores = cpu.get("usable_cores", cpu.get("cores")) if isinstance(cpu, Mapping) else None
    return cores if isinstance(cores, int) else None


def notes_of(study: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """A study's notes, and the lines that `scaling attach` ended with, which are among its notes; none for
    other studies.
    """
    notes = [str(note) for note in study.get("notes") or []]
    is_attached = any(part.get("kind") == "attached" for part in study.get("parts") or [])
    return (notes[:1], notes[1:]) if is_attached else (notes, [])
