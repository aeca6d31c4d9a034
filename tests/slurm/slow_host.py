"""A model that is slow on one host, named in studies as module:attribute."""

import os
import platform
import time

from torch import nn

from scaling.workloads.base import Model

SLOW_S = 0.05


class SlowThere(nn.Module):
    """A layer; on the host that SCALING_TEST_SLOW_HOST names its forward pass takes its time."""

    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape.input_shape[-1] * shape.input_shape[-2], shape.num_classes)

    def forward(self, inputs):
        if platform.node() == os.environ["SCALING_TEST_SLOW_HOST"]:
            time.sleep(SLOW_S)
        return self.layer(inputs.flatten(1))


slow_there = Model("slow_there", SlowThere, None, "digits", "these tests", {})
