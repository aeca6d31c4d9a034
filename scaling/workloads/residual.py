"""Residual networks: `resnet-56`, for images of 32 x 32, and `resnet-50`, for 224 x 224."""

from __future__ import annotations

from torch import Tensor, nn

from scaling.workloads.base import DataShape, Model

STAGES = (16, 32, 64)
BLOCKS_PER_STAGE = 9

WIDTHS_50 = (64, 128, 256, 512)
BLOCKS_50 = (3, 4, 6, 3)
EXPANSION = 4
"""Channels that a bottleneck gives, for each of its width."""

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
        result: Tensor = self.body(inputs) + shortcut
        return result


def build_resnet_56(shape: DataShape) -> nn.Module:
    """ResNet-56: 853,018 parameters. Convolutions are normal with the variance 2 / (9 output channels), the
    linear layer's bias is 0."""
    first = _conv3x3(shape.input_shape[0], STAGES[0])
    layers: list[nn.Module] = [first, nn.BatchNorm2d(STAGES[0]), nn.ReLU()]
    channels = STAGES[0]
    for outputs in STAGES:
        for _ in range(BLOCKS_PER_STAGE):
            layers.append(ResidualBlock(channels, outputs, stride=1 if outputs == channels else 2))
            channels = outputs
    return _with_head(layers, channels, shape)


class Bottleneck(nn.Module):
    """The last convolution gives four times `width`. The stride is that of the 3 x 3 convolution and of the
    shortcut, which is a convolution by 1 x 1 with BN where the shape changes ("option B")."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
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


def build_resnet_50(shape: DataShape) -> nn.Module:
    """ResNet-50: 25,557,032 parameters for 1,000 classes. Convolutions are normal with the variance 2 /
    (kernel size output channels), the linear layer's bias is 0."""
    layers: list[nn.Module] = [
        nn.Conv2d(shape.input_shape[0], WIDTHS_50[0], 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(WIDTHS_50[0]), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
    ]  # fmt: skip
    channels = WIDTHS_50[0]
    for width, num_blocks in zip(WIDTHS_50, BLOCKS_50, strict=True):
        for index in range(num_blocks):
            halves = index == 0 and width != WIDTHS_50[0]
            layers.append(Bottleneck(channels, width, stride=2 if halves else 1))
            channels = width * EXPANSION
    return _with_head(layers, channels, shape)


def _with_head(layers: list[nn.Module], channels: int, shape: DataShape) -> nn.Module:
    head = nn.Linear(channels, shape.num_classes)
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    return network


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
