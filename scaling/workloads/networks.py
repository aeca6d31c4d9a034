"""Fully connected networks: `fcn_r`, `fcn_s` and `fcn_s4`, as published, and `mlp`, of any size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

from pydantic import PositiveInt
from torch import nn

from scaling.workloads.base import BENCHMARK_PAPER, DataShape, Model

FCN_S_SHAPE = DataShape((26752,), 26752)

# Weights are uniform in +-gain sqrt(6 / (inputs + outputs)): X. Glorot, Y. Bengio, "Understanding the
# difficulty of training deep feedforward neural networks", AISTATS 2010. Four times as wide for the logistic
# sigmoid, whose slope at 0 is 1/4: Y. Bengio, "Practical recommendations for gradient-based training of deep
# architectures", arXiv 1206.5533. With gain 1, SGD on MNIST (batch 64, rate 0.05) is still at
# chance after 100 steps.
SIGMOID_GAIN = 4.0


def _fully_connected(shape: DataShape, hidden: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Flatten, then a linear layer per width with `activation` between; torch's default weights."""
    widths = [math.prod(shape.input_shape), *hidden, shape.num_classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for num_inputs, num_outputs in itertools.pairwise(widths):
        layers += [nn.Linear(num_inputs, num_outputs), activation()]
    # The last layer gives logits: no activation.
    return nn.Sequential(*layers[:-1])


def _sigmoid_network(shape: DataShape, hidden: Sequence[int]) -> nn.Module:
    """Weights are Xavier uniform, gain 4 in the hidden layers and 1 in the last; biases are 0."""
    network = _fully_connected(shape, hidden, nn.Sigmoid)
    linears = [layer for layer in network if isinstance(layer, nn.Linear)]
    for layer in linears:
        nn.init.xavier_uniform_(layer.weight, gain=1.0 if layer is linears[-1] else SIGMOID_GAIN)
        nn.init.zeros_(layer.bias)
    return network


def build_mlp(shape: DataShape, hidden: list[PositiveInt]) -> nn.Module:
    """ReLU layers of the widths `hidden`; without any, softmax regression. Weights are torch's default."""
    return _fully_connected(shape, hidden, nn.ReLU)


def _published(name: str, hidden: Sequence[int], shape: DataShape, dataset: str, source: str) -> Model:
    return Model(
        name, partial(_sigmoid_network, hidden=hidden), shape, dataset, f"{source} {BENCHMARK_PAPER}"
    )


OF_PROGRAMS = "FCN-S, three hidden layers as in the programs (hclhkbu/dlbench) for"
OF_TEXT = "FCN-S, four hidden layers as in the text of"
# 14,205,962 parameters, 117,997,696 and 122,194,048.
fcn_r = _published("fcn-r", (2048, 4096, 1024), DataShape((1, 28, 28), 10), "mnist", "FCN-R of")
fcn_s = _published("fcn-s", (2048,) * 3, FCN_S_SHAPE, "synthetic", OF_PROGRAMS)
fcn_s4 = _published("fcn-s4", (2048,) * 4, FCN_S_SHAPE, "synthetic", OF_TEXT)

mlp = Model(
    name="mlp",
    build=build_mlp,
    shape=None,
    dataset="digits",
    source="a multi-layer perceptron of any size, for quick studies",
    parameters={"hidden": [128]},
)
