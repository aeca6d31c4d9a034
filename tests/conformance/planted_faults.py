"""A user's module for test_planted_faults.py: means that are wrong in one place, as the environment says."""

import json
import os
from dataclasses import dataclass

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


class AtOneStep(Right):
    def is_wrong(self, state, gradient):
        return state.calls == PLACE["step"]


class FromAStepOn(Right):
    def is_wrong(self, state, gradient):
        return state.calls >= PLACE["step"]


class EverySoManyCalls(Right):
    def is_wrong(self, state, gradient):
        return state.calls % PLACE["every"] == 0


class AtOneElement(Right):
    def is_wrong(self, state, gradient):
        return gradient.numel() > PLACE["element"]

    def spoil(self, gradient):
        gradient[PLACE["element"]] *= PLACE["scale"]


class BeyondAnElement(Right):
    def is_wrong(self, state, gradient):
        return gradient.numel() > 25 * PLACE["element"]

    def spoil(self, gradient):
        gradient[25 * PLACE["element"] :] *= PLACE["scale"]


class OnOneRankAtOneStep(Right):
    def is_wrong(self, state, gradient):
        return (state.group.rank, state.calls) == (PLACE["rank"], PLACE["step"])


class OnLossyRankAtOneStep(OnOneRankAtOneStep):
    lossy = True


class InOneType(Right):
    def is_wrong(self, state, gradient):
        return str(gradient.dtype) == PLACE["dtype"]


class WithAnEmptyTensorInTheMiddle(Right):
    def is_wrong(self, state, gradient):
        return any(0 in shape for shape in state.layout.shapes[1:-1])


class AtOneWorldSize(Right):
    def is_wrong(self, state, gradient):
        return state.group.world_size == PLACE["world_size"]


class OnZerosAfterValues(Right):
    """The mean of zeros is not zero, but in the first step."""

    def is_wrong(self, state, gradient):
        return state.calls > 1 and not gradient.any()

    def spoil(self, gradient):
        gradient.fill_(torch.finfo(gradient.dtype).tiny * 1000)


class AfterLoading(Right):
    def start(self, layout, group, dtype, device):
        state = Counted(group, layout)
        state.load_state_dict = lambda tensors: setattr(state, "calls", 1000)
        return state

    def is_wrong(self, state, gradient):
        return state.calls > 1000
