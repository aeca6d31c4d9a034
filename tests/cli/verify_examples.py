"""A user's module for test_verify_command.py: some that hold, and one broken in each way."""

from dataclasses import dataclass

import torch

from scaling.aggregators import Aggregator, AggregatorState, unmarked
from scaling.aggregators.one_bit import StripedOneBit
from scaling.aggregators.schedule import Scheduled
from scaling.collectives.halving_doubling import recursive_doubling
from scaling.collectives.owners import star
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, Transfer
from scaling.errors import StudyError


@dataclass(frozen=True)
class Correct(Aggregator[AggregatorState]):
    name = "correct"
    modifies_input = True

    def start(self, layout, group, dtype, device):
        return AggregatorState(group, layout)

    def aggregate(self, state, gradient, phase=unmarked):
        state.group.all_reduce(gradient)
        return gradient.div_(state.group.world_size)


class InOtherSpans(Correct):
    """Correct too: what every rank owns is said in other words."""

    def owned(self, state):
        n, rank = state.layout.num_elements, state.group.rank
        middle = min(rank, 1, n)
        return [(start, stop) for start, stop in ((0, middle), (middle, n)) if start < stop]


@dataclass(frozen=True)
class CorrectRoot(Scheduled):
    name = "correct_root"
    update_site = "root"

    def schedule(self, world_size, layout):
        return star(world_size)


def variant(base, **attributes):
    return type("Variant", (base,), attributes)


def changed_mean(change, base=Correct, **attributes):
    """One that gives `change(mean, group)` where the mean is right."""

    def aggregate(self, state, gradient, phase=unmarked):
        return change(base.aggregate(self, state, gradient), state.group)

    return variant(base, aggregate=aggregate, **attributes)


class Own(Correct):
    def aggregate(self, state, gradient, phase=unmarked):
        return gradient


LossyOwn = variant(Own, lossy=True)
NoFloat32 = variant(Correct, name="no_float32", dtypes=(torch.float64,))
ChangedInput = variant(Correct, modifies_input=False)
WrongBytes = variant(
    Correct, wire_bytes=lambda self, layout, n, rank, itemsize: layout.num_elements * itemsize
)
Sum = changed_mean(lambda mean, group: mean.mul_(group.world_size))
WrongLength = changed_mean(lambda mean, group: mean[:-1])
WrongType = changed_mean(lambda mean, group: mean.double())
Missing = changed_mean(lambda mean, group: mean if group.rank == 0 else None)
NotFinite = changed_mean(lambda mean, group: mean.div_(0), lossy=True)
NotFiniteOnOneRank = changed_mean(lambda mean, group: mean.div_(group.rank != 1), lossy=True)
OtherOnOneRank = changed_mean(lambda mean, group: mean.add_(group.rank == 1), InOtherSpans, lossy=True)
BeyondItsBound = changed_mean(
    lambda mean, group: mean.mul_(1.25),
    lossy=True,
    error_bound=lambda self, gradient, world_size: gradient.abs() / (8 * world_size),
)


class NoDoubles(Correct):
    name = "no_doubles"
    dtypes = (torch.float32, torch.float16, torch.bfloat16)

    def start(self, layout, group, dtype, device):
        assert dtype in self.dtypes, "it is not asked for others"
        return super().start(layout, group, dtype, device)


class UntoldRefusal(Correct):
    def start(self, layout, group, dtype, device):
        if dtype == torch.bfloat16:
            raise StudyError("no bfloat16")
        return super().start(layout, group, dtype, device)


class ChangedOnOneRank(Correct):
    modifies_input = False

    def aggregate(self, state, gradient, phase=unmarked):
        mean = super().aggregate(state, gradient.clone())
        if state.group.rank == 1:
            gradient.add_(1)
        return mean


class Raises(Correct):
    def aggregate(self, state, gradient, phase=unmarked):
        if state.group.rank:
            raise KeyError("planted")
        return super().aggregate(state, gradient)


@dataclass
class Counted(AggregatorState):
    calls: torch.Tensor


