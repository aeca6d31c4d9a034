"""Ten steps in every precision, each from the parameters of one worker: mean gradient and update agree.

1. An element of the mean gradient is off by at most 32 times the precision's epsilon (float32: 2**-23, bf16:
   2**-8, fp16: 2**-11) times the largest element: shares of a batch round their sums in another order.
2. The update, of one worker and of several, is the optimizer's of its mean gradients, computed in float64,
   but for rounding: 32 epsilons of its terms, and 1e-4 of Adam's step (`scaling.training.update_check`).

100 steps of free training with exact aggregators stay as near to one worker's as reordered sums let them.
The bound is fixed before: one worker trains again on the same batches with their samples in other orders,
whole or in two micro-batches. What their losses differ by from the first training's is rounding alone, which
grows from step to step; at each step the exact aggregators may differ by TIMES the largest difference so far.
"""

import copy
import functools
import itertools

import pytest
import torch

from scaling.aggregators.registry import BUILT_IN, create
from scaling.process_group import run_in_process
from scaling.training.captured import CapturedStep
from scaling.training.compute import AUTOCAST, Compute, with_checkpointing
from scaling.training.gradients import GradientSettings
from scaling.training.replica import FlatReplica
from scaling.training.update_check import Delivered, Moments, worst_update
from tests.training.decoder import BATCH, EXACT, OPTIMIZERS, aggregator_in_threads, batches, network
from tests.training.small import eager, flat, layered

OTHER_EXACT = [
    name
    for name in BUILT_IN
    if (one := create(name)).exchanges and not one.lossy and one.library is None and name not in EXACT
    if not (one.overlapped_only or one.releases_gradients)
]
EPSILONS = {"float32": 2.0**-23, "bf16": 2.0**-8, "fp16": 2.0**-11}
ROUNDING = 32.0
NUM_STEPS = 10


def compute_of(precision, **own):
    return Compute(AUTOCAST.get(precision), **own)


def taken(step, inputs, targets):
    """The mean gradient, unscaled and by whom it was had, of a step."""
    record = step.record = []
    factor = step.treatment.expected_factor()
    step(inputs, targets)
    step.record = None
    return [(one.owned, None if one.mean is None else one.mean.float() * factor) for one in record]


def joined(tensors):
    return torch.cat([one.flatten() for one in tensors])


