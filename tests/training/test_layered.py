"""The layer-by-layer step trains as the eager one does, whatever its buckets."""

import gc
import weakref

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.captured import CapturedStep
from scaling.training.layered import LayeredStep, bucket_tensors
from scaling.training.optimizers import SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep

SETTINGS = SgdSettings(learning_rate=0.05, momentum=0.9, weight_decay=1e-4)
NUM_STEPS = 4
BUCKETS_MB = [1e-6, 1e-3, 100.0]
"""A bucket a tensor, some, and one."""


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(12, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(30, 6))


def batch(rank: int, number: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + number)
    inputs, targets = torch.randn((10, 12), generator=generator), torch.randint(6, (10,), generator=generator)
    return inputs.to(device), targets.to(device)


def layered(
    group: InProcessGroup, aggregator: str, bucket_mb: float, module: nn.Module | None = None
) -> LayeredStep:
    replica = FlatReplica(module or network())
    return LayeredStep(replica, create(aggregator), SETTINGS, group, bucket_mb=bucket_mb)


def trained(step, rank: int) -> list[torch.Tensor]:
    losses = [step(*batch(rank, number)) for number in range(NUM_STEPS)]
    return [torch.stack(losses), step.replica.parameters.clone()]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bucket_mb", BUCKETS_MB)
@pytest.mark.parametrize("aggregator", ["none", "all_reduce", "one_bit", "cntk"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_it_trains_as_the_eager_step(aggregator, world_size, bucket_mb):
    def eager(group):
        return trained(EagerStep(FlatReplica(network()), create(aggregator), SETTINGS, group), group.rank)

    def ours(group):
        return trained(layered(group, aggregator, bucket_mb), group.rank)

    expected, seen = run_in_process(world_size, eager), run_in_process(world_size, ours)
    for one, other in zip(expected, seen, strict=True):
        for wanted, got in zip(one, other, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bucket_mb", BUCKETS_MB)
def test_it_goes_on_from_a_saved_state(bucket_mb):
    def work(group):
        first = layered(group, "one_bit", bucket_mb)
        for number in range(2):
            first(*batch(group.rank, number))
        state = first.state_dict()
        second = layered(group, "one_bit", bucket_mb)
        second.load_state_dict(state)
        return [[step(*batch(group.rank, 7)), step.replica.parameters.clone()] for step in (first, second)]

    for first, second in run_in_process(2, work):
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("aggregator", ["one_bit", "two_bit", "power_sgd"])
@pytest.mark.parametrize("new", BUCKETS_MB)
@pytest.mark.parametrize("old", BUCKETS_MB)
def test_it_goes_on_from_a_saved_state_of_other_buckets(aggregator, old, new):
    """With codecs whose values no bucket decides."""

    def work(group):
        first = layered(group, aggregator, old)
        for number in range(2):
            first(*batch(group.rank, number))
        second = layered(group, aggregator, new)
        second.load_state_dict(first.state_dict())
        return [
            torch.stack([step(*batch(group.rank, number)) for number in (7, 8)]) for step in (first, second)
        ]

    for first, second in run_in_process(2, work):
        torch.testing.assert_close(second, first, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("old", "new"), [(1e-6, 100.0), (100.0, 1e-3)])
def test_residuals_of_stripes_follow_into_other_buckets(old, new):
    def withheld(step):
        kept = {}
        for bucket in step._buckets:
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
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(12, 6), nn.Linear(3, 3)

        def forward(self, inputs):
            return self.used(inputs)

    def work(group):
        module = Partly()
        before = module.unused.weight.detach().clone()
        replica = FlatReplica(module)
        settings = SgdSettings(learning_rate=0.1)
        step = LayeredStep(replica, create("all_reduce"), settings, group, bucket_mb=1e-6)
        step(*batch(group.rank, 0))
        return torch.equal(module.unused.weight, before)

    assert all(run_in_process(2, work))


def test_a_step_that_nobody_has_is_gone():
    def work(group):
        module = network()
        step = layered(group, "one_bit", 1e-3, module)
        step(*batch(0, 0))
        watched = weakref.ref(step)
        del step
        gc.collect()
        return watched() is None

    assert run_in_process(1, work) == [True]


class TestBuckets:
    LAYOUT = BucketLayout.of([("a", (10,)), ("b", (2,)), ("c", (3,)), ("d", (20,)), ("e", (1,)), ("f", (4,))])

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
    def test_large_tensors_have_their_own_and_small_ones_share(self, min_elements, buckets):
        assert bucket_tensors(self.LAYOUT, min_elements) == buckets


@pytest.mark.gpu
@pytest.mark.parametrize("aggregator", ["none", "all_reduce", "one_bit"])
@pytest.mark.parametrize("bucket_mb", BUCKETS_MB)
def test_captured_it_trains_as_the_eager_step(aggregator, bucket_mb):
    def run(group, make):
        step = make(group)
        return [step(*batch(0, number, "cuda")).item() for number in range(NUM_STEPS)]

    def eager(group):
        return EagerStep(FlatReplica(network().cuda()), create(aggregator), SETTINGS, group)

    def captured(group):
        replica = FlatReplica(network().cuda())
        options = {"bucket_mb": bucket_mb, "capturable": True}
        step = LayeredStep(replica, create(aggregator), SETTINGS, group, **options)
        return CapturedStep(step, *batch(0, 99, "cuda"), group)

    (expected,) = run_in_process(1, lambda group: run(group, eager))
    (seen,) = run_in_process(1, lambda group: run(group, captured))
    assert seen == pytest.approx(expected, rel=1e-5)
