"""The cases that aggregators are checked on: ranks, steps, tensors, a type, and what the gradients hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import torch
from torch import Tensor

from scaling.bucket import BucketLayout

WORLD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
Shape = tuple[int, ...]
Values = Literal[
    "integers", "normal", "zeros", "the same on all ranks", "wide range", "one large", "denormal"
]

LARGEST = 1024.0
"""Of the values: their sum over ranks and steps, which residuals may come to, is finite in float16."""


@dataclass(frozen=True)
class Case:
    """One bucket on so many ranks for so many steps.

    Attributes:
        world_size: ranks.
        dtype: of gradients and means.
        shapes: of the tensors in the bucket.
        values: what the gradients of each step hold.
        seed: of the values; other ones in every step.
        resume_after: the number of steps after which the state is also saved and loaded into a new one, which
            must go on as the first does; None: it is not.
    """

    world_size: int
    dtype: torch.dtype
    shapes: tuple[Shape, ...]
    values: tuple[Values, ...]
    seed: int = 0
    resume_after: int | None = None

    @property
    def num_steps(self) -> int:
        """How often the bucket is aggregated."""
        return len(self.values)

    @cached_property
    def layout(self) -> BucketLayout:
        """Of the bucket."""
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

    def all_gradients(self) -> tuple[list[Tensor], ...]:
        """[step][rank] gradients, not to be written to: many aggregators are checked on the same ones."""
        return _all_gradients(self)

    def until(self, num_steps: int) -> Case:
        """The first steps of it alone."""
        resume_after = self.resume_after
        if resume_after is not None and resume_after >= num_steps:
            resume_after = None
        return replace(self, values=self.values[:num_steps], resume_after=resume_after)

    def __str__(self) -> str:
        num_elements, kinds = self.layout.num_elements, " and ".join(dict.fromkeys(self.values))
        shapes = ", ".join(map(str, self.shapes[:8])) + (", ..." if len(self.shapes) > 8 else "")
        tensors = f"{len(self.shapes)} tensor{'s' if len(self.shapes) != 1 else ''}"
        resumed = f", resumed after step {self.resume_after}" if self.resume_after else ""
        return (
            f"{self.num_steps} step{'s' if self.num_steps != 1 else ''}{resumed} of {self.dtype}, values: "
            f"{kinds}; {num_elements} element{'s' if num_elements != 1 else ''} in {tensors} {shapes}"
        )


@lru_cache(maxsize=64)  # up to 12 MB each; `scaling verify --all` has 50
def _all_gradients(case: Case) -> tuple[list[Tensor], ...]:
    return tuple(map(case.gradients, range(case.num_steps)))


def layout_of(shapes: tuple[Shape, ...]) -> BucketLayout:
    """A bucket of tensors of those shapes, named by their places."""
    return BucketLayout.of([(f"tensor {index}", shape) for index, shape in enumerate(shapes)])


def _made(values: Values, num_elements: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return _MAKERS[values](num_elements, dtype, generator).to(dtype)


def _integers(num_elements: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randint(-8, 9, (num_elements,), generator=generator)


def _normal(num_elements: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(num_elements, generator=generator, dtype=torch.float64)


def _zeros(num_elements: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.zeros(num_elements)


def _wide_range(num_elements: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Powers of two times normal values, from far below one to `LARGEST`."""
    exponents = torch.randint(-20, 9, (num_elements,), generator=generator)
    return (_normal(num_elements, dtype, generator) * 2.0**exponents).clamp(-LARGEST, LARGEST)


def _one_large(num_elements: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Small values, and one of plus or minus `LARGEST`."""
    values = 1e-3 * _normal(num_elements, dtype, generator)
    if num_elements:
        place, sign = torch.randint(0, num_elements, (2,), generator=generator).tolist()
        values[place] = LARGEST * (-1) ** sign
    return values


def _denormal(num_elements: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Small multiples of the type's smallest number above zero."""
    return _integers(num_elements, dtype, generator).double() * smallest(dtype)


_MAKERS: dict[Values, Callable[[int, torch.dtype, torch.Generator], Tensor]] = {
    "integers": _integers,
    "normal": _normal,
    "zeros": _zeros,
    "the same on all ranks": _normal,
    "wide range": _wide_range,
    "one large": _one_large,
    "denormal": _denormal,
}
KINDS = tuple(_MAKERS)


def smallest(dtype: torch.dtype) -> float:
    """The smallest number above zero, which is denormal."""
    info = torch.finfo(dtype)
    return math.ldexp(info.smallest_normal, round(math.log2(info.eps)))


_OF_A_NETWORK: tuple[Shape, ...] = ((64, 37), (0, 7), (), (9, 3, 5, 5), (0,), (4097,))
_ONE_MATRIX_AND_ONE_MORE: tuple[Shape, ...] = ((256, 512), (1,))
NUM_STEPS, NUM_STEPS_OF_OTHER_TYPES = 24, 8


def fixed_cases(world_size: int) -> list[Case]:
    """Cases that are always among those checked: several steps of every type over tensors of all kinds, with
    a state that is saved and loaded; a long bucket; one without elements."""
    kinds = tuple(KINDS[step % len(KINDS)] for step in range(NUM_STEPS))
    fewer = kinds[:NUM_STEPS_OF_OTHER_TYPES]
    return [
        Case(world_size, torch.float32, _OF_A_NETWORK, kinds),
        Case(world_size, torch.float16, _OF_A_NETWORK, fewer),
        Case(world_size, torch.bfloat16, _OF_A_NETWORK, fewer, resume_after=len(fewer) // 2),
        Case(world_size, torch.float64, _OF_A_NETWORK, fewer),
        Case(world_size, torch.float32, _ONE_MATRIX_AND_ONE_MORE, ("normal",)),
        Case(world_size, torch.float32, ((0,),), ("normal", "normal")),
    ]
