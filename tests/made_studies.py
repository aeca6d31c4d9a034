"""Results folders made by hand, with samples whose answers are known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.explain import explained
from scaling.analysis.explain_view import Known
from scaling.analysis.findings import Finding
from scaling.analysis.noise import scatter_of
from scaling.analysis.samples import CellResult, IterationLaunch, ProfiledStep, TrainingSamples, read_cells
from scaling.analysis.seed_noise import lossy_ids
from scaling.analysis.summary import build_table, study_name, summary_table
from scaling.analysis.summary_findings import summary_findings
from scaling.measure.budget import RankStep, Span
from scaling.report.text import sentences_of
from scaling.store import ResultsFolder, RunRecord

Line = Mapping[str, Any]


class StudyFolder:
    """A results folder that is filled cell by cell, as a worker would."""

    def __init__(self, path: Path) -> None:
        self.folder = ResultsFolder(path)
        self.folder.write_study({"name": "by-hand", "parts": [], "notes": ["device: none found"]})
        self.folder.write_environment({"cpu": {"model": "A <b>fast</b> one", "usable_cores": 2}, "gpus": []})
        self._count = 0

    def add(
        self,
        runs: Sequence[Sequence[Sequence[Line]] | str],
        *,
        summary: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        **cell: Any,
    ) -> str:
        """Adds a cell; each run is its samples [rank][line], or "planned", "running" or "failed: reason"."""
        self._count += 1
        cell_id = f"{self._count:012x}"
        for repeat, run in enumerate(runs):
            record = RunRecord(cell_id, repeat, _cell(**cell))
            self.folder.write_run(record)
            if run == "planned":
                continue
            self.folder.start_run(record, {"launcher": "local", "host": "here"})
            if isinstance(run, str):
                if run.startswith("failed"):
                    self.folder.fail_run(record, run.partition(": ")[2])
                continue
            for rank, lines in enumerate(run):
                self.folder.sample_writer(cell_id, repeat, rank)(lines)
            self.folder.finish_run(record, summary or {}, notes)
        return cell_id

    def add_split(
        self, unsplit_s: Sequence[Sequence[float]], ranks: Sequence[Sequence[Line]], **cell: Any
    ) -> str:
        """Adds an iteration cell: each launch has those unprofiled steps, which all ranks share, and the
        profiled lines [rank][line]."""
        runs = []
        for steps in unsplit_s:
            lines = [iteration(number, step_s, profiled=False) for number, step_s in enumerate(steps)]
            runs.append([[*lines, *own] for own in ranks])
        return self.add(runs, world_size=len(ranks), **cell)

    def add_steps(self, launches: Sequence[Sequence[float]], **cell: Any) -> str:
        """Adds an iteration cell from its launches' step times, which all of its ranks share."""
        lines = [[iteration(number, step_s) for number, step_s in enumerate(steps)] for steps in launches]
        return self.add([[run] * cell.get("world_size", 1) for run in lines], **cell)


def iteration(number: int, step_s: float, *, warmup: bool = False, **phases: float) -> dict[str, Any]:
    """A line of an iteration cell's samples."""
    return {"iteration": number, "warmup": warmup, "step_s": step_s, **phases}


def split(
    number: int, step_s: float, *spans: tuple[str, str, float, float], start_s: float = 0.0, **more: Any
) -> dict[str, Any]:
    """A line of an iteration cell's samples whose phases were marked."""
    line = {"iteration": number, "warmup": False, "profiled": True, "start_s": start_s, "step_s": step_s}
    return {**line, "spans": [list(span) for span in spans], **more}


def epoch(number: int, train_s: float, loss: float | None, accuracy: float | None) -> dict[str, Any]:
    """A line of a convergence cell's samples on rank 0."""
    losses = {"step_losses": [loss], "train_loss": loss, "test_loss": loss, "test_accuracy": accuracy}
    return {"epoch": number, "train_s": train_s, **losses}


