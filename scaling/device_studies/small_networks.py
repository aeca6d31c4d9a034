"""When is a GPU worth it for a small network? Training steps of perceptrons of many sizes, on CPU and GPU.

Sweeps around one point (`inputs` features, `depth` hidden layers of `width`, `batch` samples): every width at
every batch, then depths and numbers of input features. Also recurrent networks, each with a
perceptron of as many parameters that takes the same sequence at once. On the CPU with each number of
threads, on the GPU eager and captured: launching kernels decides the time of a small network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from pydantic import PositiveInt

from scaling.device_studies.base import Budget, Experiment, Point

if TYPE_CHECKING:
    import torch
    from torch import nn

NUM_CLASSES = 10
SEQUENCE_LENGTH = 32
SEQUENCE_INPUTS = 16
"""What a recurrent network reads: so many numbers, so many times. A perceptron takes all at once."""


@final
@dataclass(frozen=True)
class SmallNetworks(Experiment):
    """Where the GPU begins to win.

    Attributes:
        inputs, depth, width, batch: the point around which one is varied at a time.
        widths, batches: every width is measured at every batch.
        depths: hidden layers.
        input_sizes: features of a sample.
        equal_parameters: sizes at which a recurrent network is compared with a perceptron; none: not at all.
        threads: of the CPU; "all" is every core.
    """

    name: ClassVar[str] = "small-networks"

    inputs: PositiveInt = 64
    depth: PositiveInt = 2
    width: PositiveInt = 128
    batch: PositiveInt = 64
    widths: tuple[PositiveInt, ...] = (10, 32, 128, 512, 2048, 8192)
    batches: tuple[PositiveInt, ...] = (1, 8, 64, 512, 8192)
    depths: tuple[PositiveInt, ...] = (1, 2, 4, 8, 16, 32)
    input_sizes: tuple[PositiveInt, ...] = (4, 64, 1024, 16384, 131072, 1_000_000)
    equal_parameters: tuple[PositiveInt, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    threads: tuple[PositiveInt | Literal["all"], ...] = (1, 4, "all")

    def points(self) -> list[Point]:
        """The sweeps, each network once for every number of threads, and on the GPU eager and captured."""
        arms: list[Point] = [
            {"step": "eager", "only_device": "cpu", "threads": threads} for threads in self.threads
        ]
        arms += [{"step": step, "only_device": "cuda"} for step in ("eager", "captured")]
        return [{**network, **arm} for network in self._networks() for arm in arms]

    def _networks(self) -> list[Point]:
        base = {"inputs": self.inputs, "depth": self.depth, "width": self.width, "batch": self.batch}
        varied = [
            *({**base, "width": width, "batch": batch} for batch in self.batches for width in self.widths),
            *({**base, "depth": depth} for depth in self.depths),
            *({**base, "inputs": inputs} for inputs in self.input_sizes),
        ]
        perceptrons: list[Point] = [
            {"network": "mlp", "equal_parameters": 0, **settings} for settings in varied
        ]
        unique = {tuple(point.items()): point for point in perceptrons}
        return [*unique.values(), *(point for size in self.equal_parameters for point in self._pair(size))]

    def _pair(self, size: int) -> tuple[Point, Point]:
        """A recurrent network and a perceptron of about that many parameters."""
        common = {"equal_parameters": size}
        flat = SEQUENCE_INPUTS * SEQUENCE_LENGTH
        recurrent = {"inputs": SEQUENCE_INPUTS, "depth": 1, "width": lstm_width(size), "batch": self.batch}
        forward = {"inputs": flat, "depth": self.depth, "width": mlp_width(size, flat, self.depth)}
        return (
            {"network": "lstm", **common, **recurrent},
            {"network": "mlp", **common, **forward, "batch": self.batch},
        )

    def measure(
        self, point: Mapping[str, Any], device: torch.device, budget: Budget
    ) -> Iterator[dict[str, Any]]:
        """Seconds of a training step, and the network's parameters."""
        import torch

        from scaling.device_studies.training_step import num_parameters, timed, training_step

        with device:
            module = _network(point)
        yield {"fact": "parameters", "value": num_parameters(module)}
        size = (SEQUENCE_LENGTH, point["inputs"]) if point["network"] == "lstm" else (point["inputs"],)

        def make(batch: int) -> Any:
            inputs = torch.randn(batch, *size, device=device)
            targets = torch.randint(NUM_CLASSES, (batch,), device=device)
            return training_step(module, inputs, targets, captured=point["step"] == "captured")

        yield from timed(make, point["batch"], device, budget)


def _network(point: Mapping[str, Any]) -> nn.Module:
    from scaling.device_studies.lstm_training import SequenceClassifier
    from scaling.workloads.base import DataShape
    from scaling.workloads.networks import build_mlp

    if point["network"] == "lstm":
        return SequenceClassifier("fused", point["inputs"], point["width"], NUM_CLASSES)
    return build_mlp(DataShape((point["inputs"],), NUM_CLASSES), [point["width"]] * point["depth"])


def lstm_width(parameters: int) -> int:
    """The width at which a recurrent network has about that many: 4 w (inputs + w + 2) + (w + 1) classes."""
    linear = 4 * (SEQUENCE_INPUTS + 2) + NUM_CLASSES
    return max(1, round(_positive_root(4.0, linear, NUM_CLASSES - parameters)))


def mlp_width(parameters: int, inputs: int, depth: int) -> int:
    """The width w at which a perceptron has about that many.

    They are (depth - 1) w (w + 1) + (inputs + 1) w + (w + 1) classes.
    """
    linear = inputs + 1 + NUM_CLASSES + depth - 1
    return max(1, round(_positive_root(depth - 1.0, linear, NUM_CLASSES - parameters)))


def _positive_root(square: float, linear: float, constant: float) -> float:
    if square == 0:
        return -constant / linear
    return (-linear + math.sqrt(linear * linear - 4 * square * constant)) / (2 * square)
