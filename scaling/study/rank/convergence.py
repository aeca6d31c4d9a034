"""Trains a convergence cell on one rank, from the start or from the checkpoints of a run that was cut off.

After an epoch each rank writes a checkpoint, unless that would take more than a small part of the time. Ranks
may be cut off while they write, so each keeps its last two. The run goes on from the last epoch of which
every rank has a good one, saved together with the others', with equal parameters, and equal states of the
optimizers where every rank has all of it. What was restored, residuals too, is compared with the checkpoint,
which also has what was recorded: samples are those of one uncut training. Without one it begins anew.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch

from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import CheckpointError
from scaling.measure import power
from scaling.measure.clock import clock_for
from scaling.process_group import TorchGroup
from scaling.runtime.workers import failure_kind
from scaling.store.failures import DEVICE_LOST, OUT_OF_MEMORY
from scaling.store.run_samples import CheckpointFiles
from scaling.study.cell import Cell
from scaling.study.rank.context import RankSummary, RunContext
from scaling.study.rank.prepared_step import PreparedStep, build_step, gradients_of
from scaling.training.batch_norm import has_batch_norm
from scaling.training.checkpoint import WRONG_CONTENT, Checkpoint, Target
from scaling.training.convergence import TrainingPlan, TrainingProgress, train
from scaling.training.learning_rate import DEFAULT_GAMMA, LearningRate, scaled_rate
from scaling.training.local_updates import end_block
from scaling.training.noise_probe import NoiseProbe
from scaling.training.step import TrainingStep
from scaling.workloads.base import Split
from topologies.detect_host import this_start

LARGEST_WRITING_SHARE = 0.1  # of the wall time, that checkpoints may take
OF_EVERY_RANK = ("epoch", "train_s", "train_j", "bytes_sent")  # the rest is one on all


def converge(cell: Cell, context: RunContext) -> RankSummary:
    """Trains `cell` and hands out its samples, with checkpoints where they have a place. Collective."""
    context.heartbeat.phase("set-up")
    prepared = PreparedStep(cell, context)
    _throw_away_step(cell, prepared.splits.train, context)
    prepared.check_first_steps()
    saved = saved_of(cell, prepared, context)
    begun, notes = saved.last_common() if saved else (None, [])
    context.seconds["setup"] = context.elapsed_s()
    rows, before = _train(cell, prepared, context, saved, begun)
    context.seconds["training"] = context.elapsed_s() - context.seconds["setup"]
    if begun:
        hosts = " and ".join([*before, this_start()])
        elsewhere = f"; seconds and joules are of {hosts} together" if before else ""
        notes.append(f"cut off after epoch {begun.progress.epoch}, and went on from there{elsewhere}")
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
    """One step on a replica of its own: which cell first sets up libraries and connections is chance."""
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
    here = this_start()
    before = [host for host in begun.hosts if host != here] if begun else []
    parts = (step, splits.train, splits.test, plan_of(cell), group, clock_for(device), group.largest)
    # A GPU that workers share counts the energy of all of them.
    energy_meter = _energy_meter(device) if cell.workers_per_gpu is None else None
    aggregator, heartbeat = create_aggregator(cell.aggregator, cell.aggregator_parameters), context.heartbeat
    noise = NoiseProbe(step, aggregator, gradients_of(cell), group, cell.local_batch)
    heartbeat.phase("training")
    for row in train(*parts, after=after, energy_meter=energy_meter, after_each=heartbeat.step, noise=noise):
        heartbeat.phase("records of an epoch")
        rows.append(row if group.rank == 0 else {key: row[key] for key in OF_EVERY_RANK})
        context.write(rows[-1:])
        if saved is not None and row["epoch"] != cell.epochs and saved.is_due():
            prepared.check_later_steps()
            progress = TrainingProgress(row["epoch"], row["train_s"], row["train_j"])
            saved.write(Checkpoint.of(step, progress, rows, device, [*before, here]))
        heartbeat.phase("training")
    prepared.check_later_steps()
    return rows, before


def plan_of(cell: Cell) -> TrainingPlan:
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


def _energy_meter(device: torch.device) -> Callable[[], Callable[[], float | None]] | None:
    """Begins to count the energy of this rank's GPU; None where nobody tells it."""
    gpu = power.open_device(device)
    if gpu is None:
        return None

    def begin() -> Callable[[], float | None]:
        before = gpu.reading()
        return lambda: power.summary(before, gpu.reading(), 0)["energy_j"]

    return begin


