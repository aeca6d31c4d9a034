"""Cases drawn by hypothesis, after those of `fixed_cases`; what fails is shrunk. Every case is run once:
shrinking asks for some of them again."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from scaling.aggregators.base import DTYPES, Aggregator
from scaling.conformance.cases import KINDS, Case, RunRanks, Shape, fixed_cases
from scaling.conformance.contract import check
from scaling.errors import ScheduleError
from scaling.process_group import run_in_process

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

NUM_EXAMPLES = 25
NUM_EXAMPLES_OF_COMMANDS = 2
"""A number of ranks, where all aggregators are checked: the smallest that there is, and a drawn one."""
MAX_SHRINKING_S = 10.0
MAX_ELEMENTS = 300_000
MAX_VALUES = 1_500_000  # of all ranks and steps of a case together
BORDERS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 6400, 8192, 16384, 65536, 131072, 262144)
"""In elements, where executors, codecs and kernels change: alignments, chunks and blocks, the first size with
aligned chunks (6400 a chunk), the first that is cut into bit planes, blocks of a mebibyte."""


def check_drawn(
    aggregator: Aggregator[Any],
    world_size: int,
    num_examples: int = NUM_EXAMPLES,
    seed: int = 0,
    run: RunRanks = run_in_process,
) -> bool:
    """Checks the contract on the fixed cases and on `num_examples` drawn ones, which the `seed` gives, in all
    `dtypes` of the aggregator; whether there are residuals. AssertionError names the smallest case."""
    dtypes = [dtype for dtype in DTYPES if dtype in aggregator.dtypes]
    if torch.float32 not in dtypes:
        raise AssertionError(f"dtypes is {aggregator.dtypes}; allowed is what has torch.float32")
    search = _Search(aggregator, run)
    for case in fixed_cases(world_size):
        if case.dtype in dtypes and search.failure_of(case):
            # A smaller case of that type, if one is drawn; else this one, up to the step that fails.
            smaller = search.drawn(world_size, [case.dtype], max(num_examples, NUM_EXAMPLES), seed)
            smallest = smaller or search.cut(case)
            raise AssertionError(f"{smallest}: {search.seen[smallest]}")
    failing = search.drawn(world_size, dtypes, num_examples, seed)
    if failing is not None:
        raise AssertionError(f"{failing}: {search.seen[failing]}")
    return search.has_residuals


def failure_text(error: Exception) -> str:
    if isinstance(error, ScheduleError | AssertionError) and str(error):
        return str(error)
    if isinstance(error, threading.BrokenBarrierError):
        return "a rank waits for the others in vain: not all of them take part in the same exchanges"
    return f"{type(error).__name__}: {error}"


class _Search:
    """`seen`: what does not hold of a case, None where all does."""

    def __init__(self, aggregator: Aggregator[Any], run: RunRanks) -> None:
        self._aggregator, self._run = aggregator, run
        self._shrinking_since_s: float | None = None
        self.seen: dict[Case, str | None] = {}
        self.has_residuals = False

    def failure_of(self, case: Case) -> str | None:
        if case not in self.seen:
            try:
                self.has_residuals |= check(self._aggregator, case, self._run)
                self.seen[case] = None
            except Exception as error:  # noqa: BLE001 (of the aggregator's code)
                self.seen[case] = failure_text(error)
        return self.seen[case]

    def cut(self, case: Case) -> Case:
        fewer = (case.until(num_steps) for num_steps in range(1, case.num_steps))
        return next((smaller for smaller in fewer if self.failure_of(smaller)), case)

    def drawn(self, world_size: int, dtypes: list[torch.dtype], num_examples: int, seed: int) -> Case | None:
        asked = world_size, tuple(dtypes), num_examples, seed
        if not any(map(self.failure_of, _drawn(*asked))):
            return None
        failed: list[Case] = []

        def examine(case: Case) -> None:
            over_s = time.monotonic() - (self._shrinking_since_s or math.inf)
            if over_s > MAX_SHRINKING_S and case not in self.seen:
                return
            if self.failure_of(case):
                self._shrinking_since_s = self._shrinking_since_s or time.monotonic()
                failed.append(case)
                raise AssertionError

        try:
            _draw(*asked, examine)
        except AssertionError:
            return failed[-1]  # hypothesis ends with the smallest one
        return None


@lru_cache(maxsize=64)  # drawing takes longer than checking short cases
def _drawn(
    world_size: int, dtypes: tuple[torch.dtype, ...], num_examples: int, seed: int
) -> tuple[Case, ...]:
    drawn: list[Case] = []
    _draw(world_size, dtypes, num_examples, seed, drawn.append)
    return tuple(drawn)


def _draw(
    world_size: int,
    dtypes: tuple[torch.dtype, ...],
    num_examples: int,
    seed: int,
    examine: Callable[[Case], None],
) -> None:
    """Calls `examine` with each case; after an AssertionError with smaller ones too."""
    import hypothesis  # late: no other command needs it
    from hypothesis import configuration

    @hypothesis.seed(len(BORDERS) * seed + world_size)
    @hypothesis.settings(
        max_examples=num_examples,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(cases(world_size, list(dtypes)))
    def each(case: Case) -> None:
        examine(case)

    configuration.set_hypothesis_home_dir(os.devnull)  # no folder is made where the user is
    try:
        each()
    finally:
        configuration.set_hypothesis_home_dir(None)  # what HYPOTHESIS_STORAGE_DIRECTORY says, or the default


def cases(world_size: int, dtypes: list[torch.dtype]) -> SearchStrategy[Case]:
    from hypothesis import strategies as st

    near_borders = st.builds(
        lambda border, times, off: min(max(border * times + off, 0), MAX_ELEMENTS),
        st.sampled_from(BORDERS),
        st.one_of(st.just(1), st.just(world_size), st.integers(1, 8)),
        st.integers(-2, 2),
    )
    lengths = st.one_of(
        st.integers(0, 40), near_borders, st.integers(0, 10_000), st.integers(0, MAX_ELEMENTS)
    )

    @st.composite
    def case(draw: DrawFn) -> Case:
        num_elements = draw(lengths)
        most_steps = MAX_VALUES // (world_size * max(num_elements, 1))
        num_steps = draw(st.integers(1, min(max(most_steps, 2), 24)))
        kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
        return Case(
            world_size,
            draw(st.sampled_from(dtypes)),
            draw(shapes(num_elements)),
            tuple(kinds[step % len(kinds)] for step in range(num_steps)),
            draw(st.integers(0, 1000)),
            draw(st.none() | st.integers(1, num_steps - 1)) if num_steps > 1 else None,
        )

    return case()


def shapes(num_elements: int) -> SearchStrategy[tuple[Shape, ...]]:
    """Tensors of so many elements together: one or many, of all forms, and some without elements."""
    from hypothesis import strategies as st

    @st.composite
    def drawn(draw: DrawFn) -> tuple[Shape, ...]:
        cuts = draw(st.lists(st.integers(0, num_elements), max_size=draw(st.sampled_from((0, 3, 40)))))
        made: list[Shape] = []
        for start, stop in pairwise([0, *sorted(cuts), num_elements]):
            trailing = draw(st.sampled_from(((), (3,), (64,), (4, 3, 3))))
            rows, rest = divmod(stop - start, math.prod(trailing))
            if not trailing or not rows:
                made.append((stop - start,))
            else:  # a tensor with those trailing axes, and a vector or a scalar of the elements that are left
                made += [(rows, *trailing), *([() if rest == 1 else (rest,)] if rest else [])]
        empty = st.tuples(st.integers(0, len(made)), st.sampled_from(((0,), (0, 7), (5, 0, 2))))
        for place, shape in draw(st.lists(empty, max_size=2)):
            made.insert(place, shape)
        return tuple(made)

    return drawn()
