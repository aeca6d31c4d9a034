"""Trains one cell for its epochs and records what it learns.

The order of the global batches depends on seed and epoch alone, and each rank takes its contiguous share of
every global batch, so that worlds of different sizes see the same batches. Seconds of training leave
evaluation out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scaling.measure.clock import Clock
from scaling.process_group import Group
from scaling.training.step import Step
from scaling.workloads.base import Split
from scaling.workloads.sampling import epoch_batches, shard

EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class TrainingPlan:
    """What is trained on: batches, seed and length.

    Attributes:
        global_batch: samples of all ranks in a step.
        epochs: passes over the training samples; the last incomplete batch of each is dropped.
        seed: decides, with the epoch, the order of the samples.
    """

    global_batch: int
    epochs: int
    seed: int


def train(
    step: Step,
    train_split: Split,
    test_split: Split,
    plan: TrainingPlan,
    group: Group,
    clock: Clock,
    seconds_of_slowest: Callable[[float], float],
) -> Iterator[dict[str, Any]]:
    """Trains, yielding one row after each epoch.

    Args:
        step: this rank's training step.
        train_split: all training samples, on the step's device.
        test_split: all test samples, there too; each rank evaluates a share.
        plan: batches, epochs and seed.
        group: the ranks that train together; sums losses and hits between epochs, outside the training time.
        clock: this rank's.
        seconds_of_slowest: the largest of the ranks' values. Collective.

    Yields:
        `epoch` (from 1), `train_s` (seconds of training so far, slowest rank), `step_losses` (mean over the
        global batch, before each update), `train_loss` (their mean), `test_loss`, `test_accuracy`,
        `bytes_sent` (by this rank, in the epoch's steps).
    """
    device = train_split.inputs.device
    train_s = 0.0
    for epoch in range(1, plan.epochs + 1):
        batches = epoch_batches(len(train_split), plan.global_batch, plan.seed, epoch)
        own = shard(batches, group.rank, group.world_size).to(device)
        losses = torch.empty(len(own), dtype=torch.float32, device=device)
        group.meter.reset()
        start = clock.mark()
        for index, samples in enumerate(own):
            losses[index] = step(train_split.inputs[samples], train_split.targets[samples])
        stop = clock.mark()
        bytes_sent = group.meter.bytes_sent
        clock.settle()
        train_s += seconds_of_slowest(clock.seconds(start, stop))
        group.all_reduce(losses)
        losses.div_(group.world_size)
        test_loss, test_accuracy = evaluate(step.replica.module, test_split, group)
        yield {
            "epoch": epoch,
            "train_s": train_s,
            "step_losses": losses.tolist(),
            "train_loss": losses.double().mean().item(),
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
            "bytes_sent": bytes_sent,
        }


@torch.no_grad()
def evaluate(module: nn.Module, split: Split, group: Group) -> tuple[float, float]:
    """Mean cross-entropy and accuracy over a split, each rank evaluating its share. Collective."""
    module.eval()
    bounds = [len(split) * rank // group.world_size for rank in range(group.world_size + 1)]
    totals = torch.zeros(2, dtype=torch.float64, device=split.inputs.device)
    for inputs, labels in _chunks(split, bounds[group.rank], bounds[group.rank + 1]):
        logits, targets = module(inputs).flatten(0, -2), labels.flatten()
        totals[0] += nn.functional.cross_entropy(logits, targets, reduction="sum")
        totals[1] += (logits.argmax(1) == targets).sum()
    module.train()
    group.all_reduce(totals)
    loss, hits = (totals / split.targets.numel()).tolist()
    return loss, hits


def _chunks(split: Split, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
    for first in range(start, stop, EVALUATION_BATCH):
        last = min(first + EVALUATION_BATCH, stop)
        yield split.inputs[first:last], split.targets[first:last]
