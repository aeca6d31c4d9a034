"""Parameters keep their dtypes in every step, or are refused by name.

The overlapped step is taken in two real processes: every bucket of DDP has the dtype of its parameters.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from scaling.aggregators.base import DTYPES
from scaling.aggregators.native import AllReduce
from scaling.aggregators.registry import create
from scaling.errors import CheckpointError, StudyError
from scaling.measure.clock import MonotonicClock
from scaling.measure.phases import PhaseRecorder
from scaling.process_group import run_in_process
from scaling.training.replica import FlatReplica, require_dtypes
from tests.ranks import as_rank, refusal
from tests.training.mixed_models import MIXED, NUM_STEPS, RARE, SETTINGS, Network, apart, plainly_trained
from tests.training.small import all_of, batch, eager, layered, overlapped

EXACT = {name: {} for name in ("all_reduce", "ring", "tree", "host_serial", "host_parallel")}
EXACT |= {name: {} for name in ("caffe", "mxnet_device", "torch_cpu")}  # root, owners, host's ranks
EXACT["one_bit"] = {"bits": 32}
LOSSY = {"one_bit": {}, "one_bit_flat": {}, "power_sgd": {}, "top_k": {"density": 0.2}, "fp16": {}}
LAYERED = ("all_reduce", "ring", "tree", "one_bit")
RESUMED_LAYERED = ("ring", "one_bit", "one_bit_flat", "power_sgd", "qsgd")
BUCKETS_MB = {"whole": 25.0, "tiny": 1e-4}
WAYS = [*(("eager", name) for name in EXACT), *((mode, name) for mode in BUCKETS_MB for name in LAYERED)]

ULPS = 16
"""Of a parameter after some steps, each of which rounds a few times; the mean of two ranks rounds once."""


def made(mode, module, group, name, parameters=None):
    chosen = (module, create(name, parameters), SETTINGS, group)
    if mode == "overlapped":
        return overlapped(*chosen, batch(group.rank, 0), bucket_mb=5e-4)
    return eager(*chosen) if mode == "eager" else layered(*chosen, bucket_mb=BUCKETS_MB[mode])


def take(step, rank, start=0, stop=NUM_STEPS):
    return [step(*batch(rank, number)).item() for number in range(start, stop)]


def without_template(module):
    """Weight decay moves a parameter that the loss does not need in our steps alone."""
    if hasattr(module, "template"):
        del module.template
    return module


def resumed(group, mode, name):
    """Whether a saved and loaded step goes on with the same losses, and how far apart both end."""
    step, other = (made(mode, MIXED["three dtypes"](), group, name) for _ in range(2))
    take(step, group.rank, 0, 3)
    saved = step.state_dict()
    group.barrier()
    losses = take(step, group.rank, 3, 6)
    group.barrier()
    other.load_state_dict(saved)
    return [losses == take(other, group.rank, 3, 6), apart(step.replica.module, other.replica.module)]


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
    return 0.0 if rounds_once else max(torch.finfo(one.dtype).eps for one in module.parameters())


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
    expected = without_template(plainly_trained(RARE[model](), world_size))
    for module in trained(mode, RARE[model], world_size, "ring"):
        assert apart(without_template(module), expected) < ULPS


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
    assert run_in_process(2, lambda group: resumed(group, mode, name)) == [[True, 0.0]] * 2


@pytest.mark.parametrize("mode", ["eager", "whole"])
def test_state_of_a_model_of_one_dtype_has_no_buckets_of_dtypes(mode):
    """As it was saved before there were any."""

    def work(group):
        step = made(mode, Network(), group, "ring")
        take(step, group.rank, 0, 1)
        assert all(isinstance(one, torch.Tensor) for one in step.state_dict()["update"].values())

    run_in_process(1, work)


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
            *((f"horovod{end}", {torch.float32, torch.float64, torch.float16}) for end in ("", "_optimizer")),
            *((name, set(DTYPES)) for name in ("mpi_one_bit", "ring")),
        ],
    )
    def test_what_libraries_cannot_carry_is_declared(self, name, taken):
        assert set(create(name).dtypes) == taken


EXACT_HOOKS = ("all_reduce", "ring", "tree")
LOSSY_HOOKS = ("one_bit", "two_bit")  # what is lost of a tensor is its own, whatever bucket it is in
OF_LOSSY = {"bfloat16 head": 1e-2, "float64 scalar": 1e-5, "three dtypes": 1e-2}
RESUMED_HOOKS = ("all_reduce", "one_bit", "one_bit_flat", "power_sgd")
MODELS = {**MIXED, **RARE}


def trainings(group):
    """How far each is from a plain loop; with a lossy aggregator its losses, and the eager step's."""
    seen = {}
    for model, make in MODELS.items():
        expected = without_template(plainly_trained(make(), group.world_size))
        for name in EXACT_HOOKS:
            step = made("overlapped", make(), group, name)
            group.meter.reset()
            take(step, group.rank, 0, 1)
            unsent = sum(one.nbytes for one in step.replica.trainable) - group.meter.bytes_sent
            take(step, group.rank, 1)
            off = apart(without_template(step.replica.module), expected)
            seen[f"{model} {name}"] = {"apart": off, "unsent": unsent, "notes": step.notes}
    for model in OF_LOSSY:
        for name in LOSSY_HOOKS:
            steps = (made(mode, MODELS[model](), group, name) for mode in ("overlapped", "eager"))
            seen[f"{model} {name}"] = [take(one, group.rank) for one in steps]
    return seen