def _cell(**changes: Any) -> dict[str, Any]:
    size = changes.get("world_size", 1)
    batch = changes.pop("batch", 64)
    weak = changes.get("scaling") == "weak"
    cell = {
        **{"kind": "iteration", "model": "mlp", "dataset": "synthetic", "aggregator": "none"},
        **{"step": "eager", "device": "cpu", "scaling": "strong", "world_size": size},
        **{"local_batch": batch if weak else batch // size, "global_batch": batch * size if weak else batch},
        **{"threads": 1, "peer_access": None, "tf32": None, "seed": 0, "nesterov": False},
        **{"learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.0, "warmup": 1, "iterations": 3},
        **{"max_seconds": None, "epochs": None, "target_accuracy": None},
        **{"model_parameters": {}, "dataset_parameters": {}, "aggregator_parameters": {}},
        **changes,
    }
    labels = {f"{field}_label": cell[field] for field in ("model", "dataset", "aggregator")}
    return {**labels, "lossy": False, **cell, "exchanges": cell["aggregator"] != "none"}


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    """An empty results folder to be filled."""
    return StudyFolder(tmp_path / "by-hand")


line = pytest.fixture(lambda: iteration, name="line")
split_line = pytest.fixture(lambda: split, name="split_line")
epoch_line = pytest.fixture(lambda: epoch, name="epoch_line")


def _identity(variables: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(variables, sort_keys=True).encode()).hexdigest()[:12]


class Synthetic:
    """Studies in memory, without a file: cells whose launches' samples are given."""

    def __init__(self) -> None:
        self.cells: list[CellResult] = []

    def add(
        self,
        launches: Sequence[Sequence[float]],
        *,
        spans: Sequence[Sequence[Any]] = (),
        split_s: float | None = None,
        summary: Mapping[str, Any] | None = None,
        state: Any = "done",
        **cell: Any,
    ) -> str:
        """Adds an iteration cell; each launch is its unprofiled steps in seconds, which all ranks share.

        Args:
            spans: of every split step, on every rank; a list a rank where the first is a list of spans.
            split_s: length of the profiled steps; by default the first launch's median.
        """
        variables = {**_cell(**cell), "lossy": cell.get("lossy", False)}
        cell_id = _identity(variables)
        size = variables["world_size"]
        length_s = split_s or (float(np.median(launches[0])) if launches else 0.0)
        per_rank = spans if spans and isinstance(spans[0][0], list | tuple) else [spans] * size
        steps = [
            ProfiledStep(number, [RankStep(length_s, [Span(*one) for one in own], 0.0) for own in per_rank])
            for number in range(1000, 1008)
        ]
        repeats, said = range(max(1, len(launches))), summary or {}
        records = [RunRecord(cell_id, one, variables, state, summary=dict(said)) for one in repeats]
        timed = [
            IterationLaunch(repeat, np.arange(len(own)), np.array([own] * size), steps if spans else [])
            for repeat, own in enumerate(launches)
        ]
        self.cells.append(CellResult(cell_id, variables, records, timed, []))
        return cell_id

    def add_training(
        self, seconds: Sequence[float], *, accuracy: float = 0.98, target: float | None = 0.97, **cell: Any
    ) -> str:
        """Adds a convergence cell: each repeat has two epochs, of which the second one reaches `accuracy`."""
        more = {"kind": "convergence", "target_accuracy": target, "epochs": 2}
        variables = {**_cell(**more, **cell), "lossy": cell.get("lossy", False)}
        cell_id = _identity(variables)
        records = [RunRecord(cell_id, repeat, variables, "done") for repeat in range(len(seconds))]
        unknown = np.full(2, np.nan)
        trainings = [
            TrainingSamples(
                repeat, np.arange(2), np.array([own / 2, own]), np.array([1.0, 0.5]),
                np.array([0.5, accuracy]), unknown, np.full(2, 10.0), unknown, unknown, unknown,
            )
            for repeat, own in enumerate(seconds)
        ]  # fmt: skip
        self.cells.append(CellResult(cell_id, variables, records, [], trainings))
        return cell_id

    @property
    def table(self) -> pd.DataFrame:
        """The summary."""
        return build_table("synthetic", self.cells)

    def explained(self, num_cores: int | None = None) -> dict[str, list[Finding]]:
        """What the rules find, by cell id."""
        return explained(Known.of(to_rows(self.table), self.cells, num_cores))


make_study = pytest.fixture(lambda: Synthetic, name="make_study")


@pytest.fixture
def timed() -> Synthetic:
    return Synthetic()


def texts_of(found):
    """Findings in words."""
    return [sentence.text for sentence in sentences_of(found)]


def findings(folder, num_cores=None):
    """What the summary of a results folder shows, in words."""
    cells = read_cells(folder)
    table = build_table(study_name(folder), cells)
    return texts_of(summary_findings(table, scatter_of(cells), num_cores, lossy_ids(cells)))


def rows_of(study):
    """The rows of a results folder's summary."""
    return to_rows(summary_table(study.folder))


def row_of(study):
    """The only one."""
    (row,) = rows_of(study)
    return row


def row_with(study, runs, **cell):
    """The summary's only row, which is of this cell."""
    study.add(runs, **cell)
    return row_of(study)
