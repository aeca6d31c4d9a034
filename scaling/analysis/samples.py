"""From raw samples to arrays and budgets: the source of every number and curve of the report.

Ranks are aligned by the iteration's (or epoch's) number. How long an iteration takes is shown by unprofiled
steps, in which nothing was marked, and is that of the slowest rank; where its time goes is shown by the
profiled ones. Warm-up iterations are left out here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.columns import by_key, has_no_model, shares_gpus
from scaling.analysis.environments import environment_of
from scaling.analysis.gradient_noise import Squares, squares_of
from scaling.analysis.launch_effects import FEWEST_LAUNCHES, slow_launches
from scaling.analysis.rates import Rate, blocks_by_rule, blocks_of_lengths, rate_of
from scaling.analysis.sample_lines import (
    Integers,
    Line,
    aligned,
    by_number,
    is_profiled,
    is_unprofiled,
    loss,
    per_step,
    rank_step,
)
from scaling.axes import ATTACHED
from scaling.errors import StoreError
from scaling.measure.budget import RankStep, StepBudget, step_budgets
from scaling.measure.statistics import median_of
from scaling.store import ResultsFolder, RunRecord, Snapshot
from scaling.store.run_samples import TRAINED_LINES, validate_lines

Floats = NDArray[np.float64]

WAITING = ("communicate", "wait")  # phases in which a rank may stand still for another
TIMED_KINDS = ("iteration", ATTACHED)  # kinds of cells with a time for each iteration


@dataclass(frozen=True)
class ProfiledStep:
    iteration: int
    ranks: list[RankStep]


@dataclass(frozen=True)
class IterationLaunch:
    """The measured iterations of one run, in order."""

    repeat: int  # which of the cell's repeats
    iterations: Integers  # numbers of the unprofiled iterations, as recorded
    rank_steps_s: Floats  # their lengths in seconds, [rank, iteration]
    profiled_steps: list[ProfiledStep]  # those whose phases were marked; none where the step cannot be marked
    # when they began, likewise, on rank 0's clock or the rank's own; None in old folders
    starts_s: Floats | None = None
    blocks: tuple[int, ...] = (0,)  # indices of those that follow a pause of the tool, and 0

    @cached_property
    def rate(self) -> Rate:
        return rate_of(self.rank_steps_s, self.starts_s, self.blocks)

    @property
    def iteration_s(self) -> float:
        """Wall clock over steps; of an old folder the mean of `step_s`."""
        return self.rate.iteration_s

    @property
    def step_s(self) -> Floats:
        """The slowest rank's unprofiled iterations in seconds, one value per iteration."""
        slowest: Floats = self.rank_steps_s.max(axis=0)
        return slowest

    @cached_property
    def typical_s(self) -> float:
        """The median of `step_s`: for comparisons with phases, not a rate."""
        return median_of(self.step_s.tolist())

    @cached_property
    def budgets(self) -> list[list[StepBudget]]:
        return [step_budgets(step.ranks) for step in self.profiled_steps]

    @cached_property
    def waited_for(self) -> int:
        """The rank that the others wait for: the first with the shortest waits; without any, the slowest."""
        waits = list(map(median_of, zip(*map(_waits_s, self.profiled_steps), strict=True)))
        if any(waits):
            return waits.index(min(waits))
        return int(np.argmax(np.median(self.rank_steps_s, axis=1)))


def _waits_s(step: ProfiledStep) -> list[float]:
    return [
        sum(span.stop_s - span.start_s for span in rank.spans if span.phase in WAITING) for rank in step.ranks
    ]


@dataclass(frozen=True)
class TrainingSamples:
    """The epochs of one convergence run, in order; every array has one value per epoch."""

    repeat: int  # which of the cell's repeats
    epochs: Integers  # their numbers, as recorded
    # seconds of training so far, of the slowest rank; NaN where workers shared GPUs, since they are not those
    # of as many GPUs
    train_s: Floats
    train_loss: Floats  # mean over the epoch's steps; NaN where it was not finite
    test_accuracy: Floats  # 0 to 1; NaN where there is none
    # joules of training so far, of all ranks' GPUs; NaN likewise, and where they are not known
    train_j: Floats
    steps: Floats  # updates in the epoch; NaN likewise, as for all that follow
    learning_rate: Floats  # of the epoch's last step
    train_accuracy: Floats  # train_accuracy, test_loss: after the epoch
    test_loss: Floats
    # squared norms of its gradients, an item an epoch; empty where they were not recorded
    noise: tuple[Squares, ...] = ()
    preconditioned_noise: tuple[Squares, ...] = ()  # of the gradients as Adam divides them

    def samples(self, global_batch: int) -> Floats:
        """The number of samples trained on by the end of each epoch."""
        counted: Floats = np.cumsum(self.steps) * global_batch
        return counted


