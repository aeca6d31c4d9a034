"""Trains one cell for its epochs and records what it learns.

Batches and augmentation depend on seed and epoch alone, so that worlds of different sizes see the same.
Seconds and energy of training hold all that the steps need, without evaluation and checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scaling.measure.clock import Clock
from scaling.process_group import Group
from scaling.training.compute import FLOAT32, Compute
from scaling.training.learning_rate import LearningRate
from scaling.training.local_updates import end_block
from scaling.training.noise_probe import NoiseProbe
from scaling.training.step import TrainingStep
from scaling.workloads.base import Loss, Split, cross_entropy
from scaling.workloads.sampling import crop_and_flip, epoch_batches, epoch_variations, shard

EVALUATION_BATCH = 1000
EVALUATION_TARGETS = 64_000  # of texts, whose logits are as many as their tokens times the vocabulary


@dataclass(frozen=True)
class TrainingPlan:
    """`seed`: of order and augmentation, with the epoch; `augmented`: cropped and mirrored at random."""

    global_batch: int
    epochs: int
    seed: int
    learning_rate: LearningRate | None = None
    augmented: bool = False


@dataclass(frozen=True)
class TrainingProgress:
    """`train_j`: joules that this rank's GPU took for the epochs; None where that is not known."""

    epoch: int = 0
    train_s: float = 0.0
    train_j: float | None = 0.0


EnergyMeter = Callable[[], Callable[[], float | None]]
"""Begins to count, and gives what ends it: joules, or None where they are not known."""


def train(
    step: TrainingStep,
    train_split: Split,
    test_split: Split,
    plan: TrainingPlan,
    group: Group,
    clock: Clock,
    seconds_of_slowest: Callable[[float], float],
    *,
    after: TrainingProgress = TrainingProgress(),
    energy_meter: EnergyMeter | None = None,
    after_each: Callable[[], None] = lambda: None,
    noise: NoiseProbe | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields one row after each epoch. `train_split`: on the step's device, or in host memory to copy each
    batch from; `group`: sums losses and hits between epochs, outside the training time; `seconds_of_slowest`:
    collective; `after`: what was trained before; the step has been brought there already.

    In a row `samples` are of all ranks, `train_s` of the slowest so far, `learning_rate` of the epoch's last
    step, `step_losses` means over the global batch before each update, `train_accuracy` on as many training
    samples as there are test samples, not augmented, `bytes_sent` by this rank in the epoch's steps."""
    train_s, train_j = after.train_s, after.train_j
    distance = -(-len(train_split) // max(1, len(test_split)))  # always the same samples, and no copy of them
    probed = Split(train_split.inputs[::distance], train_split.targets[::distance])
    replica = step.replica
    how = (group, replica.loss, after_each, replica.compute)
    for epoch in range(after.epoch + 1, plan.epochs + 1):
        feed = _Feed(train_split, plan, group, epoch, step.replica.trainable[0].device)
        losses = torch.empty(feed.num_steps, dtype=torch.float32, device=feed.device)
        group.meter.reset()
        joules = energy_meter() if energy_meter else None
        start = clock.mark()
        feed.prepare()
        rate = _take_steps(step, feed, plan, losses, after_each, noise)
        stop = clock.mark()
        bytes_sent = group.meter.bytes_sent
        clock.settle()
        taken_j = joules() if joules else None
        train_j = None if train_j is None or taken_j is None else train_j + taken_j
        train_s += seconds_of_slowest(clock.seconds(start, stop))
        step.check()
        group.all_reduce(losses)
        losses.div_(group.world_size)
        _, train_accuracy = evaluate(replica.module, probed, *how)
        test_loss, test_accuracy = evaluate(replica.module, test_split, *how)
        yield {
            "epoch": epoch,
            "samples": epoch * feed.num_steps * plan.global_batch,
            "train_s": train_s,
            "train_j": train_j,
            "learning_rate": rate,
            "step_losses": [float(loss) for loss in losses.cpu().numpy().astype(str)],  # shortest decimals
            "train_loss": losses.double().mean().item(),
            "bytes_sent": bytes_sent,
            "train_accuracy": train_accuracy,
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
            **(noise.finish_epoch() if noise is not None and noise.is_on else {}),
        }


def _take_steps(
    step: TrainingStep,
    feed: _Feed,
    plan: TrainingPlan,
    losses: Tensor,
    after_each: Callable[[], None],
    noise: NoiseProbe | None,
) -> float | None:
    """One epoch; fills `losses` with this rank's, and gives the last step's learning rate."""
    set_before: float | None = None
    for index in range(feed.num_steps):
        number = (feed.epoch - 1) * feed.num_steps + index
        if plan.learning_rate is not None:
            rate = plan.learning_rate.at(number, feed.num_steps, plan.epochs)
            if rate != set_before:
                step.set_learning_rate(rate)
                set_before = rate
        batch = feed.batch(index)
        losses[index] = step(*batch) if noise is None else noise.take(number, index, *batch)
        after_each()
    end_block(step)
    return set_before


class _Feed:
    def __init__(
        self, split: Split, plan: TrainingPlan, group: Group, epoch: int, device: torch.device
    ) -> None:
        self._split, self._plan, self.epoch = split, plan, epoch
        self.device = device
        batches = epoch_batches(len(split), plan.global_batch, plan.seed, epoch)
        self._own = shard(batches, group.rank, group.world_size).to(split.inputs.device)
        self.num_steps = len(self._own)

    def prepare(self) -> None:
        if self._plan.augmented:
            variations = epoch_variations(len(self._split), self._plan.seed, self.epoch)
            self._variations = variations.to(self.device)

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        samples = self._own[index]
        inputs, targets = (
            values[samples].to(self.device) for values in (self._split.inputs, self._split.targets)
        )
        if self._plan.augmented:
            inputs = crop_and_flip(inputs, self._variations[samples.to(self.device)])
        return inputs, targets


@torch.no_grad()
def evaluate(
    module: nn.Module,
    split: Split,
    group: Group,
    loss: Loss = cross_entropy,
    after_each: Callable[[], None] = lambda: None,
    compute: Compute = FLOAT32,
) -> tuple[float, float]:
    """Mean loss and accuracy over a split, on its device, each rank evaluating its share. Collective."""
    module.eval()
    device = next(module.parameters()).device
    bounds = [len(split) * rank // group.world_size for rank in range(group.world_size + 1)]
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    for chunk in _chunks(split, bounds[group.rank], bounds[group.rank + 1]):
        inputs, targets = (values.to(device) for values in chunk)
        with compute.casting(device.type):
            logits = module(inputs)
            batch_loss = loss(logits, targets)
        totals[0] += batch_loss.double() * targets.numel()
        totals[1] += (logits.argmax(-1) == targets).sum()
        after_each()
    module.train()
    group.all_reduce(totals)
    mean_loss, hits = (totals / split.targets.numel()).tolist()
    return mean_loss, hits


def _chunks(split: Split, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
    targets_each = split.targets[0].numel() if len(split) else 1
    size = max(1, min(EVALUATION_BATCH, EVALUATION_TARGETS // targets_each))
    for first in range(start, stop, size):
        last = min(first + size, stop)
        yield split.inputs[first:last], split.targets[first:last]
