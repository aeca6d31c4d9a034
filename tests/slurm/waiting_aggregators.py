"""Aggregators for faults at a known moment, named in studies as module:Class."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from scaling.aggregators.base import unmarked
from scaling.aggregators.native import AllReduce


@dataclass(frozen=True)
class Waits(AllReduce):
    """Every rank waits until the tests say go."""

    name = "waits"

    def aggregate(self, state, gradient, phase=unmarked):
        while not Path(os.environ["SCALING_TEST_GO"]).exists():
            time.sleep(0.05)
        return super().aggregate(state, gradient, phase)
