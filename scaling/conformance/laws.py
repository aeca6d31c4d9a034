"""Laws over several steps and of schedules: states resume, feedback loses nothing, sums have a place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator
from scaling.aggregators.schedule import Scheduled
from scaling.bucket import BucketLayout
from scaling.collectives.composition import split_at_reduction
from scaling.collectives.verify import Verification, verify
from scaling.conformance.cases import smallest
from scaling.conformance.run import Outcome
from scaling.errors import ScheduleError

ON_RANK_0 = ("root", "host_serial")
RESIDUAL_ULPS = 16
"""Allowed for the law of residuals, in float32's units in the last place of its terms: each is the result of
some ten additions."""


class Residuals:
    """The law of error feedback, step by step: n mean + new residuals = contributions + old residuals.

    Contributions are gradients, unless the aggregator applies a momentum of its own. Residuals are float32,
    whatever the gradients are. What rounding allows goes by the largest terms so far: residuals of several
    ranks, and of a gradient and a sum, may cancel for some steps.

    Attributes:
        exist: whether the aggregator has any.
    """

    def __init__(self, layout: BucketLayout, world_size: int) -> None:
        self._layout, self._world_size, self.exist = layout, world_size, False
        self._old = self._old_terms = torch.zeros(layout.num_elements, dtype=torch.float64)
        self._terms = torch.zeros(layout.num_elements, dtype=torch.float64)

    def check(self, outcomes: Sequence[Outcome], dtype: torch.dtype, *, is_replica: bool) -> None:
        """One step.

        Raises:
            AssertionError: naming the element.
        """
        residuals = [outcome.withheld for outcome in outcomes if outcome.withheld is not None]
        if not residuals:
            assert not self.exist, "no rank has a residual, and before there was one"
            return
        self.exist = True
        assert len(residuals) == len(outcomes), "some ranks have a residual, and some have none"
        n = self._layout.num_elements
        for rank, residual in enumerate(residuals):
            assert residual.shape == (n,), f"rank {rank}: the residual has shape {tuple(residual.shape)}"
        if not n:
            return
        new, given = torch.stack(residuals).double(), _stacked(outcomes)
        delivered = torch.zeros(n, dtype=torch.float64)
        for outcome in outcomes[: 1 if is_replica else None]:
            for start, stop in outcome.owned:
                assert outcome.result is not None, "a rank that owns elements has their mean"
                delivered[start:stop] = self._world_size * outcome.result[start:stop].double()
        new_sum, new_terms = new.sum(0), new.abs().sum(0)
        terms = given.abs().sum(0) + new_terms + self._old_terms + delivered.abs()
        self._terms = torch.maximum(self._terms, terms)
        allowed = RESIDUAL_ULPS * torch.finfo(torch.float32).eps * self._terms
        allowed += torch.finfo(dtype).eps * delivered.abs()
        allowed += RESIDUAL_ULPS * self._world_size * max(smallest(dtype), smallest(torch.float32))
        left, right = delivered + new_sum, given.sum(0) + self._old
        wrong = ((left - right).abs() <= allowed).logical_not_()
        if wrong.any():
            place = int(wrong.to(torch.uint8).argmax())
            raise AssertionError(
                f"element {place}: n mean + new residuals is {left[place]:.9g}, contributions + old "
                f"residuals are {right[place]:.9g}; rounding allows {allowed[place]:.3g}"
            )
        self._old, self._old_terms = new_sum, new_terms


def _stacked(outcomes: Sequence[Outcome]) -> Tensor:
    """[rank, num_elements] float64 contributions."""
    return torch.stack([outcome.contribution for outcome in outcomes]).double()


def check_resumed(
    aggregator: Aggregator[Any], through: Sequence[Sequence[Outcome]], resumed: Sequence[Sequence[Outcome]]
) -> None:
    """Checks that [step][rank] outcomes of a state that was saved and loaded are those of one that was not.

    Raises:
        AssertionError: naming the first step and rank that differ.
    """
    for index, (ones, others) in enumerate(zip(through, resumed, strict=True)):
        for rank, (expected, other) in enumerate(zip(ones, others, strict=True)):
            pairs = [
                (expected.result[start:stop], other.result[start:stop])
                for start, stop in expected.owned
                if expected.result is not None and other.result is not None
            ]
            if expected.withheld is not None and other.withheld is not None:
                pairs.append((expected.withheld, other.withheld))
            same = all(_are_equal(aggregator, first, second) for first, second in pairs)
            assert same, f"step {index + 1}: rank {rank}: a saved and loaded state gives another result"


def _are_equal(aggregator: Aggregator[Any], first: Tensor, other: Tensor) -> bool:
    """Bit for bit, or to rounding where the aggregator cannot give more."""
    return (
        torch.allclose(first, other, rtol=1e-5, atol=1e-6)
        if aggregator.order_varies
        else torch.equal(first, other)
    )


def check_schedule(aggregator: Scheduled, world_size: int, layout: BucketLayout) -> Verification:
    """Checks that the schedule delivers the sum, and leaves it where the aggregator takes its step.

    Returns:
        What the schedule sends.

    Raises:
        ScheduleError: it does not; the message says what is wrong, and where.
    """
    schedule = aggregator.schedule(world_size, layout)
    if schedule.world_size != world_size:
        raise ScheduleError(f"{schedule.name}: made for {schedule.world_size} ranks, asked for {world_size}")
    verification = verify(schedule)
    schedule.bounds(layout.num_elements)
    site = aggregator.site(layout)
    if site != "replica":
        owners = split_at_reduction(schedule).owners
        if site in ON_RANK_0 and set(owners) != {0}:
            chunk = next(chunk for chunk, owner in enumerate(owners) if owner)
            raise ScheduleError(
                f"{schedule.name}: the sum of chunk {chunk} ends at {schedule.node_name(owners[chunk])}; "
                f"site {site!r} takes the step at rank 0"
            )
    return verification
