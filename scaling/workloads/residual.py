"""Residual networks: `resnet-56`, for images of 32 x 32, and `resnet-50`, for 224 x 224."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from scaling.workloads.base import DataShape, Model

PAPER = 'K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", arXiv 1512.03385'


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    # Batch normalisation follows, which takes any bias away again.
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def _conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1, stride, bias=False)


class ResidualBlock(nn.Module):
    """No ReLU after the sum. The stride is that of the first convolution and of the shortcut, which has no
    parameters: it leaves rows and columns out, and zeros for the channels that the input lacks ("option A").
    """

    expansion = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs), nn.ReLU(),
            _conv3x3(outputs, outputs), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self._stride = stride
        self._missing = outputs - inputs

    def forward(self, inputs: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, outputs, h / stride, w / stride]."""
        shortcut = inputs[:, :, :: self._stride, :: self._stride]
        if self._missing:
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, 0, self._missing))
        return self.body(inputs) + shortcut


class Bottleneck(nn.Module):
    """The last convolution gives four times `width`. The stride is that of the 3 x 3 convolution and of the
    shortcut, which is a convolution by 1 x 1 with BN where the shape changes ("option B")."""

    expansion = 4  # channels that it gives, for each of its width

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.body = nn.Sequential(
            _conv1x1(inputs, width), nn.BatchNorm2d(width), nn.ReLU(),
            _conv3x3(width, width, stride), nn.BatchNorm2d(width), nn.ReLU(),
            _conv1x1(width, outputs), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(_conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, 4 width, h / stride, w / stride]."""
        return nn.functional.relu(self.body(inputs) + self.shortcut(inputs))


def _network(
    stem: list[nn.Module],
    block: type[ResidualBlock | Bottleneck],
    stages: Mapping[int, int],
    num_classes: int,
) -> nn.Module:
    """`stages`: width -> number of blocks, each stage but the first at half the size of the one before."""
    channels = first = next(iter(stages))
    layers = list(stem)
    for width, num_blocks in stages.items():
        for index in range(num_blocks):
            layers.append(block(channels, width, stride=2 if index == 0 and width != first else 1))
            channels = width * block.expansion
    head = nn.Linear(channels, num_classes)
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    nn.init.zeros_(head.bias)
    return network


def build_resnet_56(shape: DataShape) -> nn.Module:
    """ResNet-56: 853,018 parameters. Convolutions are normal with the variance 2 / (9 output channels), the
    linear layer's bias is 0."""
    stem = [_conv3x3(shape.input_shape[0], 16), nn.BatchNorm2d(16), nn.ReLU()]
    return _network(stem, ResidualBlock, {16: 9, 32: 9, 64: 9}, shape.num_classes)


def build_resnet_50(shape: DataShape) -> nn.Module:
    """ResNet-50: 25,557,032 parameters for 1,000 classes. Convolutions are normal with the variance 2 /
    (kernel size output channels), the linear layer's bias is 0."""
    first = nn.Conv2d(shape.input_shape[0], 64, 7, stride=2, padding=3, bias=False)
    stem = [first, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    return _network(stem, Bottleneck, {64: 3, 128: 4, 256: 6, 512: 3}, shape.num_classes)


resnet_56 = Model(
    name="resnet-56",
    build=build_resnet_56,
    shape=DataShape((3, 32, 32), 10),
    dataset="cifar10",
    source=f"{PAPER}; no ReLU after a sum, as in the Torch version for arXiv 1608.07249 (hclhkbu/dlbench)",
)

resnet_50 = Model(
    name="resnet-50",
    build=build_resnet_50,
    shape=DataShape((3, 224, 224), 1000),
    dataset="synthetic",
    source=f"{PAPER}; the stride is in the 3 x 3 convolutions, as in facebookarchive/fb.resnet.torch",
)
