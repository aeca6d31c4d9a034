"""Sharded steps: the same training, with each rank's share of the optimizer's state and of the gradients."""

import functools
import gc

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.errors import StudyError
from scaling.process_group import InProcessGroup, run_in_process
from scaling.study.parts import TrainingPart
from scaling.study.training_cells import check_part
from scaling.training.compute import Compute
from scaling.training.gradients import AS_THEY_ARE, GradientSettings
from tests.made import WORKLOAD
from tests.training import small
from tests.training.small import BUCKETS_MB, OPTIMIZERS, perceptron, shared_batches

NUM_STEPS = 5
CLIPPED = GradientSettings(clip_norm=0.05)

network = functools.partial(perceptron, 12, 41, 30, 7)


def trained(step, group: InProcessGroup) -> tuple[torch.Tensor, int]:
    for batch in shared_batches(group, NUM_STEPS):
        step(*batch)
    return step.replica.parameters.clone(), step.optimizer_state_bytes


def live_bytes() -> dict[int, int]:
    """Address -> size of the memory of all tensors that there are."""
    gc.collect()
    tensors = [found for found in gc.get_objects() if type(found) in (torch.Tensor, nn.Parameter)]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


def eager(aggregator, optimizer, gradients=AS_THEY_ARE):
    chosen = (aggregator, OPTIMIZERS[optimizer])
    return lambda group: trained(small.eager(network(), *chosen, group, gradients), group)


def made(aggregator, optimizer, group, bucket_mb=1e-3, gradients=AS_THEY_ARE, accumulate=1):
    chosen, compute = (aggregator, OPTIMIZERS[optimizer], group, gradients), Compute(accumulate=accumulate)
    return small.layered(network(), *chosen, bucket_mb=bucket_mb, compute=compute)


def layered(aggregator, optimizer, *how, **own):
    return lambda group: trained(made(aggregator, optimizer, group, *how, **own), group)


def assert_same_training(seen, expected):
    ((wanted, _),) = expected
    for parameters, _ in seen:
        torch.testing.assert_close(parameters, wanted, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(parameters, seen[0][0]) for parameters, _ in seen)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_eager_step_of_shards_is_that_of_one_worker(world_size, optimizer):
    expected = run_in_process(1, eager("all_reduce", optimizer))
    assert_same_training(run_in_process(world_size, eager("zero1", optimizer)), expected)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bucket_mb", BUCKETS_MB)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("aggregator", "world_size"), [("zero1", 3), ("zero2", 1), ("zero2", 2), ("zero2", 4)]
)
def test_layered_step_of_shards_is_that_of_one_worker(aggregator, world_size, optimizer, bucket_mb):
    expected = run_in_process(1, eager("all_reduce", optimizer))
    seen = run_in_process(world_size, layered(aggregator, optimizer, bucket_mb))
    assert_same_training(seen, expected)


@pytest.mark.parametrize("aggregator", ["zero1", "zero2"])
def test_clipping_takes_the_norm_of_all_shards(aggregator):
    expected = run_in_process(1, eager("all_reduce", "sgd", CLIPPED))
    assert_same_training(run_in_process(3, layered(aggregator, "sgd", 1e-3, CLIPPED)), expected)
    unclipped = run_in_process(1, eager("all_reduce", "sgd"))
    assert not torch.allclose(unclipped[0][0], expected[0][0], rtol=1e-3, atol=1e-4)


def test_micro_batches_are_exchanged_once():
    expected = run_in_process(1, eager("all_reduce", "adamw"))
    assert_same_training(run_in_process(2, layered("zero2", "adamw", 1e-3, accumulate=3)), expected)


@pytest.mark.parametrize("world_size", [2, 4])
def test_each_rank_keeps_its_share_of_the_optimizers_state(world_size):
    (_, whole), *_ = run_in_process(world_size, eager("all_reduce", "adamw"))
    shares = [state for _, state in run_in_process(world_size, eager("zero1", "adamw"))]
    assert max(shares) <= whole / world_size + 64
    assert sum(shares) <= whole + 64 * world_size


@pytest.mark.parametrize(("aggregator", "most"), [("zero1", 6), ("zero2", 0)])
def test_only_gradients_that_were_not_exchanged_yet_take_memory(aggregator, most):
    def work(group):
        step, counts = made(aggregator, "sgd", group, BUCKETS_MB[0]), []

        def count(_):  # comes behind the step's own hook
            counts.append(sum(one.grad is not None for one in step.replica.trainable))

        for parameter in step.replica.trainable:
            parameter.register_post_accumulate_grad_hook(count)
        trained(step, group)
        return max(counts)

    assert run_in_process(2, work) == [most] * 2


def test_it_goes_on_from_a_saved_state():
    def work(group):
        first, second = (made("zero2", "adamw", group) for _ in range(2))
        trained(first, group)
        second.load_state_dict(first.state_dict())
        return trained(first, group)[0], trained(second, group)[0]

    for one, other in run_in_process(2, work):
        assert torch.equal(one, other)


def part(**keys) -> TrainingPart:
    fixed = {"workloads": [WORKLOAD], "world_sizes": [2], "scaling": "strong"}
    return TrainingPart.model_validate({**fixed, "aggregators": ["zero2"], **keys})


@pytest.mark.parametrize(("step", "device"), [("eager", "cpu"), ("captured", "cuda")])
def test_gradients_that_are_all_there_cannot_be_released(step, device):
    with pytest.raises(StudyError, match=r"'zero2' releases gradients .* use step: overlapped"):
        check_part(part(step=[step]), [create("zero2")], [2], device)


def test_combinations_that_shards_allow():
    for name, device in (("zero1", "cpu"), ("zero2", "cuda")):
        check_part(part(step=["overlapped"]), [create(name)], [1, 2], device)
    for name, keys in (("zero2", {"bucket_mb": [25.0]}), ("zero1", {"step": ["captured", "eager"]})):
        check_part(part(**{"step": ["captured"], **keys}), [create(name)], [1, 2], "cuda")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_zero2_keeps_no_gradient_from_one_step_to_the_next(optimizer):
    def work(group):
        before = live_bytes()
        step = made("zero2", optimizer, group)
        parameters, state_bytes = trained(step, group)
        found = sum(size for address, size in live_bytes().items() if address not in before)
        return found - 2 * parameters.nbytes - state_bytes  # one is the copy that `trained` gives

    (rest,) = run_in_process(1, work)
    assert 0 <= rest < 200, "bytes besides the parameters and the optimizer's state"
