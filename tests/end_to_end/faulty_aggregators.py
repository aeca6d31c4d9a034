"""Aggregators with planted faults, named in studies as module:Class."""

import os
import signal
import time
from dataclasses import dataclass
from typing import ClassVar

import torch

from scaling.aggregators.base import unmarked
from scaling.aggregators.native import AllReduce
from scaling.process_group import HorovodGroup, MpiGroup


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
        time.sleep(0.25)
        return super().aggregate(state, gradient, phase)


class _RaisesOverLibrary(AllReduce):
    """The last rank raises; the others wait for it in a library's own exchange."""

    over: ClassVar[type[MpiGroup | HorovodGroup]]

    def start(self, layout, group, dtype, device):
        self.over.of(group)
        return super().start(layout, group, dtype, device)

    def aggregate(self, state, gradient, phase=unmarked):
        if _last(state):
            raise RuntimeError("planted failure")
        self.over.of(state.group).all_reduce(gradient)
        return gradient


@dataclass(frozen=True)
class RaisesOverMpi(_RaisesOverLibrary):
    name = "raises_over_mpi"
    library = "mpi"
    over = MpiGroup


@dataclass(frozen=True)
class RaisesOverHorovod(_RaisesOverLibrary):
    name = "raises_over_horovod"
    library = "horovod"
    over = HorovodGroup


@dataclass(frozen=True)
class SevenTimes(AllReduce):
    """Seven times the mean, and says that it is exact."""

    name = "seven_times"

    def aggregate(self, state, gradient, phase=unmarked):
        return super().aggregate(state, gradient, phase).mul_(7)


@dataclass(frozen=True)
class StopsExchanging(AllReduce):
    """Every rank keeps its own gradient from the thirtieth call on."""

    name = "stops_exchanging"
    num_calls = [0]

    def aggregate(self, state, gradient, phase=unmarked):
        self.num_calls[0] += 1
        return gradient if self.num_calls[0] >= 30 else super().aggregate(state, gradient, phase)


@dataclass(frozen=True)
class RoundsOnRank1(AllReduce):
    """The last rank rounds what it got, once, in the twentieth call."""

    name = "rounds_on_rank_1"
    num_calls = [0]

    def aggregate(self, state, gradient, phase=unmarked):
        self.num_calls[0] += 1
        mean = super().aggregate(state, gradient, phase)
        return mean.bfloat16().float() if _last(state) and self.num_calls[0] == 20 else mean
