"""A results folder read once, for the verbs that answer questions about it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from scaling.analysis.samples import CellResult, read_cells
from scaling.analysis.summary import build_table, study_name
from scaling.store import ResultsFolder


@dataclass(frozen=True)
class Study:
    """What a folder holds.

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


def read_study(folder: ResultsFolder) -> Study:
    """Reads a folder, finished or not.

    Raises:
        StoreError: it is none, or samples of a done run are missing or damaged.
    """
    name, cells = study_name(folder.require()), read_cells(folder)
    return Study(name, build_table(name, cells), cells, num_cores(folder))


def num_cores(folder: ResultsFolder) -> int | None:
    """CPU cores of a node, as the environment tells them."""
    if not (folder.path / "environment.json").exists():
        return None
    usable_cores = (folder.environment().get("cpu") or {}).get("usable_cores")
    return int(usable_cores) if usable_cores else None
