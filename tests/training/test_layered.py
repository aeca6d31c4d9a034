"""The layer-by-layer step trains as the eager one does, whatever its buckets."""

import functools
import gc
import weakref

import pytest
import torch
from torch import nn

from scaling.bucket import BucketLayout
from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.captured import CapturedStep
from scaling.training.layered import LayeredStep, bucket_tensors
from scaling.training.optimizers import SgdSettings
from tests.training import small
from tests.training.small import BUCKETS_MB, CPU, SGD, batch, eager, normalised, perceptron

NUM_STEPS = 4


network = functools.partial(normalised, 12, 40, 30, 6)


def layered(group: InProcessGroup, aggregator: str, bucket_mb: float) -> LayeredStep:
    return small.layered(network(), aggregator, SGD, group, bucket_mb=bucket_mb)


def trained(step, rank: int, device: torch.device | str = CPU) -> list[torch.Tensor]:
    losses = [step(*batch(rank, number, device)) for number in range(NUM_STEPS)]
    return [torch.stack(losses), step.replica.parameters.clone()]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bucket_mb", BUCKETS_MB)
@pytest.mark.parametrize("aggregator", ["none", "all_reduce", "one_bit", "cntk"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_it_trains_as_the_eager_step(aggregator, world_size, bucket_mb):
    def work(group):
        exact = trained(eager(network(), aggregator, SGD, group), group.rank)
        return exact, trained(layered(group, aggregator, bucket_mb), group.rank)

    for exact, seen in run_in_process(world_size, work):
        for wanted, got in zip(exact, seen, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("aggregator", ["one_bit", "two_bit", "power_sgd"])
@pytest.mark.parametrize("new", BUCKETS_MB)
@pytest.mark.parametrize("old", BUCKETS_MB)
def test_it_goes_on_from_a_saved_state_of_these_or_other_buckets(aggregator, old, new):
    """With codecs whose values no bucket decides; in the same buckets with the same bits."""

    def work(group):
        first, second = (layered(group, aggregator, bucket_mb) for bucket_mb in (old, new))
        for number in range(2):
            first(*batch(group.rank, number))
        second.load_state_dict(first.state_dict())
        return [
            [*(step(*batch(group.rank, number)) for number in (7, 8)), step.replica.parameters.clone()]
            for step in (first, second)
        ]

    rounding = {"rtol": 0, "atol": 0} if old == new else {"rtol": 1e-5, "atol": 1e-6}
    for first, second in run_in_process(2, work):
        torch.testing.assert_close(second, first, **rounding)


@pytest.mark.parametrize(("old", "new"), [(1e-6, 100.0), (100.0, 1e-3)])
def test_residuals_of_stripes_follow_into_other_buckets(old, new):
    def withheld(step):
        kept = {}
        for bucket in step._parts:
            layout = bucket.state.layout
            kept |= dict(zip(layout.names, layout.views(bucket.state.total_residual()), strict=True))
        return torch.cat([kept[name].double().flatten() for name in sorted(kept)])

    def work(group):
        first, second = (layered(group, "one_bit_flat", bucket_mb) for bucket_mb in (old, new))
        for number in range(2):
            first(*batch(group.rank, number))
        second.load_state_dict(first.state_dict())
        return torch.stack([withheld(first), withheld(second)])

    before, after = sum(run_in_process(2, work))
    assert bool(before.any())
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)


def test_parameters_that_the_loss_does_not_need_have_a_gradient_of_zero():
    def work(group):
        module, settings = perceptron(12, 6), SgdSettings(learning_rate=0.1)
        module.unused = nn.Parameter(torch.ones(3))
        small.layered(module, "all_reduce", settings, group, bucket_mb=1e-6)(*batch(group.rank, 0))
        return torch.equal(module.unused, torch.ones(3))

    assert all(run_in_process(2, work))


def test_a_step_that_nobody_has_is_gone():
    def work(group):
        step = layered(group, "one_bit", 1e-3)
        step(*batch(0, 0))
        watched = weakref.ref(step)
        del step
        gc.collect()
        return watched() is None

    assert run_in_process(1, work) == [True]


@pytest.mark.parametrize(
    ("min_elements", "buckets"),
    [
        (1, [[5], [4], [3], [2], [1], [0]]),
        (5, [[4, 5], [3], [1, 2], [0]]),
        (12, [[3], [0, 1, 2, 4, 5]]),
        (20, [[3], [0, 1, 2, 4, 5]]),
        (100, [[0, 1, 2, 3, 4, 5]]),
    ],
)
def test_large_tensors_have_a_bucket_of_their_own_and_small_ones_share(min_elements, buckets):
    layout = BucketLayout.of([(str(size), (size,)) for size in (10, 2, 3, 20, 1, 4)])
    assert bucket_tensors(layout, min_elements) == buckets


@pytest.mark.gpu
@pytest.mark.parametrize("aggregator", ["none", "all_reduce", "one_bit"])
@pytest.mark.parametrize("bucket_mb", BUCKETS_MB)
def test_captured_it_trains_as_the_eager_step(aggregator, bucket_mb):
    def work(group):
        chosen = (aggregator, SGD, group)
        exact = trained(eager(network().cuda(), *chosen), 0, "cuda")
        step = small.layered(network().cuda(), *chosen, bucket_mb=bucket_mb, capturable=True)
        return exact, trained(CapturedStep(step, *batch(0, 99, "cuda"), group), 0, "cuda")

    (((expected, _), (seen, _)),) = run_in_process(1, work)
    assert seen.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
