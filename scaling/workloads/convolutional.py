"""Plain convolutional networks: `alexnet-r`, the small AlexNet for images of 32 x 32."""

from __future__ import annotations

import math

from torch import nn

from scaling.workloads.base import DataShape, Model

CHANNELS = (32, 32, 64)
KERNEL, WINDOW, STRIDE = 5, 3, 2


def build_alexnet_r(shape: DataShape, ceil_pooling: bool = False) -> nn.Module:
    """AlexNet-R: three convolutions of 5 x 5, each with pooling by 3 x 3 in steps of 2, and one linear layer.

    conv 32, max pooling, ReLU; conv 32, ReLU, max pooling; conv 64, ReLU, average pooling; linear. No local
    response normalisation, no dropout. 85,098 parameters for CIFAR-10; with `ceil_pooling` 89,578.

    Args:
        shape: images as [channels, height, width].
        ceil_pooling: a window that juts out over the edge counts, as in Caffe: 4 x 4 are left of 32 x 32, not
            3 x 3.

    Returns:
        A module: inputs [n, *input_shape] -> logits [n, num_classes]. Weights are torch's default.
    """

    def conv(inputs: int, outputs: int) -> nn.Module:
        return nn.Conv2d(inputs, outputs, KERNEL, padding=KERNEL // 2)

    def max_pooling() -> nn.Module:
        return nn.MaxPool2d(WINDOW, STRIDE, ceil_mode=ceil_pooling)

    features = nn.Sequential(
        conv(shape.input_shape[0], CHANNELS[0]), max_pooling(), nn.ReLU(),
        conv(CHANNELS[0], CHANNELS[1]), nn.ReLU(), max_pooling(),
        conv(CHANNELS[1], CHANNELS[2]), nn.ReLU(), nn.AvgPool2d(WINDOW, STRIDE, ceil_mode=ceil_pooling),
        nn.Flatten(),
    )  # fmt: skip
    height, width = (_pooled_thrice(size, ceil_pooling=ceil_pooling) for size in shape.input_shape[1:])
    return features.append(nn.Linear(CHANNELS[-1] * height * width, shape.num_classes))


def _pooled_thrice(size: int, *, ceil_pooling: bool) -> int:
    for _ in CHANNELS:
        steps = (size - WINDOW) / STRIDE
        size = (math.ceil(steps) if ceil_pooling else math.floor(steps)) + 1
    return size


alexnet_r = Model(
    name="alexnet-r",
    build=build_alexnet_r,
    shape=DataShape((3, 32, 32), 10),
    dataset="cifar10",
    source="AlexNet-R of S. Shi, Q. Wang, P. Xu, X. Chu, "
    '"Benchmarking state-of-the-art deep learning software tools", arXiv 1608.07249',
    parameters={"ceil_pooling": False},
)
