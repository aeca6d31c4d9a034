"""A user's module for test_planted_faults.py: means that are wrong in one place, as the environment says."""

import json
import os
from dataclasses import dataclass
from typing import Any

import torch

from scaling.aggregators import Aggregator, AggregatorState, unmarked

PLACE = json.loads(os.environ["PLANTED"])


@dataclass
class Counted(AggregatorState):
    calls: int = 0


@dataclass(frozen=True)
class Right(Aggregator[Counted]):
    name = "planted"
    modifies_input = True

    def start(self, layout, group, dtype, device):
        return Counted(group, layout)

    def aggregate(self, state, gradient, phase=unmarked):
        state.calls += 1
        state.group.all_reduce(gradient)
        gradient.div_(state.group.world_size)
        if self.is_wrong(state, gradient):
            self.spoil(gradient)
        return gradient

    def is_wrong(self, state, gradient):
        return False

    def spoil(self, gradient):
        gradient.mul_(PLACE["scale"])


def wrong(is_wrong, spoil=None, **attributes):
    """A class whose mean is spoiled where `is_wrong(state, gradient)`."""
    named: dict[str, Any] = {"is_wrong": lambda self, state, gradient: is_wrong(state, gradient)}
    if spoil is not None:
        named["spoil"] = lambda self, gradient: spoil(gradient)
    return type("Wrong", (Right,), {**named, **attributes})


def scale(elements):
    elements *= PLACE["scale"]


def is_there(state, gradient):
    return (state.group.rank, state.calls) == (PLACE["rank"], PLACE["step"])


AtOneStep = wrong(lambda state, _: state.calls == PLACE["step"])
FromAStepOn = wrong(lambda state, _: state.calls >= PLACE["step"])
EverySoManyCalls = wrong(lambda state, _: state.calls % PLACE["every"] == 0)
AtOneElement = wrong(
    lambda _, gradient: gradient.numel() > PLACE["element"],
    lambda gradient: scale(gradient[PLACE["element"] : PLACE["element"] + 1]),
)
BeyondAnElement = wrong(
    lambda _, gradient: gradient.numel() > 25 * PLACE["element"],
    lambda gradient: scale(gradient[25 * PLACE["element"] :]),
)
OnOneRankAtOneStep = wrong(is_there)
OnLossyRankAtOneStep = wrong(is_there, lossy=True)
InOneType = wrong(lambda _, gradient: str(gradient.dtype) == PLACE["dtype"])
WithAnEmptyTensorInTheMiddle = wrong(lambda state, _: any(0 in shape for shape in state.layout.shapes[1:-1]))
AtOneWorldSize = wrong(lambda state, _: state.group.world_size == PLACE["world_size"])
# The mean of zeros is not zero, but in the first step.
OnZerosAfterValues = wrong(
    lambda state, gradient: state.calls > 1 and not gradient.any(),
    lambda gradient: gradient.fill_(torch.finfo(gradient.dtype).tiny * 1000),
)


class AfterLoading(Right):
    def start(self, layout, group, dtype, device):
        state = Counted(group, layout)
        state.load_state_dict = lambda tensors: setattr(state, "calls", 1000)
        return state

    def is_wrong(self, state, gradient):
        return state.calls > 1000
