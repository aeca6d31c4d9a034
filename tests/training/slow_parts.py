"""Aggregators and models that cells name as `module:attribute`.

What can go wrong with a step, planted; and a small network with all that a checkpoint has to keep.
"""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn

from scaling.aggregators.base import unmarked
from scaling.aggregators.native import AllReduce
from scaling.training import hooked_buckets
from scaling.workloads.base import DataShape, Model

planted = SimpleNamespace(late_s=0.0, exchange_s=0.0, backward_s=0.0)
"""How long what is planted takes, in seconds."""


@dataclass(frozen=True)
class LateOnRank1(AllReduce):
    """Rank 1 sleeps before it exchanges."""

    name = "late_on_rank_1"

    def aggregate(self, state, gradient, phase=unmarked):
        if state.group.rank == 1:
            time.sleep(planted.late_s)
        return super().aggregate(state, gradient, phase)


@dataclass(frozen=True)
class SlowExchange(AllReduce):
    """An exchange that takes its time, and no processor."""

    name = "slow_exchange"

    def aggregate(self, state, gradient, phase=unmarked):
        with phase("communicate"):
            time.sleep(planted.exchange_s)
            state.group.all_reduce(gradient)
        return gradient.div_(state.group.world_size)


class _SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context, gradient):
        time.sleep(planted.backward_s)
        return gradient


class SlowNetwork(nn.Module):
    """Two layers; between their gradients the backward pass takes its time."""

    def __init__(self, shape: DataShape) -> None:
        super().__init__()
        self.first = nn.Linear(shape.input_shape[-1] * shape.input_shape[-2], 32)
        self.last = nn.Linear(32, shape.num_classes)

    def forward(self, inputs):
        return self.last(_SlowBackward.apply(self.first(inputs.flatten(1))))


slow_network = Model("slow_network", SlowNetwork, None, "digits", "these tests", {})


def with_statistics(shape: DataShape) -> nn.Module:
    """Batch normalisation has statistics, dropout draws random numbers."""
    first = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1))
    return nn.Sequential(*first, nn.Linear(4 * 36, shape.num_classes))


dropping = Model("dropping", with_statistics, None, "digits", "these tests", {})


def hooks_that_block() -> AbstractContextManager[Any]:
    """DDP's hooks return only when their exchange is done."""
    run = hooked_buckets._SideStream.run

    def blocking(self, *arguments):
        future = run(self, *arguments)
        future.wait()
        return future

    return mock.patch.object(hooked_buckets._SideStream, "run", blocking)