def split(group):
    """DDP's own path gets a hook half-way."""
    expected = plainly_trained(MODELS["three dtypes"](), group.world_size)
    step = made("overlapped", MODELS["three dtypes"](), group, "all_reduce")
    take(step, group.rank, 0, 2)
    step.prepare_profiled(PhaseRecorder(MonotonicClock()))
    take(step, group.rank, 2)
    return {"apart": apart(step.replica.module, expected), "notes": step.notes}


def resumed_hooks(group):
    return {name: resumed(group, "overlapped", name) for name in RESUMED_HOOKS}


def refused(group):
    module = Network()
    module.odd = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    return refusal(StudyError, lambda: made("overlapped", module, group, "all_reduce"))


@pytest.fixture(scope="module")
def seen(ranks):
    """seen(scenario, key): what both ranks saw."""
    return lambda scenario, key: [rank[scenario][key] for rank in ranks]


@pytest.mark.processes
class TestOverlapped:
    @pytest.mark.parametrize("name", EXACT_HOOKS)
    @pytest.mark.parametrize("model", MODELS)
    def test_parameters_are_a_plain_loops_and_bytes_go_by_each_dtype(self, seen, model, name):
        """Two ranks: each sends what it has once."""
        for rank in seen("trainings", f"{model} {name}"):
            assert rank["apart"] < ULPS
            assert rank["unsent"] == 0

    @pytest.mark.parametrize("name", LOSSY_HOOKS)
    @pytest.mark.parametrize("model", OF_LOSSY)
    def test_lossy_ones_train_as_the_eager_step(self, seen, model, name):
        for ours, expected in seen("trainings", f"{model} {name}"):
            assert ours == pytest.approx(expected, rel=OF_LOSSY[model])

    def test_notes_name_the_dtypes_and_parameters_without_gradient(self, seen):
        said = "parameters of 3 dtypes, exchanged in buckets of their own: float64 (1 "
        for notes in (rank["notes"] for rank in seen("trainings", "three dtypes ring")):
            assert notes[0].startswith(said)
            assert notes[1].startswith("3 buckets of ")
        said = "DDP searches every step for parameters that the loss does not depend on: template"
        assert [rank["notes"][1] for rank in seen("trainings", "ShapeOnly ring")] == [said] * 2

    def test_ddps_own_path_goes_on_with_a_hook(self, seen):
        assert all(apart < ULPS for apart in seen("split", "apart"))
        assert all("3 buckets of " in notes[1] for notes in seen("split", "notes"))

    @pytest.mark.parametrize("name", RESUMED_HOOKS)
    def test_saved_step_goes_on_with_the_same_bits(self, seen, name):
        assert seen("resumed_hooks", name) == [[True, 0.0]] * 2

    def test_parameters_that_cannot_be_trained_are_refused_by_name(self, seen):
        said = "parameter 'odd' is complex64, which cannot be trained; allowed are float32"
        assert all(said in error for error in seen("refused", slice(None)))


if __name__ == "__main__":
    as_rank(all_of(trainings, split, resumed_hooks, refused))
