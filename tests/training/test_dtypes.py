"""Parameters keep their dtypes in the eager and the layer-by-layer step, or are refused by name."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from scaling.aggregators.base import DTYPES
from scaling.aggregators.native import AllReduce
from scaling.aggregators.registry import create
from scaling.errors import CheckpointError, StudyError
from scaling.process_group import run_in_process
from scaling.training.layered import LayeredStep
from scaling.training.replica import FlatReplica, require_dtypes
from scaling.training.step import EagerStep
from tests.training.mixed_models import (
    MIXED,
    NUM_STEPS,
    RARE,
    SETTINGS,
    Network,
    apart,
    batch,
    coarsest_eps,
    plainly_trained,
)

IN_PLACES = ("caffe", "mxnet_device", "torch_cpu")
"""The root's update, owners', and each rank's share of the host's parameters."""
EXACT = {name: {} for name in ("all_reduce", "ring", "tree", "host_serial", "host_parallel", *IN_PLACES)}
EXACT["one_bit"] = {"bits": 32}
LOSSY = {"one_bit": {}, "one_bit_flat": {}, "power_sgd": {}, "top_k": {"density": 0.2}, "fp16": {}}
LAYERED = ("all_reduce", "ring", "tree", "one_bit")
RESUMED_LAYERED = ("ring", "one_bit", "one_bit_flat", "power_sgd", "qsgd")
BUCKETS_MB = {"whole": 25.0, "tiny": 1e-4}
WAYS = [*(("eager", name) for name in EXACT), *((mode, name) for mode in BUCKETS_MB for name in LAYERED)]

ULPS = 16
"""Of a parameter after some steps, each of which rounds a few times; the mean of two ranks rounds once."""


def made(mode, module, group, name, parameters=None):
    chosen = (FlatReplica(module), create(name, parameters), SETTINGS, group)
    return EagerStep(*chosen) if mode == "eager" else LayeredStep(*chosen, bucket_mb=BUCKETS_MB[mode])


def take(step, rank, start=0, stop=NUM_STEPS):
    return [step(*batch(rank, number)).item() for number in range(start, stop)]


def trained(mode, make, world_size, name, parameters=None):
    """Each rank's module after some steps."""

    def work(group):
        step = made(mode, make(), group, name, parameters)
        take(step, group.rank)
        step.check()
        return step.replica.module

    return run_in_process(world_size, work)


def unit(module, world_size, name):
    """The sum of two gradients rounds once, as their mean does; one of three rounds in the coarsest dtype.

    Torch rounds 16-bit values otherwise at the end of a span, and `torch_cpu` steps a span a rank.
    """
    rounds_once = world_size < 3 and name != "torch_cpu"
    return 0.0 if rounds_once else coarsest_eps(module)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("model", MIXED)
@pytest.mark.parametrize(("mode", "name"), WAYS)
def test_parameters_are_a_plain_loops(mode, name, model, world_size):
    expected = plainly_trained(MIXED[model](), world_size)
    for module in trained(mode, MIXED[model], world_size, name, EXACT[name]):
        assert apart(module, expected, unit(expected, world_size, name)) < ULPS


def test_a_plain_loop_that_rounds_to_another_dtype_would_be_seen():
    expected = plainly_trained(MIXED["three dtypes"](), 2)
    module = plainly_trained(MIXED["bfloat16 head"](), 2)
    module.scale = nn.Parameter(module.scale.detach().double())
    assert apart(module, expected) > 100 * ULPS


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", ["three dtypes", "float16", "float64"])
@pytest.mark.parametrize("name", LOSSY)
def test_lossy_ones_leave_the_same_bits_on_all_ranks_and_learn(name, model):
    def work(group):
        step = made("eager", MIXED[model](), group, name, LOSSY[name])
        losses = [sum(take(step, group.rank, 0, 4)) for _ in range(6)]
        step.check()
        return step.replica.module, losses

    (first, losses), (second, _) = run_in_process(2, work)
    assert apart(first, second) == 0
    assert losses[-1] < 0.8 * losses[0]
    assert [one.dtype for one in first.parameters()] == [one.dtype for one in MIXED[model]().parameters()]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("mode", ["eager", "whole", "tiny"])
@pytest.mark.parametrize("model", RARE)
def test_rare_parameters_are_trained_as_by_a_plain_loop(model, mode, world_size):
    """Weight decay moves a parameter that the loss does not need here, and not in a plain loop."""
    expected = plainly_trained(RARE[model](), world_size)
    for module in trained(mode, RARE[model], world_size, "ring"):
        for one in (module, expected):
            if hasattr(one, "template"):
                del one.template
        assert apart(module, expected) < ULPS


