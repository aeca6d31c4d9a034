"""Runs an aggregator step by step, on ranks that are threads or processes, and keeps what it left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from scaling.aggregators.base import HOST_SITES, Aggregator, Span
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.process_group import Group, run_in_process

T = TypeVar("T")
CPU = torch.device("cpu")
NOT_UPDATED = 77.0  # what parameters hold that a rank does not own, before they are distributed
OVERWRITTEN = 55.0  # what a caller may leave in its own elements of a mean


class RunRanks(Protocol):
    """Runs `work` once a rank, each with its group, and returns the results in rank order.

    `run_in_process` does it with threads. Where ranks are processes, each calls it with its own group, and
    gathers the others' results.
    """

    def __call__(self, world_size: int, work: Callable[[Group], T]) -> list[T]: ...


@dataclass(frozen=True)
class Outcome:
    """What one rank had after one step.

    Attributes:
        owned: the elements whose mean it has.
        result: a copy of what `aggregate` returned, of use in the owned elements.
        changed: the gradient as it was then, if it was changed and may not be.
        parameters: what `distribute` made of them; None where the update site needs none.
        bytes_sent: metered, with `distribute` and the copy of parameters from an update in host memory.
        contribution: what the rank brought to the exchange: the gradient, or its own momentum.
        withheld: the residual after the step, None without error feedback.
    """

    owned: list[Span]
    result: Tensor | None
    changed: Tensor | None
    parameters: Tensor | None
    bytes_sent: int
    contribution: Tensor
    withheld: Tensor | None


@lru_cache(maxsize=128)
def parameters_of(num_elements: int, dtype: torch.dtype, step: int) -> Tensor:
    """[num_elements] parameters that owners are to bring to all ranks after a step; not to be written to."""
    return torch.randn(num_elements, generator=torch.Generator().manual_seed(step)).to(dtype)


def run_steps(
    aggregator: Aggregator[Any],
    layout: BucketLayout,
    steps: Sequence[Sequence[Tensor]],
    run: RunRanks = run_in_process,
    resume_after: int | None = None,
) -> list[list[Outcome]]:
    """[step][rank] outcomes of a state that goes through all the steps.

    From the second step on, gradients and parameters are in the state's own buffers, if it has any.

    Args:
        steps: [step][rank] gradients, all of one type.
        resume_after: save the state after so many steps, and go on with a new one that has loaded it.
    """

    def work(group: Group) -> list[Outcome]:
        def start() -> AggregatorState:
            state: AggregatorState = aggregator.start(layout, group, steps[0][0].dtype, CPU)
            return state

        outcomes, state = [], start()
        for index, gradients in enumerate(steps):
            if index == resume_after:
                saved, state = state.state_dict(), start()
                state.load_state_dict(saved)
            outcomes.append(_step(aggregator, state, gradients[group.rank], index))
        return outcomes

    ranks = run(len(steps[0]), work)
    return [[outcomes[index] for outcomes in ranks] for index in range(len(steps))]


def _step(aggregator: Aggregator[Any], state: AggregatorState, values: Tensor, index: int) -> Outcome:
    group, layout = state.group, state.layout
    gradient = _placed(values, state.gradient_buffer if index else None)
    group.meter.reset()
    contribution = aggregator.contribution(state, gradient)
    contribution = values if contribution is gradient else contribution.clone()
    result = aggregator.aggregate(state, gradient)
    owned = aggregator.owned(state)
    copied = None if result is None else result.clone()
    is_left = aggregator.modifies_input or torch.equal(values, gradient)
    changed = None if is_left else gradient.clone()
    parameters = None
    if result is not None:
        for start, stop in owned:
            result[start:stop].fill_(OVERWRITTEN)
    if aggregator.site(layout) in ("root", "owner"):
        parameters = torch.full_like(values, NOT_UPDATED)
        for start, stop in owned:
            parameters[start:stop] = parameters_of(layout.num_elements, values.dtype, index)[start:stop]
        parameters = _placed(parameters, state.parameter_buffer if index else None)
        aggregator.distribute(state, parameters)
        parameters = parameters.clone()
    if aggregator.site(layout) in HOST_SITES:
        group.meter.count(values.nbytes)  # the update there brings the parameters back to every rank
    sent = group.meter.bytes_sent
    outcome = Outcome(owned, copied, changed, parameters, sent, contribution, state.withheld())
    group.barrier()  # as the next step's gradient, which no rank has before all have taken this one
    return outcome


def _placed(values: Tensor, buffer: Tensor | None) -> Tensor:
    return values.clone() if buffer is None else buffer.copy_(values)
