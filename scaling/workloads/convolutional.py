"""Plain convolutional networks: `alexnet-r`, for images of 32 x 32, and `alexnet-s`, for 224 x 224."""

from __future__ import annotations

import math

from torch import nn

from scaling.workloads.base import BENCHMARK_PAPER, DataShape, Model

CHANNELS = (32, 32, 64)
KERNEL, WINDOW, STRIDE = 5, 3, 2


def build_alexnet_r(shape: DataShape, ceil_pooling: bool = False) -> nn.Module:
    """AlexNet-R: 85,098 parameters for CIFAR-10; with `ceil_pooling`, where a window that juts out over the
    edge counts, as in Caffe (4 x 4 are left of 32 x 32, not 3 x 3), 89,578. No local response normalisation,
    no dropout; weights are torch's default."""

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


def _pooled_thrice(size: int, *, ceil_pooling: bool = False) -> int:
    for _ in range(3):
        steps = (size - WINDOW) / STRIDE
        size = (math.ceil(steps) if ceil_pooling else math.floor(steps)) + 1
    return size


def build_alexnet_s(shape: DataShape) -> nn.Module:
    """AlexNet-S: 62,378,344 parameters for images of 224 x 224; they are 63 x 63 at least. Convolutions have
    no groups; no local response normalisation, no dropout; weights are torch's default."""
    channels, *sizes = shape.input_shape

    def pooling() -> nn.Module:
        return nn.MaxPool2d(WINDOW, STRIDE)

    features = nn.Sequential(
        nn.Conv2d(channels, 96, 11, stride=4, padding=2), nn.ReLU(), pooling(),
        nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(), pooling(),
        nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(), pooling(),
        nn.Flatten(),
    )  # fmt: skip
    height, width = (_pooled_thrice((size + 2 * 2 - 11) // 4 + 1) for size in sizes)
    return features.extend(
        [
            nn.Linear(256 * height * width, 4096), nn.ReLU(),
            nn.Linear(4096, 4096), nn.ReLU(),
            nn.Linear(4096, shape.num_classes),
        ]
    )  # fmt: skip


alexnet_r = Model(
    name="alexnet-r",
    build=build_alexnet_r,
    shape=DataShape((3, 32, 32), 10),
    dataset="cifar10",
    source=f"AlexNet-R of {BENCHMARK_PAPER}",
    parameters={"ceil_pooling": False},
)

alexnet_s = Model(
    name="alexnet-s",
    build=build_alexnet_s,
    shape=DataShape((3, 224, 224), 1000),
    dataset="synthetic",
    source=f"AlexNet-S of {BENCHMARK_PAPER}, in its Torch version (hclhkbu/dlbench)",
)