class TestBuckets:
    def test_there_is_one_a_dtype_in_the_order_of_first_appearance(self):
        replica = FlatReplica(MIXED["three dtypes"]())
        assert [(bucket.parameters.dtype, bucket.layout.names) for bucket in replica.buckets] == [
            (torch.float64, ("scale",)),  # a module's own parameters come first
            (torch.float32, ("body.weight", "body.bias")),
            (torch.bfloat16, ("head.weight", "head.bias")),
        ]
        assert replica.layout.num_elements == sum(b.parameters.numel() for b in replica.buckets)

    @pytest.mark.parametrize("mode", ["eager", "whole"])
    def test_notes_name_the_dtypes_of_mixed_models_alone(self, mode):
        def work(group):
            models = ("bfloat16 head", "float16")
            return [made(mode, MIXED[model](), group, "all_reduce").notes for model in models]

        ((mixed, single),) = run_in_process(1, work)
        assert "float32 (261 elements), bfloat16 (126 elements)" in mixed[0]
        assert not any("dtypes" in note for note in single)
        if mode == "whole":  # sizes of layered buckets go by their dtype
            assert f"2 buckets of {2 * 126 / 2**20:.3g} to {4 * 261 / 2**20:.3g} MiB" in mixed[1]

    @pytest.mark.parametrize("mode", ["eager", "whole", "tiny"])
    def test_bytes_go_by_each_dtype(self, mode):
        def sent(group):
            step = made(mode, MIXED["three dtypes"](), group, "all_reduce")
            group.meter.reset()
            take(step, group.rank, 0, 1)
            return group.meter.bytes_sent

        assert run_in_process(2, sent) == [8 * 1 + 4 * 260 + 2 * 126] * 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *((mode, name) for mode in ("eager", "whole", "tiny") for name in RESUMED_LAYERED),
        *(("eager", name) for name in ("caffe", "mxnet_device", "host_serial", "torch_cpu")),
    ],
)
def test_saved_step_goes_on_with_the_same_bits(mode, name):
    def work(group):
        step = made(mode, MIXED["three dtypes"](), group, name)
        take(step, group.rank, 0, 3)
        saved = step.state_dict()
        other = made(mode, MIXED["three dtypes"](), group, name)
        other.load_state_dict(saved)
        group.barrier()
        losses = take(step, group.rank, 3, 6)
        group.barrier()
        return losses == take(other, group.rank, 3, 6), apart(step.replica.module, other.replica.module)

    assert run_in_process(2, work) == [(True, 0.0)] * 2


@pytest.mark.parametrize("mode", ["eager", "whole"])
def test_state_of_a_model_of_one_dtype_has_no_buckets_of_dtypes(mode):
    """As it was saved before there were any."""

    def work(group):
        step = made(mode, Network(), group, "ring")
        take(step, group.rank, 0, 1)
        return step.state_dict()["update"]

    (update,) = run_in_process(1, work)
    assert all(isinstance(one, torch.Tensor) for one in update.values())


@pytest.mark.parametrize("mode", ["eager", "whole"])
@pytest.mark.parametrize(("old", "new"), [("three dtypes", "bfloat16 head"), ("float16", "three dtypes")])
def test_state_of_a_model_with_other_dtypes_is_refused(mode, old, new):
    def work(group):
        first, second = (made(mode, MIXED[model](), group, "ring") for model in (old, new))
        take(first, group.rank, 0, 1)
        with pytest.raises(CheckpointError, match="another number of dtypes"):
            second.load_state_dict(first.state_dict())

    run_in_process(1, work)


@dataclass(frozen=True)
class OnlyFloat32(AllReduce):
    name = "only_float32"
    dtypes = (torch.float32,)


class TestRefused:
    @pytest.mark.parametrize("dtype", ["complex64", "complex128", "float8_e4m3fn", "float8_e5m2"])
    @pytest.mark.parametrize("mode", ["eager", "whole"])
    def test_parameters_that_cannot_be_trained(self, mode, dtype):
        module, said = Network(), f"'odd' is {dtype}, which cannot be trained; allowed are float32"
        module.odd = nn.Parameter(torch.zeros(3, dtype=torch.float32).to(getattr(torch, dtype)))
        with pytest.raises(StudyError, match=said):
            run_in_process(1, lambda group: made(mode, module, group, "all_reduce"))

    def test_frozen_ones_of_any_dtype_are_allowed(self):
        module = Network()
        module.odd = nn.Parameter(torch.zeros(3, dtype=torch.complex64), requires_grad=False)
        require_dtypes(module, create("all_reduce"))

    def test_dtypes_that_the_aggregator_does_not_take(self):
        with pytest.raises(StudyError) as caught:
            require_dtypes(MIXED["float64 scalar"](), OnlyFloat32())
        for part in ("'scale' is float64", "'only_float32' does not take", "it takes float32", "freeze it"):
            assert part in str(caught.value)

    def test_models_without_anything_to_train(self):
        with pytest.raises(StudyError, match="nothing to train"):
            require_dtypes(Network().requires_grad_(False), create("ring"))

    @pytest.mark.parametrize(
        ("name", "taken"),
        [
            ("mpi", {torch.float32, torch.float64}),
            ("horovod", {torch.float32, torch.float64, torch.float16}),
            ("horovod_optimizer", {torch.float32, torch.float64, torch.float16}),
            ("mpi_one_bit", set(DTYPES)),
            ("ring", set(DTYPES)),
        ],
    )
    def test_what_libraries_cannot_carry_is_declared(self, name, taken):
        assert set(create(name).dtypes) == taken
