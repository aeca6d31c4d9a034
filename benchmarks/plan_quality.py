"""Compares the estimates of `scaling plan` with the times that the cells of results/reference took.

    python benchmarks/plan_quality.py > benchmarks/results/plan-quality.csv

A row per folder: finished runs, their seconds (without the start of launches), estimated seconds, the ratio.
Runs of older code, which did not check its exchanges, are estimated without these checks. Left out are
trainings that were resumed, since their records have the last part only, and folders whose study cannot be
resolved any more.
"""

from __future__ import annotations

import csv
import sys
from datetime import datetime
from pathlib import Path

from scaling.errors import StudyError
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine, Cell
from scaling.study.kinds import KINDS
from scaling.study.kinds.base import check_seconds
from scaling.study.overrides import load_study
from scaling.study.planning import model_sizes
from scaling.study.resolve import resolve

REFERENCE = Path(__file__).parents[1] / "results" / "reference"


def seconds_of(path: Path) -> tuple[int, float, float]:
    """Finished runs of a folder, measured and estimated seconds.

    Raises:
        StudyError: its study is refused today.
    """
    folder = ResultsFolder(path)
    environment = folder.environment()
    num_cores = int(environment["cpu"]["usable_cores"])
    machine = AvailableMachine(num_gpus=len(environment["gpus"] or ()), num_cores=num_cores)
    study = resolve(load_study(str(path / "study.yaml"), []), machine)
    sizes = model_sizes(study)
    number, measured_s, estimated_s = 0, 0.0, 0.0
    for run in folder.runs():
        cell = study.cells.get(run.cell_id)
        was_resumed = any("went on from there" in note for note in run.notes)
        if run.state != "done" or cell is None or was_resumed:
            continue
        start, end = (datetime.fromisoformat(run.launch[name]) for name in ("started_at", "finished_at"))
        number += 1
        measured_s += (end - start).total_seconds()
        size = sizes.get(cell.id)
        estimated_s += KINDS[cell.kind].seconds(cell, num_cores, size)
        if isinstance(cell, Cell) and size is not None and not run.summary.get("checks"):
            estimated_s -= check_seconds(cell, size)
    return number, measured_s, estimated_s


def main() -> int:
    """The command."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["folder", "runs", "measured_s", "estimated_s", "ratio"])
    for path in sorted(path.parent for path in REFERENCE.glob("*/study.yaml")):
        try:
            runs, measured_s, estimated_s = seconds_of(path)
        except StudyError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        if runs:
            ratio = estimated_s / measured_s
            out.writerow([path.name, runs, f"{measured_s:.0f}", f"{estimated_s:.0f}", f"{ratio:.2f}"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
