"""Trains a convergence cell on one rank, from the start or from the checkpoints of a run that was cut off.

After an epoch each rank writes a checkpoint, unless that would take more than a small part of the time: what
a cut costs is then a few seconds of training. Ranks may be cut off while they write, so each keeps its last
two, and the run goes on from the last epoch of which all have a good one (`training_checkpoints`). What was
recorded up to there comes from the checkpoint too, so that the samples are those of one uncut training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from scaling.aggregators.registry import create as create_aggregator
from scaling.measure import power
from scaling.measure.clock import clock_for
from scaling.process_group import TorchGroup
from scaling.study.cell import Cell
from scaling.study.rank.context import RunContext
from scaling.study.rank.prepared_step import PreparedStep, build_step, gradients_of
from scaling.study.rank.summary import RankSummary
from scaling.study.rank.training_checkpoints import TrainingCheckpoints, saved_of
from scaling.training.batch_norm import has_batch_norm
from scaling.training.checkpoint import Checkpoint
from scaling.training.convergence import TrainingPlan, TrainingProgress, train
from scaling.training.learning_rate import DEFAULT_GAMMA, LearningRate, scaled_rate
from scaling.training.local_updates import end_block
from scaling.training.noise_probe import NoiseProbe
from scaling.training.step import TrainingStep
from scaling.workloads.base import Split
from topologies.detect_host import this_start

LARGEST_WRITING_SHARE = 0.1
"""Of the wall time, that checkpoints may take."""

OF_EVERY_RANK = ("epoch", "train_s", "train_j", "bytes_sent")
"""What each rank records; the rest is the same on all of them, and one copy is enough."""


def converge(cell: Cell, context: RunContext) -> RankSummary:
    """Trains `cell` and hands out its samples. Collective. `context`: of the rank; where it has a place for
    checkpoints, some are made."""
    context.heartbeat.phase("set-up")
    prepared = PreparedStep(cell, context)
    _throw_away_step(cell, prepared.splits.train, context)
    prepared.check_first_steps()
    saved = saved_of(cell, prepared, context)
    begun, notes = saved.last_common() if saved else (None, [])
    context.seconds["setup"] = context.elapsed_s()
    rows, before = _train(cell, prepared, context, saved, begun)
    context.seconds["training"] = context.elapsed_s() - context.seconds["setup"]
    notes = [*notes, *([_went_on(begun.progress.epoch, before)] if begun else [])]
    if cell.batch_norm == "sync" and not has_batch_norm(prepared.step.replica.module):
        notes.append("batch_norm: sync changes nothing: the model has no batch normalisation")
    summary = prepared.summary(
        rows[-1]["bytes_sent"] // (len(prepared.splits.train) // cell.global_batch), None
    )
    return replace(
        summary,
        notes=[*summary.notes, *notes],
        diverged=not all(math.isfinite(row.get("train_loss", 0.0)) for row in rows),
        hosts_before=before,
    )


def _throw_away_step(cell: Cell, split: Split, context: RunContext) -> None:
    """One step on a replica of its own. Libraries and connections are set up on first use, and which cell of
    a launch comes first is chance."""
    inputs, targets = (values[: cell.local_batch] for values in (split.inputs, split.targets))
    step = build_step(cell, context)
    step(inputs.to(context.device), targets.to(context.device))
    end_block(step)
    clock_for(context.device).settle()


def _train(
    cell: Cell,
    prepared: PreparedStep,
    context: RunContext,
    saved: TrainingCheckpoints | None,
    begun: Checkpoint | None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """All epochs, or those after a checkpoint; returns their rows, and the other hosts that trained some."""
    group, device, step, splits = context.group, context.device, prepared.step, prepared.splits
    rows: list[dict[str, Any]] = []
    if saved is not None and begun is not None:
        saved.restore(begun, step, device)
        prepared.check.replicas()
        rows = begun.rows
        context.write(rows)
    after = begun.progress if begun else TrainingProgress()
    saver = _Saver(saved, group) if saved else None
    here = this_start()
    before = [host for host in begun.hosts if host != here] if begun else []
    parts = (step, splits.train, splits.test, plan_of(cell), group, clock_for(device), group.largest)
    # A GPU that workers share counts the energy of all of them.
    energy_meter = _energy_meter(device) if cell.workers_per_gpu is None else None
    heartbeat, noise = context.heartbeat, _noise_probe(cell, step, group)
    heartbeat.phase("training")
    for row in train(*parts, after=after, energy_meter=energy_meter, after_each=heartbeat.step, noise=noise):
        heartbeat.phase("records of an epoch")
        rows.append(row if group.rank == 0 else {key: row[key] for key in OF_EVERY_RANK})
        context.write(rows[-1:])
        if saver is not None and row["epoch"] != cell.epochs and saver.is_due():
            prepared.check_later_steps()
            progress = TrainingProgress(row["epoch"], row["train_s"], row["train_j"])
            saver.save(Checkpoint.of(step, progress, rows, device, [*before, here]))
        heartbeat.phase("training")
    prepared.check_later_steps()
    return rows, before


def _noise_probe(cell: Cell, step: TrainingStep, group: TorchGroup) -> NoiseProbe:
    aggregator = create_aggregator(cell.aggregator, cell.aggregator_parameters)
    return NoiseProbe(step, aggregator, gradients_of(cell), group, cell.local_batch)


def _went_on(epoch: int, before: list[str]) -> str:
    """The note of a training that was cut off after that epoch, on those other hosts, if any."""
    hosts = " and ".join([*before, this_start()])
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

    def __init__(self, saved: TrainingCheckpoints, group: TorchGroup) -> None:
        self._saved, self._group = saved, group
        self._next_s = 0.0

    def is_due(self) -> bool:
        """Whether any rank wants one now."""
        return self._group.largest(float(time.monotonic() >= self._next_s)) > 0

    def save(self, checkpoint: Checkpoint) -> None:
        start_s = time.monotonic()
        self._saved.write(checkpoint)
        written_s = time.monotonic()
        self._next_s = written_s + (written_s - start_s) / LARGEST_WRITING_SHARE


def _energy_meter(device: torch.device) -> Callable[[], Callable[[], float | None]] | None:
    """Begins to count the energy of this rank's GPU; None where nobody tells it."""
    gpu = power.open_device(device)
    if gpu is None:
        return None

    def begin() -> Callable[[], float | None]:
        before = gpu.reading()
        return lambda: power.summary(before, gpu.reading(), 0)["energy_j"]

    return begin