@dataclass(frozen=True)
class CellResult:
    cell_id: str  # the cell's hash
    cell: dict[str, Any]  # its independent variables (`Cell.to_dict()`)
    records: list[RunRecord]  # one a repeat, in their order
    launches: list[IterationLaunch]  # the samples of its done runs, where it is an iteration cell
    trainings: list[TrainingSamples]  # likewise, where it is a convergence cell
    # the epochs so far of its trainings that run, or were cut off and will go on
    begun: tuple[TrainingSamples, ...] = ()
    gpu: str | None = None  # the model of the machine's GPUs; None where there is none, or there are several
    # done runs that do not count, since their launch was slow in most cells
    slow_launches: tuple[IterationLaunch, ...] = ()

    @property
    def all_launches(self) -> list[IterationLaunch]:
        return sorted([*self.launches, *self.slow_launches], key=lambda launch: launch.repeat)

    @property
    def done(self) -> list[RunRecord]:
        return [record for record in self.records if record.state == "done"]

    @property
    def state(self) -> str:
        """The state over all repeats: failed if any failed, else running or planned if any is, else done."""
        states = {record.state for record in self.records}
        return next((state for state in ("failed", "running", "planned") if state in states), "done")

    def label(self, field: str) -> str:
        """The shown name of model, dataset or aggregator: its label, or its name if it has none."""
        return str(self.cell.get(f"{field}_label") or self.cell[field])

    @property
    def steps_each(self) -> int:
        """Steps of a sample: of a block of local updates all, else one."""
        return int(self.cell.get("sync_every") or 1)

    @property
    def is_trained(self) -> bool:
        return not has_no_model(self.cell)


def read_records(folder: ResultsFolder) -> dict[str, list[RunRecord]]:
    """Cell id -> the records of its repeats, in order; StoreError where one is damaged."""
    return by_key(folder.runs(), lambda record: record.cell_id)


def read_cells(folder: ResultsFolder) -> list[CellResult]:
    """All cells of a folder, with unfinished trainings so far; StoreError where a sample is damaged."""
    folder = Snapshot.of(folder)
    return without_slow_launches([read_cell(folder, records) for records in read_records(folder).values()])


_LAUNCHED_TOGETHER = ("device", "world_size", "peer_access", "threads")


def without_slow_launches(cells: Sequence[CellResult]) -> list[CellResult]:
    """The cells, of which launches that were slow in most cells do not count (`launch_effects`)."""
    slow: dict[str, set[int]] = {}
    timed = [cell for cell in cells if cell.cell["kind"] == "iteration" and cell.launches]
    families = by_key(timed, lambda cell: tuple(cell.cell.get(name) for name in _LAUNCHED_TOGETHER))
    for family in families.values():
        repeats = sorted({launch.repeat for cell in family for launch in cell.launches})
        if len(repeats) >= FEWEST_LAUNCHES:
            found = {repeats[column] for column in slow_launches(_log_times(family, repeats))}
            slow.update({cell.cell_id: found for cell in family if found})
    return [_divided(cell, slow.get(cell.cell_id, set())) for cell in cells]


def _log_times(cells: Sequence[CellResult], repeats: Sequence[int]) -> Floats:
    """[cell, repeat]; NaN where there is no time."""
    logs = np.full((len(cells), len(repeats)), np.nan)
    for row, cell in zip(logs, cells, strict=True):
        for launch in cell.launches:
            if launch.iteration_s > 0:
                row[repeats.index(launch.repeat)] = math.log(launch.iteration_s)
    return logs


def _divided(cell: CellResult, slow: set[int]) -> CellResult:
    counted = [launch for launch in cell.launches if launch.repeat not in slow]
    if not counted:
        return cell
    others = tuple(launch for launch in cell.launches if launch.repeat in slow)
    return replace(cell, launches=counted, slow_launches=others) if others else cell


def read_cell(folder: ResultsFolder, records: list[RunRecord]) -> CellResult:
    done = [record for record in records if record.state == "done"]
    cell = records[0].cell
    launches = [_read_launch(folder, record) for record in done if cell["kind"] in TIMED_KINDS]
    trainings = [
        _training(record, _lines(folder, record, where), where)
        for record in done
        if cell["kind"] == "convergence"
        for where in [where_of(folder, record)]
    ]
    begun = filter(None, (_read_begun(folder, record) for record in records))
    return CellResult(records[0].cell_id, cell, records, launches, trainings, tuple(begun), _gpu(folder))


def _gpu(folder: ResultsFolder) -> str | None:
    models = {gpu.get("name") for gpu in (environment_of(folder) or {}).get("gpus") or []}
    return models.pop() if len(models) == 1 else None


