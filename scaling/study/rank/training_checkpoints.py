"""The checkpoints of a training that all ranks agree on.

1. Each rank reads its last two, and notes which are damaged or of another training, with the reason.
2. The ranks take the last epoch of which every rank has a good one, saved together with the others', and on
   which their parameters are equal, and their optimizers' states where every rank has all of it.
3. What each has restored then, residuals too, is compared with its checkpoint.
4. Where there is none the training begins anew, and what was left is removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import torch

from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import CheckpointError
from scaling.process_group import TorchGroup
from scaling.runtime.failures import failure_kind
from scaling.store.failures import DEVICE_LOST, OUT_OF_MEMORY
from scaling.study.cell import Cell
from scaling.study.rank.context import RunContext, SavedCheckpoints
from scaling.study.rank.prepared_step import PreparedStep
from scaling.training.checkpoint import WRONG_CONTENT, Checkpoint, Target
from scaling.training.step import TrainingStep


class TrainingCheckpoints:
    """This rank's checkpoints of one training. Collective. `parameters`: names of those that are equal on all
    ranks after each step; `same_update`: the optimizer's state is equal on all ranks too."""

    def __init__(
        self,
        files: SavedCheckpoints,
        target: Target,
        parameters: Sequence[str],
        group: TorchGroup,
        *,
        same_update: bool,
    ) -> None:
        self._files, self._target, self._group = files, target, group
        self._parameters, self._same_update = list(parameters), same_update

    def write(self, checkpoint: Checkpoint) -> None:
        together = self._group.share(secrets.token_hex(8))
        self._files.write(replace(checkpoint, saved_together=together).to_bytes(self._target))

    def last_common(self) -> tuple[Checkpoint | None, list[str]]:
        """This rank's checkpoint of the epoch that all go on from, and what was not used, and why; the same
        notes on every rank."""
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
        """Puts the step where it was. Raises CheckpointError: it does not fit, or a rank has restored
        something else; the checkpoints are gone, so that the next try begins anew."""
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
        """Of what is equal on all ranks."""
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
