"""From raw samples to one array a quantity and launch: what every number and curve of the report is made of.

Ranks are aligned by the iteration's (or epoch's) number. An iteration lasts as long as on its slowest rank;
its phases are those of the rank that the others wait for. Warm-up iterations are left out here and nowhere
else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.errors import StoreError
from scaling.measure.phase_names import PHASES
from scaling.store import ResultsFolder, RunRecord

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Line = dict[str, Any]

WAITING = ("communicate", "wait")
"""Phases in which a rank may stand still for another."""

REQUIRED_FIELDS = (
    *("kind", "model", "dataset", "aggregator", "step", "device", "scaling", "world_size"),
    *("local_batch", "global_batch", "threads", "learning_rate", "momentum", "seed"),
)


@dataclass(frozen=True)
class IterationLaunch:
    """The measured iterations of one run, in their order; every array has one value an iteration.

    Attributes:
        repeat: which of the cell's repeats.
        iterations: their numbers, as recorded.
        waited_for: the rank whose phases these are.
        step_s: the slowest rank's step, in seconds.
        phases_s: phases of `waited_for`, in seconds; no entry for those that it never had.
    """

    repeat: int
    iterations: Integers
    waited_for: int
    step_s: Floats
    phases_s: dict[str, Floats]


@dataclass(frozen=True)
class Training:
    """The epochs of one convergence run, in their order; every array has one value an epoch.

    Attributes:
        repeat: which of the cell's repeats.
        epochs: their numbers, as recorded.
        train_s: seconds of training so far, of the slowest rank.
        train_loss: mean over the epoch's steps; NaN where it was not finite.
        test_accuracy: 0 to 1; NaN where there is none.
    """

    repeat: int
    epochs: Integers
    train_s: Floats
    train_loss: Floats
    test_accuracy: Floats


@dataclass(frozen=True)
class CellResult:
    """All that a folder holds of one cell.

    Attributes:
        cell_id: the cell's hash.
        cell: its independent variables (`Cell.to_dict()`).
        records: one a repeat, in their order.
        launches: the samples of its done runs, where it is an iteration cell.
        trainings: likewise, where it is a convergence cell.
    """

    cell_id: str
    cell: dict[str, Any]
    records: list[RunRecord]
    launches: list[IterationLaunch]
    trainings: list[Training]

    @property
    def done(self) -> list[RunRecord]:
        """The repeats that have results."""
        return [record for record in self.records if record.state == "done"]

    @property
    def state(self) -> str:
        """Over all repeats: failed if any failed, else running or planned if any is, else done."""
        states = {record.state for record in self.records}
        return next((state for state in ("failed", "running", "planned") if state in states), "done")

    def label(self, field: str) -> str:
        """How the model, dataset or aggregator is shown: its label, or its name where it has none."""
        return str(self.cell.get(f"{field}_label") or self.cell[field])


def read_records(folder: ResultsFolder) -> dict[str, list[RunRecord]]:
    """Cell id -> the records of its repeats, in their order.

    Raises:
        StoreError: a record is damaged or lacks one of the cell's variables.
    """
    cells: dict[str, list[RunRecord]] = {}
    for record in folder.runs():
        missing = [field for field in REQUIRED_FIELDS if field not in record.cell]
        if missing:
            raise StoreError(f"{_where(folder, record)}/run.json: its cell lacks {', '.join(missing)}")
        cells.setdefault(record.cell_id, []).append(record)
    return cells


def read_cells(folder: ResultsFolder) -> list[CellResult]:
    """All cells of a folder, with the samples of their done runs.

    Raises:
        StoreError: a record or a sample of a done run is missing or damaged.
    """
    cells = []
    for cell_id, records in read_records(folder).items():
        done = [record for record in records if record.state == "done"]
        cell = records[0].cell
        launches = [_read_launch(folder, record) for record in done if cell["kind"] == "iteration"]
        trainings = [_read_training(folder, record) for record in done if cell["kind"] == "convergence"]
        cells.append(CellResult(cell_id, cell, records, launches, trainings))
    return cells


def _read_launch(folder: ResultsFolder, record: RunRecord) -> IterationLaunch:
    where = _where(folder, record)
    # The warm-up's flag is required: a line without it might be either, and would be counted silently.
    ranks = [
        [line for line in lines if not _field(line, "warmup", where)] for lines in _lines(folder, record)
    ]
    numbers = _aligned(ranks, "iteration", where)
    ordered = [_ordered(lines, "iteration") for lines in ranks]
    steps_s = [[_seconds(line, "step_s", where) for line in lines] for lines in ordered]
    waited_for = _waited_for(ordered, where)
    own = ordered[waited_for]
    occurring = [name for name in PHASES if any(f"{name}_s" in line for line in own)]
    return IterationLaunch(
        record.repeat,
        numbers,
        waited_for,
        np.max(np.array(steps_s, dtype=np.float64), axis=0),
        {name: _floats(_seconds(line, f"{name}_s", where, absent=0.0) for line in own) for name in occurring},
    )


def _waited_for(ranks: Sequence[Sequence[Line]], where: str) -> int:
    """The rank that the others wait for: the one that itself waits least, in messages and at barriers.

    Ranks of a synchronous step take equally long, so which one is slowest is a matter of microseconds; what
    holds the step up is told by the rank that does it. The first such rank; without any waiting, the slowest.
    """

    def waiting_s(lines: Sequence[Line]) -> float:
        rows = [[_seconds(line, f"{name}_s", where, absent=0.0) for name in WAITING] for line in lines]
        return float(np.median(np.sum(np.array(rows, dtype=np.float64), axis=1)))

    waits = [waiting_s(lines) for lines in ranks]
    if any(waits):
        return int(np.argmin(waits))
    steps = [np.median([_seconds(line, "step_s", where) for line in lines]) for lines in ranks]
    return int(np.argmax(steps))


def _read_training(folder: ResultsFolder, record: RunRecord) -> Training:
    where = _where(folder, record)
    ranks = _lines(folder, record)
    numbers = _aligned(ranks, "epoch", where)
    ordered = [_ordered(lines, "epoch") for lines in ranks]
    train_s = [[_seconds(line, "train_s", where) for line in lines] for lines in ordered]

    def of_rank_0(name: str) -> Floats:
        return _floats(_loss(line, name, where) for line in ordered[0])

    return Training(
        record.repeat,
        numbers,
        np.max(np.array(train_s, dtype=np.float64), axis=0),
        of_rank_0("train_loss"),
        of_rank_0("test_accuracy"),
    )


def _lines(folder: ResultsFolder, record: RunRecord) -> list[list[Line]]:
    ranks = folder.samples(record.cell_id, record.repeat)
    where, expected = _where(folder, record), record.cell["world_size"]
    if len(ranks) != expected:
        raise StoreError(f"{where}: samples of {len(ranks)} ranks are there, its world size is {expected}")
    for rank, lines in enumerate(ranks):
        if not all(isinstance(line, dict) for line in lines):
            raise StoreError(f"{where}/rank{rank}.jsonl is damaged: every line should be an object")
    return ranks


def _aligned(ranks: Sequence[Sequence[Line]], key: str, where: str) -> Integers:
    """The numbers that all ranks have, ascending."""
    numbers = [sorted(_number(line, key, where) for line in lines) for lines in ranks]
    if not numbers[0]:
        raise StoreError(f"{where}: the run is done, but no measured {key} was recorded")
    if len(set(numbers[0])) != len(numbers[0]):
        raise StoreError(f"{where}: an {key} was recorded twice")
    for rank, own in enumerate(numbers):
        if own != numbers[0]:
            raise StoreError(
                f"{where}: ranks 0 and {rank} recorded different {key}s, so they cannot be aligned"
            )
    return np.array(numbers[0], dtype=np.int64)


def _ordered(lines: Iterable[Line], key: str) -> list[Line]:
    return sorted(lines, key=lambda line: int(line[key]))


def _field(line: Line, name: str, where: str) -> Any:
    if name not in line:
        raise StoreError(f"{where}: a line of the samples lacks {name!r}")
    return line[name]


def _number(line: Line, name: str, where: str) -> int:
    value = _field(line, name, where)
    if isinstance(value, bool) or not isinstance(value, int):
        raise StoreError(
            f"{where}: {name} is {value!r} in a line of the samples, it should be a whole number"
        )
    return value


def _loss(line: Line, name: str, where: str) -> float:
    value = _field(line, name, where)
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise StoreError(
            f"{where}: {name} is {value!r} in a line of the samples, it should be a number or null"
        )
    return float(value)


def _seconds(line: Line, name: str, where: str, absent: float | None = None) -> float:
    value = line.get(name, absent)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise StoreError(
            f"{where}: {name} is {value!r} in a line of the samples, it should be a time in seconds"
        )
    return float(value)


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)


def _where(folder: ResultsFolder, record: RunRecord) -> str:
    return str(folder.path / "runs" / record.cell_id / str(record.repeat))
