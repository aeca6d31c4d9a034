"""The cases that aggregators are checked on, and how they are run: step by step, on ranks that are threads or
processes; what they left behind is kept."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import groupby
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from scaling.aggregators.base import HOST_SITES, Aggregator
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout, Span
from scaling.errors import StudyError
from scaling.process_group import Group, run_in_process

WORLD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
Shape = tuple[int, ...]
Values = Literal[
    "integers", "normal", "zeros", "the same on all ranks", "wide range", "one large", "denormal"
]

KINDS: tuple[Values, ...] = get_args(Values)
LARGEST = 1024.0  # of the values: their sum over ranks and steps is finite in float16


@dataclass(frozen=True)
class Case:
    """One bucket on so many ranks for so many steps."""

    world_size: int  # ranks
    dtype: torch.dtype  # of gradients and means
    shapes: tuple[Shape, ...]  # of the tensors in the bucket
    values: tuple[Values, ...]  # what the gradients of each step hold
    seed: int = 0  # of the values; other ones in every step
    resume_after: int | None = None  # steps after which a new state goes on with what was saved

    @property
    def num_steps(self) -> int:
        return len(self.values)

    @cached_property
    def layout(self) -> BucketLayout:
        return layout_of(self.shapes)

    def gradients(self, step: int) -> list[Tensor]:
        """One flat gradient a rank."""
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        num_elements, values = self.layout.num_elements, self.values[step]
        first = _made(values, num_elements, self.dtype, generator)
        if values == "the same on all ranks":
            return [first.clone() for _ in range(self.world_size)]
        others = (_made(values, num_elements, self.dtype, generator) for _ in range(1, self.world_size))
        return [first, *others]

    @lru_cache(maxsize=64)  # noqa: B019 (up to 12 MB each; `scaling verify --all` has 50)
    def all_gradients(self) -> tuple[list[Tensor], ...]:
        """[step][rank] gradients, not to be written to: many aggregators are checked on the same ones."""
        return tuple(map(self.gradients, range(self.num_steps)))

    def until(self, num_steps: int) -> Case:
        resumes = self.resume_after is not None and self.resume_after < num_steps
        after = self.resume_after if resumes else None
        return replace(self, values=self.values[:num_steps], resume_after=after)

    def __str__(self) -> str:
        num_elements, kinds = self.layout.num_elements, " and ".join(dict.fromkeys(self.values))
        shapes = ", ".join(map(str, self.shapes[:8])) + (", ..." if len(self.shapes) > 8 else "")
        tensors = f"{len(self.shapes)} tensor{'s' if len(self.shapes) != 1 else ''}"
        resumed = f", resumed after step {self.resume_after}" if self.resume_after else ""
        return (
            f"{self.num_steps} step{'s' if self.num_steps != 1 else ''}{resumed} of {self.dtype}, values: "
            f"{kinds}; {num_elements} element{'s' if num_elements != 1 else ''} in {tensors} {shapes}"
        )


def layout_of(shapes: tuple[Shape, ...]) -> BucketLayout:
    return BucketLayout.of([(f"tensor {index}", shape) for index, shape in enumerate(shapes)])


def _made(values: Values, num_elements: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """[num_elements] of that type. Wide range: powers of two times normal values. One large: small values,
    and one of plus or minus `LARGEST`. Denormal: small multiples of the type's smallest number."""
    normal = partial(torch.randn, num_elements, generator=generator, dtype=torch.float64)
    integers = partial(torch.randint, -8, 9, (num_elements,), generator=generator)
    if values == "zeros":
        made = torch.zeros(num_elements)
    elif values == "wide range":
        exponents = torch.randint(-20, 9, (num_elements,), generator=generator)
        made = (normal() * 2.0**exponents).clamp(-LARGEST, LARGEST)
    elif values == "one large":
        made = 1e-3 * normal()
        if num_elements:
            place, sign = torch.randint(0, num_elements, (2,), generator=generator).tolist()
            made[place] = LARGEST * (-1) ** sign
    elif values == "denormal":
        made = integers().double() * smallest(dtype)
    else:
        made = integers() if values == "integers" else normal()
    return made.to(dtype)


def smallest(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return math.ldexp(info.smallest_normal, round(math.log2(info.eps)))


_OF_A_NETWORK: tuple[Shape, ...] = ((64, 37), (0, 7), (), (9, 3, 5, 5), (0,), (4097,))


def fixed_cases(world_size: int) -> list[Case]:
    """Those always checked: every type, tensors of all kinds, a loaded state; a long bucket; an empty one."""
    kinds = tuple(KINDS[step % len(KINDS)] for step in range(24))
    fewer = kinds[:8]
    return [
        Case(world_size, torch.float32, _OF_A_NETWORK, kinds),
        Case(world_size, torch.float16, _OF_A_NETWORK, fewer),
        Case(world_size, torch.bfloat16, _OF_A_NETWORK, fewer, resume_after=len(fewer) // 2),
        Case(world_size, torch.float64, _OF_A_NETWORK, fewer),
        Case(world_size, torch.float32, ((256, 512), (1,)), ("normal",)),
        Case(world_size, torch.float32, ((0,),), ("normal", "normal")),
    ]


MAX_WORLD_SIZE = 1024  # at this size a ring is checked in a second; transfers grow with the square of it


def parse_world_sizes(text: str) -> list[int]:
    """Numbers and ranges, `1-8,16`, ascending; StudyError where it is something else."""
    sizes: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= MAX_WORLD_SIZE:
            raise StudyError(
                f"--world-sizes {text!r:.60}: allowed are numbers from 1 to {MAX_WORLD_SIZE} and ranges, as "
                "in 1-8,16"
            )
        sizes.update(range(first, last + 1))
    return sorted(sizes)


def spelled(sizes: Sequence[int]) -> str:
    following = groupby(enumerate(sizes), lambda pair: pair[1] - pair[0])
    runs = [[size for _, size in run] for _, run in following]
    texts = [", ".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"{', '.join(texts)} rank{'s' if list(sizes) != [1] else ''}"


RunRanks = Callable[[int, Callable[[Group], Any]], list[Any]]
"""As `run_in_process`; ranks that are processes call it each with its own group, and gather the results."""


@dataclass(frozen=True)
class Outcome:
    owned: list[Span]  # the elements whose mean it has
    result: Tensor | None  # a copy of what `aggregate` returned, of use in the owned elements
    changed: Tensor | None  # the gradient as it was then, if it was changed and may not be
    parameters: Tensor | None  # what `distribute` made of them, where the update site needs it
    bytes_sent: int  # metered, with `distribute` and the copy of parameters from an update in host memory
    contribution: Tensor  # what the rank brought to the exchange: the gradient, or its own momentum
    withheld: Tensor | None  # the residual after the step, None without error feedback


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
    """[step][rank] outcomes of a state that goes through all the steps, [step][rank] gradients of one type.
    From the second step on, gradients and parameters are in the state's own buffers, if it has any. After
    `resume_after` steps a new state goes on that has loaded what the first has saved."""

    def work(group: Group) -> list[Outcome]:
        def start() -> AggregatorState:
            state: AggregatorState = aggregator.start(layout, group, steps[0][0].dtype, torch.device("cpu"))
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
            result[start:stop].fill_(55.0)  # as a caller may
    if aggregator.site(layout) in ("root", "owner"):
        parameters = torch.full_like(values, 77.0)
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
