"""The surface that `surface-regression` fits, and its network: three layers, 2-20-5-1.

    z = 3 (1 - x)^2 exp(-x^2 - (y + 1)^2) - 10 (x/5 - x^3 - y^5) exp(-x^2 - y^2) - (1/3) exp(-(x + 1)^2 - y^2)

over [-3, 3] squared; it is known as `peaks` from MATLAB.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXTENT = 3.0


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


def surface_network() -> nn.Sequential:
    """2-20-5-1 with tanh behind both hidden layers; 171 parameters, torch's default weights."""
    return nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 5), nn.Tanh(), nn.Linear(5, 1))