def _read_launch(folder: ResultsFolder, record: RunRecord) -> IterationLaunch:
    where = where_of(folder, record)
    measured = [
        [per_step(line) for line in lines if not line["warmup"]] for lines in _lines(folder, record, where)
    ]
    unprofiled = [[line for line in lines if is_unprofiled(line)] for lines in measured]
    captured = record.cell["step"] == "captured"
    profiled = [[line for line in lines if is_profiled(line, captured=captured)] for lines in measured]
    numbers = aligned(unprofiled, "iteration", where)
    ordered = [by_number(lines, "iteration") for lines in unprofiled]
    rank_steps_s = np.array([[line["step_s"] for line in lines] for lines in ordered], dtype=np.float64)
    starts_s = None
    if all(line.get("start_s") is not None for lines in ordered for line in lines):
        starts_s = np.array([[line["start_s"] for line in lines] for lines in ordered], dtype=np.float64)
    blocks = _blocks(record, numbers, rank_steps_s, starts_s)
    profiled_numbers = aligned(profiled, "iteration", where, required=False)
    recorded = [[rank_step(line, where) for line in by_number(lines, "iteration")] for lines in profiled]
    profiled_steps = [
        ProfiledStep(int(number), list(step))
        for number, *step in zip(profiled_numbers, *recorded, strict=True)
    ]
    return IterationLaunch(record.repeat, numbers, rank_steps_s, profiled_steps, starts_s, blocks)


def _blocks(
    record: RunRecord, numbers: Integers, rank_steps_s: Floats, starts_s: Floats | None
) -> tuple[int, ...]:
    """As recorded; in older records by their rule; of a script one, unless other steps are between."""
    if lengths := record.summary.get("block_iterations"):
        return blocks_of_lengths(lengths, len(numbers))
    if record.cell["kind"] == ATTACHED or record.cell.get("precision_goal") is None:
        return (0, *(int(index) + 1 for index in np.flatnonzero(np.diff(numbers) > 1)))
    return blocks_by_rule(rank_steps_s, starts_s)


def _read_begun(folder: ResultsFolder, record: RunRecord) -> TrainingSamples | None:
    """The epochs that every rank has recorded; None if there are none, or they are not readable yet."""
    if record.cell["kind"] != "convergence" or record.state not in ("running", "planned"):
        return None
    where = where_of(folder, record)
    try:
        ranks = _lines(folder, record, where, unfinished=True)
        num_epochs = min(map(len, ranks))
        return _training(record, [lines[:num_epochs] for lines in ranks], where) if num_epochs else None
    except StoreError:
        return None


def _training(record: RunRecord, ranks: Sequence[Sequence[Line]], where: str) -> TrainingSamples:
    numbers = aligned(ranks, "epoch", where)
    ordered = [by_number(lines, "epoch") for lines in ranks]
    train_s = [[line["train_s"] for line in lines] for lines in ordered]

    def of_rank_0(name: str, *, required: bool = True) -> Floats:
        return _floats(
            loss(line, name, where) if required or name in line else math.nan for line in ordered[0]
        )

    joules = [[loss({"train_j": None, **line}, "train_j", where) for line in lines] for lines in ordered]
    counted = math.nan if shares_gpus(record.cell) else 1.0
    later = ("learning_rate", "train_accuracy", "test_loss")  # old folders lack them
    return TrainingSamples(
        record.repeat,
        numbers,
        counted * np.max(np.array(train_s, dtype=np.float64), axis=0),
        of_rank_0("train_loss"),
        of_rank_0("test_accuracy"),
        counted * np.sum(np.array(joules, dtype=np.float64), axis=0),
        _floats(len(line["step_losses"]) if "step_losses" in line else math.nan for line in ordered[0]),
        **{name: of_rank_0(name, required=False) for name in later},
        noise=squares_of([line.get("noise") for line in ordered[0]]),
        preconditioned_noise=squares_of([line.get("preconditioned_noise") for line in ordered[0]]),
    )


def _lines(
    folder: ResultsFolder, record: RunRecord, where: str, *, unfinished: bool = False
) -> list[list[Line]]:
    ranks = folder.samples(record.cell_id, record.repeat, unfinished=unfinished)
    expected = record.cell["world_size"]
    if len(ranks) != expected:
        raise StoreError(f"{where}: samples of {len(ranks)} ranks are there, its world size is {expected}")
    for rank, lines in enumerate(ranks):
        validate_lines(TRAINED_LINES[record.cell["kind"]], lines, f"{where}/rank{rank}.jsonl")
    return ranks


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)


def where_of(folder: ResultsFolder, record: RunRecord) -> str:
    return str(folder.path / "runs" / record.cell_id / str(record.repeat))
