"""The training of `surface-regression`: the surface that it fits, and its network, 2-20-5-1.

The surface is `peaks` of MATLAB over [-3, 3] squared (`height`). The layers and their initial weights are
those of an article on Flux and Julia on Medium, `Dense(2=>20, relu), Dense(20=>5, relu), Dense(5=>1)`; grid,
rate of Adam and epochs are parameters of this study."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from scaling.device_studies.base import Budget, LeftOutError, Samples, facts
from scaling.device_studies.training_step import capture

PICTURE_SIDE = 101
CURVE_POINTS = 100  # of the losses over the epochs so many are kept, evenly in the epochs' logarithm
LOADER_PILOT = 1000
Source = Callable[[], tuple[Tensor, Tensor]]
EXTENT = 3.0


def height(x: Tensor, y: Tensor) -> Tensor:
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


def surface_network(activation: str = "relu") -> nn.Sequential:
    """171 parameters, by torch's global seed; weights as of X. Glorot, Y. Bengio, "Understanding the
    difficulty of training deep feedforward neural networks" (2010), biases zero, as Flux's `Dense` has
    them."""
    nonlinear = {"relu": nn.ReLU, "tanh": nn.Tanh}[activation]
    network = nn.Sequential(nn.Linear(2, 20), nonlinear(), nn.Linear(20, 5), nonlinear(), nn.Linear(5, 1))
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return network


class SurfaceTraining:
    def __init__(self, settings: Any, side: int, place: str, device: torch.device) -> None:
        self._settings, self._device = settings, device
        torch.manual_seed(settings.seed)
        self._network = surface_network(settings.activation).to(device)
        self._initial = [weight.detach().clone() for weight in self._network.parameters()]
        how = {"lr": settings.learning_rate, "fused": True, "capturable": device.type == "cuda"}
        self._optimizer = torch.optim.Adam(self._network.parameters(), **how)
        self._source = _source(*grid_points(side), place, device)
        self.forward: Callable[[Tensor], Tensor] = self._network
        self.loss = torch.zeros((), device=device)

    def step(self) -> None:
        """One epoch; its loss, of before the update, is left in `loss`."""
        self._optimizer.zero_grad(set_to_none=True)
        inputs, heights = self._source()
        loss = nn.functional.mse_loss(self.forward(inputs), heights)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.loss.copy_(loss.detach())

    @torch.no_grad()
    def start_again(self) -> None:
        """Initial weights, and the optimizer as new; in place, since a graph may be at work on them."""
        for weight, initial in zip(self._network.parameters(), self._initial, strict=True):
            weight.copy_(initial)
        for state in self._optimizer.state.values():
            for value in state.values():
                value.zero_()

    def whole(self, step: Callable[[], object]) -> Samples:
        num_epochs = self._settings.epochs
        places = sorted({round(num_epochs ** (at / (CURVE_POINTS - 1))) for at in range(CURVE_POINTS)})
        kept: dict[int, Tensor] = {epoch: torch.zeros_like(self.loss) for epoch in places}
        _wait(self._device)
        start = time.perf_counter()
        for epoch in range(1, num_epochs + 1):
            step()
            if epoch in kept:  # every epoch's would be a kernel more for each
                kept[epoch].copy_(self.loss)
        _wait(self._device)
        yield {"phase": "train", "seconds": time.perf_counter() - start}
        yield from facts(epochs=num_epochs)
        yield {"fact": "loss", "x": list(kept), "y": [float(loss) for loss in kept.values()]}
        yield from self._fit()

    @torch.inference_mode()
    def _fit(self) -> Samples:
        inputs, heights = grid_points(self._settings.fit_side)
        residual = self._network(inputs.to(self._device)).cpu() - heights
        rms, rms_height = (float(one.square().mean().sqrt()) for one in (residual, heights - heights.mean()))
        yield from facts(
            rms_residual=rms, largest_residual=float(residual.abs().max()), rms_height=rms_height
        )
        fit = self._network(grid_points(PICTURE_SIDE)[0].to(self._device)).cpu()
        rows = fit.view(PICTURE_SIDE, PICTURE_SIDE).tolist()
        yield {"fact": "fit", "value": PICTURE_SIDE, "grid": [[round(z, 4) for z in row] for row in rows]}


def ready(training: SurfaceTraining, mode: str) -> tuple[Callable[[], object], float | None]:
    """The step to be called, and the seconds that compiling or capturing took; LeftOutError: it fails."""
    training.step()  # libraries set themselves up on first use; that is not compiling
    _wait(training.loss.device)
    if mode == "eager":
        return training.step, None
    start = time.perf_counter()
    if mode == "captured":
        return capture(training.step), time.perf_counter() - start
    training.forward = torch.compile(training.forward)
    try:
        training.step()
    except Exception as error:  # what torch.compile raises without a compiler differs by version
        first_line = str(error).partition("\n")[0]
        raise LeftOutError(f"torch.compile fails: {type(error).__name__}: {first_line}") from error
    _wait(training.loss.device)
    return training.step, time.perf_counter() - start


def _source(inputs: Tensor, heights: Tensor, place: str, device: torch.device) -> Source:
    if place == "host":
        return lambda: (inputs.to(device), heights.to(device))
    if place == "device":
        batch = inputs.to(device), heights.to(device)
        return lambda: batch
    loader = DataLoader(TensorDataset(inputs, heights), batch_size=len(inputs))
    epochs = ((loaded[0].to(device), loaded[1].to(device)) for _ in itertools.count() for loaded in loader)
    return lambda: next(epochs)


def require_loader(num_points: int, budget: Budget) -> None:
    """Raises LeftOutError where a DataLoader is too slow, by the time of a few points."""
    num_tried = min(num_points, LOADER_PILOT)
    points = TensorDataset(torch.zeros(num_tried, 2), torch.zeros(num_tried, 1))
    start = time.perf_counter()
    next(iter(DataLoader(points, batch_size=num_tried)))
    seconds = time.perf_counter() - start
    budget.require(
        seconds * num_points / num_tried,
        f"a DataLoader takes {seconds:.2g} s to put {num_tried:,} points together",
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
