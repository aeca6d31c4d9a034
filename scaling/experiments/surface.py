"""The surface that `surface-regression` fits, and its network: three layers, 2-20-5-1.

    z = 3 (1 - x)^2 exp(-x^2 - (y + 1)^2) - 10 (x/5 - x^3 - y^5) exp(-x^2 - y^2) - (1/3) exp(-(x + 1)^2 - y^2)

over [-3, 3] squared; it is known as `peaks` from MATLAB.

The network is that of an article on Flux and Julia on Medium, `Dense(2=>20, relu), Dense(20=>5, relu),
Dense(5=>1)`, with its initial weights. Only the layers are claimed to be the source's: grid, rate of Adam and
epochs are parameters of this study, and torch computes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

EXTENT = 3.0

Activation = Literal["relu", "tanh"]


def height(x: Tensor, y: Tensor) -> Tensor:
    """z at every (x, y)."""
    return (
        3 * (1 - x) ** 2 * torch.exp(-(x**2) - (y + 1) ** 2)
        - 10 * (x / 5 - x**3 - y**5) * torch.exp(-(x**2) - y**2)
        - torch.exp(-((x + 1) ** 2) - y**2) / 3
    )


def grid_points(side: int) -> tuple[Tensor, Tensor]:
    """A square grid of `side` x `side` points, y fastest: (x, y) [side^2, 2] and z [side^2, 1], float32."""
    axis = torch.linspace(-EXTENT, EXTENT, side, dtype=torch.float64)
    x, y = torch.meshgrid(axis, axis, indexing="ij")
    inputs = torch.stack([x.flatten(), y.flatten()], dim=1)
    heights = height(inputs[:, :1], inputs[:, 1:])
    return inputs.float(), heights.float()


def surface_network(activation: Activation = "relu") -> nn.Sequential:
    """2-20-5-1, 171 parameters, by torch's global seed.

    Weights start as those of Flux's `Dense`: uniform by X. Glorot, Y. Bengio, "Understanding the difficulty
    of training deep feedforward neural networks" (2010), and biases at zero.

    Args:
        activation: behind both hidden layers; the source's is relu.
    """
    nonlinear = {"relu": nn.ReLU, "tanh": nn.Tanh}[activation]
    network = nn.Sequential(nn.Linear(2, 20), nonlinear(), nn.Linear(20, 5), nonlinear(), nn.Linear(5, 1))
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return network
