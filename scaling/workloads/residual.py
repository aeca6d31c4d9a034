"""Residual networks for images of 32 x 32: `resnet-56`."""

from __future__ import annotations

from torch import Tensor, nn

from scaling.workloads.base import DataShape, Model

STAGES = (16, 32, 64)
BLOCKS_PER_STAGE = 9


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    # Batch normalisation follows, which takes any bias away again.
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class Block(nn.Module):
    """conv, BN, ReLU, conv, BN, and the input added to it: no ReLU after the sum.

    Args:
        inputs, outputs: channels.
        stride: of the first convolution, and of the shortcut, which has no parameters: it leaves rows and
            columns out, and zeros for the channels that the input lacks ("option A").
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
    """ResNet-56: 3 x 3 convolutions, 16 channels and then three stages of nine blocks; 853,018 parameters.

    Stages have 16, 32 and 64 channels, the second and third at half the size of the one before. The average
    over the image and a linear layer follow.

    Args:
        shape: images as [channels, height, width].

    Returns:
        A module: inputs [n, *input_shape] -> logits [n, num_classes]. Convolutions are normal with the
        variance 2 / (9 output channels), the linear layer's bias is 0.
    """
    layers: list[nn.Module] = [
        _conv3x3(shape.input_shape[0], STAGES[0]), nn.BatchNorm2d(STAGES[0]), nn.ReLU(),
    ]  # fmt: skip
    channels = STAGES[0]
    for outputs in STAGES:
        for _ in range(BLOCKS_PER_STAGE):
            layers.append(Block(channels, outputs, stride=1 if outputs == channels else 2))
            channels = outputs
    network = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, shape.num_classes)
    )
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
    source='K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", '
    "arXiv 1512.03385; no ReLU after a sum, as in the Torch version for arXiv 1608.07249 (hclhkbu/dlbench)",
    parameters={},
)