def check_each_step(name, optimizer, precision, accumulate, world_size=2, device="cpu"):
    """One worker goes on freely; all others begin each step from its parameters."""
    settings = OPTIMIZERS[optimizer]
    alone = one_worker(optimizer, precision, device)

    def steps_of(group):
        chosen = (network().to(device), aggregator_in_threads(name, device), settings, group)
        step, found = eager(*chosen, compute=compute_of(precision, accumulate=accumulate)), []
        for (inputs, targets), (before, _, _) in zip(batches(NUM_STEPS), alone, strict=True):
            with torch.no_grad():
                for own, values in zip(step.replica.trainable, before, strict=True):
                    own.copy_(values)
            if chosen[1].update_site.startswith("host"):
                step.load_state_dict(copy.deepcopy(step.state_dict()))
            share = slice(group.rank * BATCH // world_size, (group.rank + 1) * BATCH // world_size)
            ((owned, mean),) = taken(step, inputs[share].to(device), targets[share].to(device))
            found.append((owned, mean, flat(step.replica.module)))
        return found

    ranks = run_in_process(world_size, steps_of)
    moments = Moments.zero(settings, alone[0][1])
    for (before, expected, _), *of_ranks in zip(alone, *ranks, strict=True):
        whole = torch.full_like(expected, float("nan"))  # put together from those who update
        for owned, mean, _ in of_ranks:
            for start, stop in owned:
                whole[start:stop] = mean[start:stop]
        allowed = ROUNDING * EPSILONS[precision] * float(expected.abs().max())
        assert float((whole - expected).abs().max()) <= allowed
        parameters = [after for _, _, after in of_ranks]
        assert all(torch.equal(parameters[0], other) for other in parameters[1:])
        assert (
            worst_update(settings, parameters[0], joined(before), Delivered(whole, 0.0), moments, 0.0) is None
        )


@pytest.fixture(scope="module", autouse=True)
def _forget():
    yield
    one_worker.cache_clear()


@functools.cache
def one_worker(optimizer, precision, device):
    """Of each step: the parameters before it, its gradient, and those after it."""

    def steps_of(group):
        chosen = (network().to(device), "all_reduce", OPTIMIZERS[optimizer], group)
        step, found = eager(*chosen, compute=compute_of(precision)), []
        for inputs, targets in batches(NUM_STEPS):
            before = [one.detach().clone() for one in step.replica.trainable]
            ((_, gradient),) = taken(step, inputs.to(device), targets.to(device))
            found.append((before, gradient, flat(step.replica.module)))
        return found

    found = run_in_process(1, steps_of)[0]
    moments = Moments.zero(OPTIMIZERS[optimizer], found[0][1])
    for before, gradient, after in found:
        exact = Delivered(gradient, 0.0)
        assert worst_update(OPTIMIZERS[optimizer], after, joined(before), exact, moments, 0.0) is None
    return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("precision", "accumulate"), [("float32", 1), ("float32", 2), ("bf16", 2)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", EXACT)
def test_each_step_agrees_with_one_worker_from_the_same_state(name, precision, optimizer, accumulate):
    check_each_step(name, optimizer, precision, accumulate)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OTHER_EXACT)
def test_each_step_of_every_other_exact_aggregator_agrees_too(name):
    check_each_step(name, "adamw", "bf16", 2)


@pytest.mark.parametrize("name", ["all_reduce", "ring", "tree"])
def test_each_step_agrees_in_fp16_with_its_scaled_loss(name):
    check_each_step(name, "adamw", "fp16", 2)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", EPSILONS)
@pytest.mark.parametrize("name", ["all_reduce", "ring"])
def test_each_step_agrees_on_a_gpu_that_two_workers_share(name, precision, optimizer):
    check_each_step(name, optimizer, precision, 2, device="cuda")


@pytest.mark.parametrize("wire", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["all_reduce", "ring", "tree", "host_serial"])
def test_the_wires_precision_bounds_the_mean(name, wire):
    def mean_of(group, gradients):
        step = eager(network(), name, OPTIMIZERS["sgd"], group, gradients)
        inputs, targets = next(batches(1))
        ((owned, mean),) = taken(step, inputs.chunk(2)[group.rank], targets.chunk(2)[group.rank])
        return owned, mean, group.meter.bytes_sent

    exact = run_in_process(2, lambda group: mean_of(group, GradientSettings()))
    narrow = run_in_process(2, lambda group: mean_of(group, GradientSettings(wire)))
    for (owned, expected, bytes_exact), (_, given, bytes_narrow) in zip(exact, narrow, strict=True):
        for start, stop in owned:
            error = (given - expected)[start:stop].abs().max()
            assert 0 < float(error) <= 4 * torch.finfo(wire).eps * float(expected.abs().max())
        assert bytes_narrow < bytes_exact


def test_activations_that_are_computed_again_give_the_same_gradient():
    inputs, targets = next(batches(1))
    gradients = []
    for module in (network(), with_checkpointing(network())):
        replica = FlatReplica(module)
        replica.backward(replica.forward(inputs, targets))
        gradients.append(replica.gradient.clone())
    assert torch.equal(*gradients)


CLIPPED = GradientSettings(clip_norm=0.5)


def run_on_gpu(make, precision, num_steps=4):
    """Losses of a step on one GPU, captured if it is made by one of CAPTURED."""

    def losses(group):
        data = [(inputs.cuda(), targets.cuda()) for inputs, targets in batches(num_steps)]
        is_captured = make in CAPTURED
        compute = compute_of(precision, accumulate=2, captured=is_captured)
        step = make(network().cuda(), "all_reduce", OPTIMIZERS["adamw"], group, CLIPPED, compute=compute)
        if is_captured:
            step = CapturedStep(step, *data[0], group)
        return [float(step(*batch)) for batch in data], step

    return run_in_process(1, losses)[0]


CAPTURED = [
    functools.partial(eager, capturable=True),
    functools.partial(layered, bucket_mb=0.05, capturable=True),
]
WAYS = pytest.mark.parametrize("make", CAPTURED, ids=["captured", "layered"])


@pytest.mark.gpu
@WAYS
@pytest.mark.parametrize("precision", EPSILONS)
def test_captured_steps_learn_what_eager_ones_do(make, precision):
    (expected, _), (given, _) = (run_on_gpu(one, precision) for one in (eager, make))
    assert given == pytest.approx(expected, rel=64 * EPSILONS[precision])


@pytest.mark.gpu
@WAYS
def test_a_captured_step_skips_an_infinite_mean_and_halves_its_scale(make):
    _, step = run_on_gpu(make, "fp16", 1)
    before = [one.detach().clone() for one in step.replica.trainable]
    scale = step.treatment.state_dict()["scale"]
    step.treatment.load_state_dict({**step.treatment.state_dict(), "scale": torch.full_like(scale, 2.0**60)})
    inputs, targets = next(batches(1))
    step(inputs.cuda(), targets.cuda())
    assert float(step.treatment.state_dict()["scale"]) == 2.0**59
    assert all(torch.equal(one, other) for one, other in zip(step.replica.trainable, before, strict=True))


FREE_STEPS = 100
NUM_ORDERS = 4
TIMES = 8.0
LEAST = 4 * 2.0**-23
"""Of a loss, as a ratio: it is itself rounded."""
WITH_ZERO1 = [*EXACT, "zero1"]


def losses(name, optimizer, accumulate=1, world_size=2, order=0, device="cpu"):
    """[FREE_STEPS] of the whole batch; `order` tells how its samples are sorted, 0 as they are."""

    def trained(group):
        chosen = (network().to(device), aggregator_in_threads(name, device), OPTIMIZERS[optimizer], group)
        step = eager(*chosen, compute=Compute(accumulate=accumulate))
        generator, found = torch.Generator().manual_seed(order), []
        for inputs, targets in batches(FREE_STEPS):
            places = torch.randperm(BATCH, generator=generator) if order else torch.arange(BATCH)
            own = places.chunk(world_size)[group.rank]
            found.append(step(inputs[own].to(device), targets[own].to(device)).item())
        return torch.tensor(found, dtype=torch.float64)

    return torch.stack(run_in_process(world_size, trained)).mean(0)


@functools.cache
def free_worker(optimizer, device):
    """Its losses, and how far those of several workers may be off, by step."""
    expected = losses("all_reduce", optimizer, world_size=1, device=device)
    others = [
        losses("all_reduce", optimizer, 1 + order % 2, 1, order, device) for order in range(1, NUM_ORDERS + 1)
    ]
    apart = (torch.stack(others) - expected).abs().max(0).values
    return expected, TIMES * apart.cummax(0).values + LEAST * expected


def assert_within(name, optimizer, accumulate, device="cpu"):
    expected, allowed = free_worker(optimizer, device)
    given = losses(name, optimizer, accumulate, device=device)
    assert bool(((given - expected).abs() <= allowed).all())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.quality
def test_the_bound_is_one_of_rounding(optimizer):
    expected, allowed = free_worker(optimizer, "cpu")
    assert float((allowed / expected).max()) < 1e-3
    assert float(expected[-10:].mean()) < float(expected[:10].mean())


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("optimizer", "name"), list(itertools.product(OPTIMIZERS, WITH_ZERO1)))
@pytest.mark.quality
def test_losses_of_exact_aggregators_stay_within_it(name, optimizer):
    """With each optimizer, of which half accumulate; the other half does with the next optimizer."""
    assert_within(name, optimizer, 1 + (WITH_ZERO1.index(name) + list(OPTIMIZERS).index(optimizer)) % 2)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.quality
def test_losses_of_a_lossy_aggregator_do_not(optimizer):
    expected, allowed = free_worker(optimizer, "cpu")
    assert bool(((losses("bf16", optimizer) - expected).abs() > allowed).any())


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["all_reduce", "ring"])
@pytest.mark.quality
def test_losses_stay_within_it_on_a_gpu_that_two_workers_share(name, optimizer, accumulate):
    assert_within(name, optimizer, accumulate, "cuda")
