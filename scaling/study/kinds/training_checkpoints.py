"""The checkpoints of a training that all ranks agree on.

1. Each rank reads its last two, and notes which are damaged or of another training, with the reason.
2. The ranks take the last epoch of which every rank has a good one, and on which their parameters are equal.
3. Where there is none the training begins anew, and what was left is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from scaling.errors import CheckpointError
from scaling.process_group import TorchGroup
from scaling.study.cells import Cell
from scaling.study.prepared_step import PreparedStep
from scaling.study.run_context import RunContext, SavedCheckpoints
from scaling.training.checkpoint import Checkpoint, Target
from scaling.training.step import Step


class TrainingCheckpoints:
    """This rank's checkpoints of one training. Collective.

    Args:
        files: where they are stored.
        target: what they are for.
        parameters: names of those that are equal on all ranks after each step.
        group: the ranks that train together.
    """

    def __init__(
        self, files: SavedCheckpoints, target: Target, parameters: Sequence[str], group: TorchGroup
    ) -> None:
        self._files, self._target, self._group = files, target, group
        self._parameters = list(parameters)

    def write(self, checkpoint: Checkpoint) -> None:
        """A new one."""
        self._files.write(checkpoint.to_bytes(self._target))

    def last_common(self) -> tuple[Checkpoint | None, list[str]]:
        """This rank's checkpoint of the epoch that all go on from, and what was not used, and why; the same
        notes on every rank.
        """
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
            digest = by_epoch[epoch].parameter_digest(self._parameters)
            if self._group.largest(digest) == -self._group.largest(-digest):
                return by_epoch[epoch], self._of_all_ranks(notes)
            if self._group.rank == 0:
                notes.append(f"checkpoints after epoch {epoch} are not used: the ranks' parameters differ")
        self._files.clear()
        notes = self._of_all_ranks(notes)
        return None, [*notes, "no checkpoint is good on all ranks: the training began anew"] if notes else []

    def restore(self, checkpoint: Checkpoint, step: Step, device: torch.device) -> None:
        """Puts the step where it was.

        Raises:
            CheckpointError: it does not fit; the checkpoints are removed, so that the next try begins anew.
        """
        try:
            checkpoint.restore(step, device)
        except (CheckpointError, RuntimeError, LookupError, TypeError) as error:
            self._refuse(error)

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
                by_epoch.setdefault(read.progress.epoch, read)
            except CheckpointError as error:
                notes.append(f"checkpoint {path} is not used: {error}")
        return by_epoch, notes

    def _of_all_ranks(self, notes: list[str]) -> list[str]:
        """By rank."""
        shared = [self._group.share(notes, rank) for rank in range(self._group.world_size)]
        return [note for notes in shared for note in notes]


def saved_of(cell: Cell, prepared: PreparedStep, context: RunContext) -> TrainingCheckpoints | None:
    """The checkpoints of a cell on this rank; None where it has no place for them."""
    if context.saved is None:
        return None
    module, group = prepared.step.replica.module, context.group
    target = Target.of(module, cell.id, group.rank, group.world_size)
    parameters = [name for name, _ in module.named_parameters()]
    return TrainingCheckpoints(context.saved, target, parameters, group)
