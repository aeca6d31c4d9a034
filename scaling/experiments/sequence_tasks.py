"""Sequences to classify: one synthetic task, and images of digits that are read row by row.

- `temporal-order`: a sequence of symbols, one of six at a step; two of them, each X or Y, count, and stand
  somewhere in its second and its third quarter, so that one has to be remembered. Four classes: XX,
  XY, YX, YY. Easier than the original, whose sequences have a hundred steps.
- `mnist-rows`, `digits-rows`: an image is a sequence of its rows, from above; ten classes.

Reference: S. Hochreiter, J. Schmidhuber, "Long short-term memory", Neural Computation 9 (1997), task 6a;
Q. V. Le, N. Jaitly, G. E. Hinton, "A simple way to initialize recurrent networks of rectified linear units",
arXiv 1504.00941, for images as sequences (there pixel by pixel).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scaling.workloads.registry import create_dataset

NUM_SYMBOLS = 6
NUM_DISTRACTORS = 4
"""The first four symbols count nothing; the last two are X and Y."""

DATA_SEED = 0
"""Of the synthetic task's sequences: the same for every seed of a training."""


@dataclass(frozen=True)
class SequenceTask:
    """Sequences in memory.

    Attributes:
        inputs, targets: to train on: [n, length, features] float32, [n] int64.
        test_inputs, test_targets: held out.
        num_classes: targets are 0 to num_classes - 1.
    """

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    num_classes: int

    def to(self, device: torch.device, dtype: torch.dtype) -> SequenceTask:
        """The same there, inputs of that type."""
        return SequenceTask(
            self.inputs.to(device, dtype),
            self.targets.to(device),
            self.test_inputs.to(device, dtype),
            self.test_targets.to(device),
            self.num_classes,
        )


def temporal_order(length: int, num_train: int, num_test: int) -> SequenceTask:
    """The synthetic task, from a generator of its own."""
    generator = torch.Generator().manual_seed(DATA_SEED)
    num_all = num_train + num_test
    symbols = torch.randint(NUM_DISTRACTORS, (num_all, length), generator=generator)
    marks = torch.randint(2, (num_all, 2), generator=generator)
    quarter = length // 4
    within = torch.randint(quarter, (num_all, 2), generator=generator)
    places = within + torch.tensor([quarter, 2 * quarter])
    symbols.scatter_(1, places, NUM_DISTRACTORS + marks)
    inputs = nn.functional.one_hot(symbols, NUM_SYMBOLS).float()
    targets = marks @ torch.tensor([2, 1])
    return SequenceTask(
        inputs[:num_train], targets[:num_train], inputs[num_train:], targets[num_train:], num_classes=4
    )


def image_rows(name: str, shrink: int, num_train: int, num_test: int) -> SequenceTask:
    """The first images of a data set of grey ones, row by row.

    Args:
        name: of the data set, `mnist` or `digits`.
        shrink: so many pixels in both directions become one, their mean.
        num_train, num_test: at most.

    Raises:
        DataError: a file is missing or damaged.
    """
    dataset = create_dataset(name)
    splits = dataset.load(dataset.shape(None), num_train, DATA_SEED)
    train, test = splits.train, splits.test

    def rows(images: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(images, shrink).squeeze(1)

    return SequenceTask(
        rows(train.inputs[:num_train]),
        train.targets[:num_train],
        rows(test.inputs[:num_test]),
        test.targets[:num_test],
        num_classes=dataset.shape(None).num_classes,
    )