class Stale(Correct):
    def start(self, layout, group, dtype, device):
        return Counted(group, layout, None)  # type: ignore[arg-type]

    def aggregate(self, state, gradient, phase=unmarked):
        if state.calls is None:
            state.calls = super().aggregate(state, gradient).clone()
        return state.calls.clone()


class LostState(Correct):
    """Scales by a count that it does not save."""

    lossy = True

    def start(self, layout, group, dtype, device):
        return Counted(group, layout, torch.zeros(1))

    def aggregate(self, state, gradient, phase=unmarked):
        state.calls += 1
        return super().aggregate(state, gradient).mul_(state.calls.to(gradient.dtype))


class KeepsLess(StripedOneBit):
    """Tells of the own residual alone, not of the stripes'."""

    name = "keeps_less"

    def start(self, layout, group, dtype, device):
        state = StripedOneBit.start(self, layout, group, dtype, device)
        state.total_residual = state.residual.clone
        return state


class TwoOwners(Correct):
    update_site = "owner"

    def owned(self, state):
        return [(0, state.layout.num_elements)] if state.layout.num_elements else []

    def distribute(self, state, parameters, phase=unmarked):
        state.group.broadcast(parameters)


class NoOwner(TwoOwners):
    def owned(self, state):
        n = state.layout.num_elements
        return [(0, n - 1)] if state.group.rank == 0 and n > 1 else []


class RootElsewhere(TwoOwners):
    update_site = "root"  # type: ignore[assignment]

    def owned(self, state):
        last = state.group.rank == state.group.world_size - 1
        return super().owned(state) if last else []

    def aggregate(self, state, gradient, phase=unmarked):
        mean = super().aggregate(state, gradient)
        return mean if self.owned(state) else None


NotDistributed = variant(
    RootElsewhere,
    owned=lambda self, state: TwoOwners.owned(self, state) if state.group.rank == 0 else [],
    distribute=lambda self, state, parameters, phase=unmarked: None,
)


EndsElsewhere = variant(CorrectRoot, schedule=lambda self, n, layout: ring(n))
EndsEverywhere = variant(CorrectRoot, schedule=lambda self, n, layout: recursive_doubling(n))
OfOtherTensors = variant(
    CorrectRoot, schedule=lambda self, n, layout: Schedule("other_tensors", n, 1, (), chunk_elements=(5,))
)


NOT_ONE = 3


def correct(world_size):
    return ring(world_size)


def changed(change):
    """The ring's schedule of more than one rank with `change(steps)`, by world size."""

    def make(world_size):
        steps = [list(step) for step in ring(world_size).steps]
        if steps:
            change(steps)
        return Schedule("mine", world_size, world_size, tuple(map(tuple, steps)))

    return make


def first_of(step, **fields):
    """`change`: those fields of the step's first transfer are others."""

    def change(steps):
        steps[step][0] = steps[step][0]._replace(**fields)

    return changed(change)


dropped = changed(lambda steps: steps[-1].pop(0))
doubled = changed(lambda steps: steps.insert(1, steps[0]))
two_copies = changed(lambda steps: steps[-1].append(steps[-1][0]))
wrong_chunk = first_of(0, start=1, stop=2)
no_such_chunk = changed(lambda steps: steps[0].append(Transfer(0, 1, 7, 8, "add")))
float_rank = first_of(1, source=0.0)
negative_rank = changed(lambda steps: steps[0].append(Transfer(-1, 1, 0, 1, "add")))


def negative_chunk(world_size):
    sizes = (1, -2, *[4] * (world_size - 2))
    return Schedule("mine", world_size, world_size, ring(world_size).steps, 0, sizes)


def float_world(world_size):
    return Schedule("mine", float(world_size), world_size, ring(world_size).steps)  # type: ignore[arg-type]


def for_others(world_size):
    return ring(world_size + 1)


def no_schedule(world_size):
    return [world_size]


def fails(world_size):
    return 1 / (3 - world_size)
