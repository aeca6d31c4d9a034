"""100 steps of free training with exact aggregators stay as near to one worker's as reordered sums let them.

The bound is fixed before: one worker trains again on the same batches with their samples in other orders,
whole or in two micro-batches. What their losses differ by from the first training's is rounding alone, which
grows from step to step; at each step the exact aggregators may differ by TIMES the largest difference so far.
"""

import functools
import itertools

import pytest
import torch

from scaling.process_group import run_in_process
from scaling.training.compute import Compute
from tests.training.decoder import BATCH, EXACT, OPTIMIZERS, aggregator_in_threads, batches, network
from tests.training.small import eager

pytestmark = pytest.mark.quality

WITH_ZERO1 = [*EXACT, "zero1"]
NUM_STEPS = 100
NUM_ORDERS = 4
TIMES = 8.0
LEAST = 4 * 2.0**-23
"""Of a loss, as a ratio: it is itself rounded."""


def losses(name, optimizer, accumulate=1, world_size=2, order=0, device="cpu"):
    """[NUM_STEPS] of the whole batch; `order` tells how its samples are sorted, 0 as they are."""

    def trained(group):
        chosen = (network().to(device), aggregator_in_threads(name, device), OPTIMIZERS[optimizer], group)
        step = eager(*chosen, compute=Compute(accumulate=accumulate))
        generator, found = torch.Generator().manual_seed(order), []
        for inputs, targets in batches(NUM_STEPS):
            places = torch.randperm(BATCH, generator=generator) if order else torch.arange(BATCH)
            own = places.chunk(world_size)[group.rank]
            found.append(step(inputs[own].to(device), targets[own].to(device)).item())
        return torch.tensor(found, dtype=torch.float64)

    return torch.stack(run_in_process(world_size, trained)).mean(0)


@functools.cache
def one_worker(optimizer, device):
    """Its losses, and how far those of several workers may be off, by step."""
    expected = losses("all_reduce", optimizer, world_size=1, device=device)
    others = [
        losses("all_reduce", optimizer, 1 + order % 2, 1, order, device) for order in range(1, NUM_ORDERS + 1)
    ]
    apart = (torch.stack(others) - expected).abs().max(0).values
    return expected, TIMES * apart.cummax(0).values + LEAST * expected


def assert_within(name, optimizer, accumulate, device="cpu"):
    expected, allowed = one_worker(optimizer, device)
    given = losses(name, optimizer, accumulate, device=device)
    assert bool(((given - expected).abs() <= allowed).all())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_bound_is_one_of_rounding(optimizer):
    expected, allowed = one_worker(optimizer, "cpu")
    assert float((allowed / expected).max()) < 1e-3
    assert float(expected[-10:].mean()) < float(expected[:10].mean())


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("optimizer", "name"), list(itertools.product(OPTIMIZERS, WITH_ZERO1)))
def test_losses_of_exact_aggregators_stay_within_it(name, optimizer):
    """With each optimizer, of which half accumulate; the other half does with the next optimizer."""
    assert_within(name, optimizer, 1 + (WITH_ZERO1.index(name) + list(OPTIMIZERS).index(optimizer)) % 2)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses_of_a_lossy_aggregator_do_not(optimizer):
    expected, allowed = one_worker(optimizer, "cpu")
    assert bool(((losses("bf16", optimizer) - expected).abs() > allowed).any())


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["all_reduce", "ring"])
def test_losses_stay_within_it_on_a_gpu_that_two_workers_share(name, optimizer, accumulate):
    assert_within(name, optimizer, accumulate, "cuda")
