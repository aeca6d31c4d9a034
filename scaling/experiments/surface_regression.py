"""Is a GPU worth it for a network of 171 parameters on a surface of 40,000 points?

The network of `surface` with Adam, the whole surface as one batch, the mean squared error as loss. A cell is
one number of points, way to run the step, and place of the data; its phases:

- `step`: one epoch, which is one optimizer update;
- `compile` or `capture`: what it takes, once, until the step can run compiled or as a CUDA graph;
- `train`: all epochs together, where the number of points is that of the fit.

That cell also tells how good the fit is, and gives it on a coarser grid as a picture.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from scaling.experiments.base import Budget, Experiment, LeftOutError, Point, steps
from scaling.experiments.surface import Activation, grid_points, surface_network
from scaling.experiments.training_step import capture

PICTURE_SIDE = 101
CURVE_POINTS = 100
"""Of the losses over the epochs so many are kept, evenly in the epochs' logarithm."""

LOADER_PILOT = 1000

Source = Callable[[], tuple[Tensor, Tensor]]


@final
@dataclass(frozen=True)
class SurfaceRegression(Experiment):
    """Time of an epoch over the number of points, and one complete training.

    Attributes:
        sides: points are on a grid of so many times so many.
        fit_side: with this grid the network is trained for all `epochs`, if the data is on the device.
        epochs: of the complete training.
        learning_rate: of Adam.
        activation: `relu`, as the network's source has it, or `tanh`, which fits this surface better.
        step_modes: of `eager`, `compiled` (torch.compile; at `fit_side` alone) and `captured` (a CUDA graph).
        data: of `device`, `host` (one copy to the GPU an epoch) and `loader` (torch's DataLoader, which
            puts the batch together point by point, in this process).
        seed: of the weights.
    """

    name: ClassVar[str] = "surface-regression"

    sides: tuple[PositiveInt, ...] = (10, 32, 100, 200, 316, 1000)
    fit_side: PositiveInt = 200
    epochs: PositiveInt = 2000
    learning_rate: PositiveFloat = 0.08
    activation: Activation = "relu"
    step_modes: tuple[Literal["eager", "compiled", "captured"], ...] = ("eager", "compiled", "captured")
    data: tuple[Literal["device", "host", "loader"], ...] = ("device", "host", "loader")
    seed: int = 1

    def points(self) -> list[Point]:
        """Every size, with the data on the device in every way, and from elsewhere eager."""
        return [
            {"points": side * side, **arm}
            for side in dict.fromkeys((*self.sides, self.fit_side))
            for arm in self._arms(side)
        ]

    def _arms(self, side: int) -> Iterator[Point]:
        for mode in self.step_modes:
            if mode == "eager":
                for place in self.data:
                    # In the CPU's memory the data is on the device.
                    here: Point = {"only_device": "cuda"} if place == "host" else {}
                    yield {"step": mode, "data": place, **here}
            elif mode == "captured":
                yield {"step": mode, "data": "device", "only_device": "cuda"}
            elif side == self.fit_side:
                yield {"step": mode, "data": "device"}

    def measure(
        self, point: Mapping[str, Any], device: torch.device, budget: Budget
    ) -> Iterator[dict[str, Any]]:
        """Seconds of an epoch; at the size of the fit also the training, the fit and the losses."""
        side = round(point["points"] ** 0.5)
        if point["data"] == "loader":
            _require_loader(point["points"], budget)
        training = SurfaceTraining(self, side, point["data"], device)
        yield {"fact": "samples", "value": point["points"]}
        step, made = _ready(training, point["step"])
        if made is not None:
            yield {"phase": "compile" if point["step"] == "compiled" else "capture", "seconds": made}
        yield from steps(budget.samples(step, device))
        if side == self.fit_side and point["data"] == "device":
            training.start_again()
            yield from training.whole(step)


