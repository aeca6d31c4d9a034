"""A small network with all that a checkpoint has to keep."""

from torch import nn

from scaling.workloads.base import Model


def build(shape):
    """Batch normalisation has statistics, dropout draws random numbers."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(4 * 36, shape.num_classes),
    )  # fmt: skip


dropping = Model("dropping", build, shape=None, dataset="digits", source="a test", parameters={})
