"""A network and an exchange whose times are given, for `tune_quality.py`: on a CPU both sleep, as if a device
and a link did the work, so that the processors are free for what is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

from diagnosis_plants import SlowBackward
from torch import Tensor, nn

from scaling.aggregators.base import PhaseMarker, unmarked
from scaling.aggregators.native import AllReduce
from scaling.aggregators.state import AggregatorState
from scaling.workloads.base import declares

INPUTS, CLASSES = 64, 10
WIDTHS = (448, 96, 256, 512)
"""Of the hidden layers, in turn: gradients of 96 to 900 KiB."""


class _Timed(nn.Module):
    def __init__(self, layer: nn.Module, milliseconds: float) -> None:
        super().__init__()
        self.layer, self._milliseconds = layer, milliseconds

    def forward(self, inputs: Tensor) -> Tensor:
        timed: Tensor = SlowBackward.apply(self.layer(inputs), self._milliseconds)  # type: ignore[no-untyped-call]
        return timed


@declares((INPUTS,), CLASSES)
def timed_network(depth: int = 16, milliseconds: float = 1.0) -> nn.Module:
    """A fully connected network whose backward pass takes so long for each layer."""
    widths = [INPUTS, *(WIDTHS[number % len(WIDTHS)] for number in range(depth - 1))]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [_Timed(nn.Linear(before, after), milliseconds), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES))


@dataclass(frozen=True)
class TimedAllReduce(AllReduce):
    """Gloo's all-reduce behind a link of that latency and rate."""

    name = "timed_all_reduce"
    latency_ms: float = 0.5
    mb_per_s: float = 400.0

    def aggregate(self, state: AggregatorState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """Sleeps for what the link takes, then as the library."""
        if state.group.world_size > 1:
            with phase("communicate"):
                time.sleep(self.latency_ms / 1e3 + gradient.nbytes / (self.mb_per_s * 1e6))
        return super().aggregate(state, gradient, phase)