class TrainingCheckpoints:
    """One rank's, of one training. Collective. `parameters`, with `same_update` optimizers: equal on all."""

    def __init__(
        self,
        files: CheckpointFiles,
        target: Target,
        parameters: Sequence[str],
        group: TorchGroup,
        *,
        same_update: bool,
    ) -> None:
        self._files, self._target, self._group = files, target, group
        self._parameters, self._same_update = list(parameters), same_update
        self._next_s = 0.0

    def is_due(self) -> bool:
        """Whether another one keeps to its share of the time."""
        return self._group.largest(float(time.monotonic() >= self._next_s)) > 0

    def write(self, checkpoint: Checkpoint) -> None:
        start_s = time.monotonic()
        together = self._group.share(secrets.token_hex(8))
        self._files.write(replace(checkpoint, saved_together=together).to_bytes(self._target))
        written_s = time.monotonic()
        self._next_s = written_s + (written_s - start_s) / LARGEST_WRITING_SHARE

    def last_common(self) -> tuple[Checkpoint | None, list[str]]:
        """This rank's checkpoint of the last common epoch; notes, the same on every rank."""
        by_epoch, notes = self._good()
        limit = max(by_epoch, default=0)
        while True:
            epoch = int(
                -self._group.largest(-float(max((epoch for epoch in by_epoch if epoch <= limit), default=0)))
            )
            if epoch == 0:
                break
            limit = epoch - 1
            if self._group.largest(float(epoch not in by_epoch)):
                continue
            problem = self._difference(by_epoch[epoch])
            if problem is None:
                return by_epoch[epoch], self._of_all_ranks(notes)
            if self._group.rank == 0:
                notes.append(f"checkpoints after epoch {epoch} are not used: {problem}")
        self._files.clear()
        notes = self._of_all_ranks(notes)
        return None, [*notes, "no checkpoint is good on all ranks: the training began anew"] if notes else []

    def restore(self, checkpoint: Checkpoint, step: TrainingStep, device: torch.device) -> None:
        """Puts the step where it was. Raises CheckpointError: it does not fit, and its files are gone."""
        try:
            checkpoint.restore(step, device)
        except WRONG_CONTENT as error:
            if failure_kind(error, device) in (OUT_OF_MEMORY, DEVICE_LOST):
                raise  # the checkpoint may be good
            self._refuse(error)
        wrong = checkpoint.not_restored(step)
        own_problems = [] if wrong is None else [f"{wrong} of rank {self._group.rank} is not as it was saved"]
        if problems := self._of_all_ranks(own_problems):
            self._refuse(CheckpointError(problems[0]))

    def _difference(self, checkpoint: Checkpoint) -> str | None:
        """Why the ranks' checkpoints of one epoch do not belong together; the same on every rank."""
        group = self._group
        together = [group.share(checkpoint.saved_together, rank) for rank in range(group.world_size)]
        other = next((rank for rank, saved in enumerate(together) if saved != together[0]), None)
        if other is not None:
            return f"that of rank {other} was not saved together with that of rank 0"
        for name, digest in self._digests(checkpoint).items():
            if group.largest(digest) != -group.largest(-digest):
                return f"the ranks' {name} differ"
        return None

    def _digests(self, checkpoint: Checkpoint) -> dict[str, float]:
        digests = {"parameters": checkpoint.parameter_digest(self._parameters)}
        if self._same_update:
            digests["optimizers' states"] = checkpoint.update_digest()
        return digests

    def _refuse(self, error: Exception) -> NoReturn:
        self._files.clear()
        raise CheckpointError(
            f"a checkpoint cannot be restored: {error}; it is removed, and `scaling run --retry-failed` "
            "begins this training anew"
        ) from error

    def _good(self) -> tuple[dict[int, Checkpoint], list[str]]:
        by_epoch: dict[int, Checkpoint] = {}
        notes: list[str] = []
        for path, content in self._files.read():
            try:
                if content is None:
                    raise CheckpointError("it cannot be read")
                read = Checkpoint.from_bytes(content, self._target)
                self._digests(read)  # which it has not without its tensors
                by_epoch.setdefault(read.progress.epoch, read)
            except WRONG_CONTENT as error:
                why = error if isinstance(error, CheckpointError) else f"it cannot be read: {error!r:.100}"
                notes.append(f"checkpoint {path} is not used: {why}")
        return by_epoch, notes

    def _of_all_ranks(self, notes: list[str]) -> list[str]:
        shared = [self._group.share(notes, rank) for rank in range(self._group.world_size)]
        return [note for notes in shared for note in notes]


def saved_of(cell: Cell, prepared: PreparedStep, context: RunContext) -> TrainingCheckpoints | None:
    """The checkpoints of a cell on this rank; None where it has no place for them."""
    if context.saved is None:
        return None
    module, group = prepared.step.replica.module, context.group
    target = Target.of(module, cell.id, group.rank, group.world_size)
    aggregator = create_aggregator(cell.aggregator, cell.aggregator_parameters)
    is_sharded = aggregator.ddp_path() == "fully_sharded"
    parameters = [] if is_sharded else [name for name, _ in module.named_parameters()]
    sites = {aggregator.site(layout) for layout in prepared.step.replica.layouts.values()}
    same_update = sites == {"replica"} and not is_sharded and not aggregator.shards_optimizer
    return TrainingCheckpoints(context.saved, target, parameters, group, same_update=same_update)
