"""Aggregators with planted faults, named in studies as module:Class."""

import os
import signal
import time
from dataclasses import dataclass

import torch

from scaling.aggregators.base import unmarked
from scaling.aggregators.native import AllReduce


def _last(state):
    return state.group.rank == state.group.world_size - 1


@dataclass(frozen=True)
class Raises(AllReduce):
    """The last rank raises; the others wait for it in the exchange."""

    name = "raises"

    def aggregate(self, state, gradient, phase=unmarked):
        if _last(state):
            raise RuntimeError("planted failure")
        return super().aggregate(state, gradient, phase)


@dataclass(frozen=True)
class OutOfMemory(AllReduce):
    """Every rank runs out of memory."""

    name = "out_of_memory"

    def aggregate(self, state, gradient, phase=unmarked):
        raise torch.OutOfMemoryError("tried to allocate too much")


@dataclass(frozen=True)
class Dies(AllReduce):
    """The last rank is killed."""

    name = "dies"

    def aggregate(self, state, gradient, phase=unmarked):
        if _last(state):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().aggregate(state, gradient, phase)


@dataclass(frozen=True)
class Hangs(AllReduce):
    """The last rank raises; the others never look up."""

    name = "hangs"

    def aggregate(self, state, gradient, phase=unmarked):
        if _last(state):
            raise RuntimeError("planted failure")
        time.sleep(1000)
        return gradient


@dataclass(frozen=True)
class Slow(AllReduce):
    """Takes its time, so that a test can step in."""

    name = "slow"

    def aggregate(self, state, gradient, phase=unmarked):
        time.sleep(0.5)
        return super().aggregate(state, gradient, phase)