class SurfaceTraining:
    """The network, its optimizer and where its data comes from.

    Args:
        settings: epochs, learning rate, activation and seed.
        side: of the grid.
        place: of the data.
        device: of the network.
    """

    def __init__(self, settings: SurfaceRegression, side: int, place: str, device: torch.device) -> None:
        self._settings, self._device = settings, device
        torch.manual_seed(settings.seed)
        self._network = surface_network(settings.activation).to(device)
        self._initial = [weight.detach().clone() for weight in self._network.parameters()]
        self._optimizer = torch.optim.Adam(
            self._network.parameters(),
            lr=settings.learning_rate,
            fused=True,
            capturable=device.type == "cuda",
        )
        self._source = _source(*grid_points(side), place, device)
        self._forward: Callable[[Tensor], Tensor] = self._network
        self.loss = torch.zeros((), device=device)

    def step(self) -> None:
        """One epoch; its loss, of before the update, is left in `loss`."""
        self._optimizer.zero_grad(set_to_none=True)
        inputs, heights = self._source()
        loss = nn.functional.mse_loss(self._forward(inputs), heights)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.loss.copy_(loss.detach())

    def compile(self) -> None:
        """From now on forward and backward pass are compiled, at their first use."""
        self._forward = torch.compile(self._network)

    @torch.no_grad()
    def start_again(self) -> None:
        """Initial weights, and the optimizer as new; in place, since a graph may be at work on them."""
        for weight, initial in zip(self._network.parameters(), self._initial, strict=True):
            weight.copy_(initial)
        for state in self._optimizer.state.values():
            for value in state.values():
                value.zero_()

    def whole(self, step: Callable[[], object]) -> Iterator[dict[str, Any]]:
        """The complete training: its time, its losses, and the fit."""
        num_epochs = self._settings.epochs
        kept: dict[int, Tensor] = {epoch: torch.zeros_like(self.loss) for epoch in curve_epochs(num_epochs)}
        _wait(self._device)
        start = time.perf_counter()
        for epoch in range(1, num_epochs + 1):
            step()
            if epoch in kept:  # every epoch's would be a kernel more for each
                kept[epoch].copy_(self.loss)
        _wait(self._device)
        yield {"phase": "train", "seconds": time.perf_counter() - start}
        yield {"fact": "epochs", "value": num_epochs}
        yield {"fact": "loss", "x": list(kept), "y": [float(loss) for loss in kept.values()]}
        yield from self._fit()

    @torch.inference_mode()
    def _fit(self) -> Iterator[dict[str, Any]]:
        inputs, heights = grid_points(self._settings.fit_side)
        residual = self._network(inputs.to(self._device)).cpu() - heights
        yield {"fact": "rms_residual", "value": float(residual.square().mean().sqrt())}
        yield {"fact": "largest_residual", "value": float(residual.abs().max())}
        yield {"fact": "rms_height", "value": float((heights - heights.mean()).square().mean().sqrt())}
        fit = self._network(grid_points(PICTURE_SIDE)[0].to(self._device)).cpu()
        rows = fit.view(PICTURE_SIDE, PICTURE_SIDE).tolist()
        yield {"fact": "fit", "value": PICTURE_SIDE, "grid": [[round(z, 4) for z in row] for row in rows]}


def curve_epochs(num_epochs: int) -> list[int]:
    """Epochs with losses that are kept, from the first to the last."""
    exponents = [place / (CURVE_POINTS - 1) for place in range(CURVE_POINTS)]
    return sorted({round(num_epochs**exponent) for exponent in exponents})


def _ready(training: SurfaceTraining, mode: str) -> tuple[Callable[[], object], float | None]:
    """The step to be called, and the seconds that it took to have it compiled or captured.

    Raises:
        LeftOutError: it cannot be compiled or captured here.
    """
    training.step()  # libraries set themselves up on first use; that is not compiling
    _wait(training.loss.device)
    if mode == "eager":
        return training.step, None
    start = time.perf_counter()
    if mode == "captured":
        replay = capture(training.step)
        return replay, time.perf_counter() - start
    training.compile()
    try:
        training.step()
    except Exception as error:  # what torch.compile raises without a compiler differs by version
        first_line = str(error).partition("\n")[0]
        raise LeftOutError(f"torch.compile fails: {type(error).__name__}: {first_line}") from error
    _wait(training.loss.device)
    return training.step, time.perf_counter() - start


def _source(inputs: Tensor, heights: Tensor, place: str, device: torch.device) -> Source:
    if place == "device":
        batch = inputs.to(device), heights.to(device)
        return lambda: batch
    if place == "host":
        return lambda: (inputs.to(device), heights.to(device))
    loader = DataLoader(TensorDataset(inputs, heights), batch_size=len(inputs))
    epochs = (batch for _ in itertools.count() for batch in loader)

    def next_batch() -> tuple[Tensor, Tensor]:
        loaded_inputs, loaded_heights = next(epochs)
        return loaded_inputs.to(device), loaded_heights.to(device)

    return next_batch


def _require_loader(num_points: int, budget: Budget) -> None:
    """Refuses numbers of points that a DataLoader puts together too slowly, by the time of a few."""
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
