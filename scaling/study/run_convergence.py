"""Trains a convergence cell on one rank, from the start or from the checkpoints of a run that was cut off.

After an epoch each rank writes a checkpoint, unless that would take more than a small part of the time: what
a cut costs is then a few seconds of training. Ranks may be cut off while they write, so each keeps its last
two, and the run goes on from the last epoch that all of them have. Ranks agree on both. What was recorded up
to there comes from the checkpoint too, so that the samples are those of one uncut training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from scaling.measure import power
from scaling.measure.clock import clock_for
from scaling.process_group import TorchGroup
from scaling.study.cells import Cell
from scaling.training.checkpoint import Checkpoint
from scaling.training.convergence import Progress, TrainingPlan, train
from scaling.training.learning_rate import DEFAULT_GAMMA, LearningRate, scaled_rate
from scaling.training.step import Step
from scaling.workloads.base import DataSplits
from topologies.detect_host import this_start

LARGEST_WRITING_SHARE = 0.1
"""Of the wall time, that checkpoints may take."""

OF_EVERY_RANK = ("epoch", "train_s", "train_j", "bytes_sent")
"""What each rank records; the rest is the same on all of them, and one copy is enough."""


class SavedCheckpoints(Protocol):
    """Where this rank's checkpoints of one run lie (`scaling.store.CheckpointFiles`)."""

    def read(self) -> list[bytes]:
        """Those that there are, at most two."""

    def write(self, content: bytes) -> None:
        """A new one; of those before, the last is kept."""

    def clear(self) -> None:
        """Removes them."""


@dataclass(frozen=True)
class Trained:
    """What became of a training, beside its samples.

    Attributes:
        bytes_per_step: that this rank sent.
        diverged: a loss was not finite.
        notes: for the record of the run.
        hosts_before: on which it was trained before it was cut off, beside this one.
    """

    bytes_per_step: int
    diverged: bool
    notes: list[str]
    hosts_before: list[str]


def train_cell(
    cell: Cell,
    group: TorchGroup,
    step: Step,
    splits: DataSplits,
    device: torch.device,
    write: Callable[[list[dict[str, Any]]], None],
    saved: SavedCheckpoints | None = None,
    check: Callable[[], None] = lambda: None,
) -> Trained:
    """Trains `cell`. Collective.

    Args:
        cell: of kind convergence.
        group: the ranks that train together.
        step: this rank's, as it is at the start.
        splits: on the step's device, or in host memory, from where each batch is copied.
        device: this rank's.
        write: takes this rank's samples, in order.
        saved: where checkpoints are; None: there are none, and none are made.
        check: raises where this rank's replica has gone wrong; called before each checkpoint and at the end.
            Collective.
    """
    begun = _last_common(saved, group) if saved else None
    rows: list[dict[str, Any]] = []
    if begun is not None:
        begun.restore(step, device)
        rows = begun.rows
        write(rows)
    after = begun.progress if begun else Progress()
    saver = _Saver(saved, group) if saved else None
    here = this_start()
    before = [host for host in begun.hosts if host != here] if begun else []
    parts = (step, splits.train, splits.test, plan_of(cell), group, clock_for(device), group.largest)
    # A GPU that workers share counts the energy of all of them.
    energy_meter = _energy_meter(device) if cell.workers_per_gpu is None else None
    for row in train(*parts, after=after, energy_meter=energy_meter):
        rows.append(row if group.rank == 0 else {key: row[key] for key in OF_EVERY_RANK})
        write(rows[-1:])
        if saver is not None and row["epoch"] != cell.epochs and saver.is_due():
            check()
            progress = Progress(row["epoch"], row["train_s"], row["train_j"])
            saver.save(Checkpoint.of(step, progress, rows, device, [*before, here]))
    check()
    return Trained(
        rows[-1]["bytes_sent"] // (len(splits.train) // cell.global_batch),
        not all(math.isfinite(row.get("train_loss", 0.0)) for row in rows),
        [_went_on(after.epoch, before, here)] if begun else [],
        before,
    )


def _went_on(epoch: int, before: list[str], here: str) -> str:
    """The note of a training that was cut off after that epoch."""
    hosts = " and ".join([*before, here])
    elsewhere = f"; seconds and joules are of {hosts} together" if before else ""
    return f"cut off after epoch {epoch}, and went on from there{elsewhere}"


def plan_of(cell: Cell) -> TrainingPlan:
    """What the cell is trained on, and with which rates."""
    assert cell.epochs is not None
    rule = cell.learning_rate_rule or "fixed"
    rate = LearningRate(
        scaled_rate(cell.learning_rate, rule, cell.global_batch, cell.base_batch),
        cell.warmup_epochs or 0.0,
        cell.schedule or "constant",
        tuple(cell.milestones or ()),
        cell.gamma if cell.gamma is not None else DEFAULT_GAMMA,
    )
    augmented = cell.augmentation == "standard"
    return TrainingPlan(cell.global_batch, cell.epochs, cell.seed, rate, augmented=augmented)


class _Saver:
    """Writes this rank's checkpoints, as often as their share of the time allows. Collective."""

    def __init__(self, saved: SavedCheckpoints, group: TorchGroup) -> None:
        self._saved, self._group = saved, group
        self._next_s = 0.0

    def is_due(self) -> bool:
        """Whether any rank wants one now."""
        return self._group.largest(float(time.monotonic() >= self._next_s)) > 0

    def save(self, checkpoint: Checkpoint) -> None:
        start_s = time.monotonic()
        self._saved.write(checkpoint.to_bytes())
        written_s = time.monotonic()
        self._next_s = written_s + (written_s - start_s) / LARGEST_WRITING_SHARE


def _last_common(saved: SavedCheckpoints, group: TorchGroup) -> Checkpoint | None:
    """This rank's checkpoint of the last epoch of which every rank has one. Collective.

    Where there is no such epoch the training begins anew, and what was left of another is removed.
    """
    found = [checkpoint for content in saved.read() if (checkpoint := Checkpoint.from_bytes(content))]
    own = {checkpoint.progress.epoch: checkpoint for checkpoint in found}
    common = int(-group.largest(-float(max(own, default=0))))
    if group.largest(float(common not in own)):
        saved.clear()
        return None
    return own[common]


def _energy_meter(device: torch.device) -> Callable[[], Callable[[], float | None]] | None:
    """Begins to count the energy of this rank's GPU; None where nobody tells it."""
    gpu = power.open_device(device)
    if gpu is None:
        return None

    def begin() -> Callable[[], float | None]:
        before = gpu.reading()
        return lambda: power.summary(before, gpu.reading(), 0)["energy_j"]

    return begin
