"""Laws over several steps and of schedules: states resume, feedback loses nothing, sums have a place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator
from scaling.aggregators.scheduled import Scheduled
from scaling.bucket import BucketLayout
from scaling.collectives.halves import halves
from scaling.collectives.verify import Verification, verify
from scaling.conformance.contract import ON_RANK_0
from scaling.conformance.inputs import gradients_of, layout_of
from scaling.conformance.run import CPU, RunRanks, run_steps
from scaling.errors import ScheduleError
from scaling.process_group import Group, run_in_process

NUM_STEPS = 3
RESIDUAL_ULPS = 16
"""Allowed for the law of residuals, in float32's units in the last place of its largest terms: each is the
result of some ten additions."""


def check_state(
    aggregator: Aggregator[Any],
    world_size: int,
    num_elements: int = 1000,
    run: RunRanks = run_in_process,
) -> None:
    """Checks that a state saved and loaded continues bit for bit: three steps, or two and one.

    Raises:
        AssertionError: the results differ.
    """
    layout = layout_of(num_elements)
    steps = [_gradients(world_size, num_elements, seed) for seed in range(NUM_STEPS)]

    def work(group: Group) -> list[tuple[Tensor, Tensor]]:
        def last_of(break_after: int | None) -> list[Tensor]:
            state = aggregator.start(layout, group, torch.float32, CPU)
            means: list[Tensor] = []
            for index, gradients in enumerate(steps):
                mean = aggregator.aggregate(state, gradients[group.rank].clone())
                means = (
                    [mean[start:stop].clone() for start, stop in aggregator.owned(state)]
                    if mean is not None
                    else []
                )
                group.barrier()
                if index == break_after:
                    saved = state.state_dict()
                    state = aggregator.start(layout, group, torch.float32, CPU)
                    state.load_state_dict(saved)
            return means

        return list(zip(last_of(None), last_of(NUM_STEPS - 2), strict=True))

    for rank, pairs in enumerate(run(world_size, work)):
        same = all(_are_equal(aggregator, through, resumed) for through, resumed in pairs)
        assert same, f"rank {rank}: a saved and loaded state gives another result"


def _are_equal(aggregator: Aggregator[Any], one: Tensor, other: Tensor) -> bool:
    """Bit for bit, or to rounding where the aggregator cannot give more."""
    return (
        torch.allclose(one, other, rtol=1e-5, atol=1e-6)
        if aggregator.order_varies
        else torch.equal(one, other)
    )


def _gradients(world_size: int, num_elements: int, seed: int) -> list[Tensor]:
    return gradients_of(world_size, num_elements, torch.float32, integers=False, seed=seed)


def check_residuals(
    aggregator: Aggregator[Any],
    world_size: int,
    num_elements: int = 1000,
    run: RunRanks = run_in_process,
) -> bool:
    """Checks n mean + new residuals = gradients + old residuals over three steps, in float32.

    Returns:
        Whether there was something to check: False for aggregators without error feedback.

    Raises:
        AssertionError: the law does not hold.
    """
    layout = layout_of(num_elements)
    steps = [_gradients(world_size, num_elements, seed) for seed in range(NUM_STEPS)]
    old = torch.zeros(num_elements, dtype=torch.float64)
    for index, outcomes in enumerate(run_steps(aggregator, layout, steps, run)):
        kept = [outcome.left_over.double() for outcome in outcomes if outcome.left_over is not None]
        if not kept:
            return False
        assert len(kept) == world_size, "some ranks have a left_over, and some have none"
        delivered = torch.zeros_like(old)
        for outcome in outcomes[: 1 if aggregator.site(layout) == "replica" else None]:
            for start, stop in outcome.owned:
                assert outcome.result is not None, "a rank that owns elements has their mean"
                delivered[start:stop] = world_size * outcome.result[start:stop].double()
        gradients, new = torch.stack(steps[index]).double(), torch.stack(kept).sum(0)
        scale = gradients.abs().sum(0) + torch.stack(kept).abs().sum(0) + old.abs() + delivered.abs()
        allowed = RESIDUAL_ULPS * torch.finfo(torch.float32).eps * scale.max()
        error = (delivered + new - gradients.sum(0) - old).abs().max()
        assert bool(error <= allowed), (
            f"step {index}: n mean + new residuals is off gradients + old residuals by {error:.3g}"
        )
        old = new
    return True


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
        owners = halves(schedule).owners
        if site in ON_RANK_0 and set(owners) != {0}:
            chunk = next(chunk for chunk, owner in enumerate(owners) if owner)
            raise ScheduleError(
                f"{schedule.name}: the sum of chunk {chunk} ends at {schedule.node_name(owners[chunk])}; "
                f"site {site!r} takes the step at rank 0"
            )
    return verification
