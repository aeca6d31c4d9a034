"""A model that is slow on one host and an aggregator that waits, named in studies as module:attribute."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from scaling.aggregators.base import unmarked
from scaling.aggregators.native import AllReduce
from scaling.workloads.base import Model


class SlowThere(nn.Module):
    """A layer; on the host that SCALING_TEST_SLOW_HOST names its forward pass takes its time."""

    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape.input_shape[-1] * shape.input_shape[-2], shape.num_classes)

    def forward(self, inputs):
        if platform.node() == os.environ["SCALING_TEST_SLOW_HOST"]:
            time.sleep(0.05)
        return self.layer(inputs.flatten(1))


slow_there = Model("slow_there", SlowThere, None, "digits", "these tests", {})


@dataclass(frozen=True)
class Waits(AllReduce):
    """Every rank waits until the tests say go."""

    name = "waits"

    def aggregate(self, state, gradient, phase=unmarked):
        while not Path(os.environ["SCALING_TEST_GO"]).exists():
            time.sleep(0.05)
        return super().aggregate(state, gradient, phase)
