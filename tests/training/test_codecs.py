"""Codecs as DDP's hooks in two processes: torch's own hooks are the oracle, residuals follow parameters."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.errors import NotFiniteError
from scaling.training import overlapped as overlapping
from scaling.training.optimizers import SgdSettings
from scaling.training.overlapped import OverlappedStep
from tests.ranks import as_rank, refusal
from tests.training import small
from tests.training.small import CPU, all_of, batch_of, eager, flat, learnable, overlapped, perceptron

# Two shapes that occur twice, one that is not worth compressing, vectors; not sorted by shape.
SHAPES = {"a": (40, 30), "bias": (40,), "conv": (12, 5, 3, 3), "b": (40, 30), "small": (3, 2), "c": (30, 40)}
LAYOUT = BucketLayout.of(list(SHAPES.items()))
SIXTEEN_BITS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
POWER_SGD = {
    **{f"power_sgd rank {size}": {"approximation_size": size} for size in (1, 2, 4)},
    "power_sgd without feedback": {"error_feedback": False},
    "power_sgd seed 7": {"seed": 7, "minimum_compression": 4.0},
}
CHUNKS = {"chunk_elements": 64}
WITH_RESIDUALS = {
    **{"one_bit": {}, "one_bit_flat": CHUNKS, "one_bit_momentum": CHUNKS, "two_bit": {"threshold": 0.02}},
    **{"ef_sign": CHUNKS, "top_k": {"density": 0.1}, "power_sgd": {}},
}
CODECS = {**WITH_RESIDUALS, "sign": {}, "qsgd": {}, "fp16": {}, "bf16": {}}
WHATEVER_THE_BUCKETS = ("one_bit", "two_bit")
"""Their values are no bucket's."""
RATES = {"sign": 0.002, "one_bit_momentum": 0.03}
BUCKETS_MB = (0.0001, 25.0, 0.004, 0.0001)
"""Of the stretches of a training, each of which continues what the one before has saved: several, one, fewer,
and again those of the beginning."""
NUM_STEPS, STEPS_EACH = 5, 3

pytestmark = pytest.mark.processes


class Crossed(nn.Module):
    """Layers that are used in another order than they are registered in, so that DDP has to rebuild."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.third, self.first, self.second = nn.Linear(30, 6), nn.Linear(12, 40), nn.Linear(40, 30)

    def forward(self, inputs):
        return self.third(torch.relu(self.second(torch.relu(self.first(inputs)))))


def settings_of(name):
    return SgdSettings(RATES.get(name, 0.1), 0.0 if create(name).own_momentum() else 0.5)


def hooked(name, group, module=None, bucket_mb=0.001):
    module, chosen = module or perceptron(12, 80, 6), (create(name, CODECS[name]), settings_of(name), group)
    return overlapped(module, *chosen, learnable(group.rank, 0), bucket_mb=bucket_mb)


def gradient_of(rank, step):
    return torch.randn(LAYOUT.num_elements, generator=torch.Generator().manual_seed(100 * step + rank))


def of_ours(name, parameters, group):
    aggregator = create(name, parameters)
    state = aggregator.start(LAYOUT, group, torch.float32, CPU)
    return [aggregator.aggregate(state, gradient_of(group.rank, step)).clone() for step in range(NUM_STEPS)]


def of_torchs(hook, state, group):
    def bucket_of(values):
        """What torch's hooks ask a bucket for."""
        asked = {"buffer": values, "index": 0, "gradients": LAYOUT.views(values), "is_last": True}
        return SimpleNamespace(**{name: lambda value=value: value for name, value in asked.items()})

    return [hook(state, bucket_of(gradient_of(group.rank, s))).wait().clone() for s in range(NUM_STEPS)]


def power_sgd_state(parameters, group):
    smallest = parameters.get("minimum_compression", 2)
    how = {"min_compression_rate": smallest, "batch_tensors_with_same_shape": True}
    state = small.torchs_power_sgd(group, parameters, **how)
    state.iter = state.start_powerSGD_iter  # the steps before it are plain all-reduces
    return state


def beside_torch(group):
    """Largest difference to torch's hook, relative to the largest value, in each step."""
    hooks = {name: (name, {}, hook, group.data) for name, hook in SIXTEEN_BITS.items()}
    for label, given in POWER_SGD.items():
        hooks[label] = ("power_sgd", given, powerSGD_hook.powerSGD_hook, power_sgd_state(given, group))
    seen = {}
    for label, (name, given, hook, state) in hooks.items():
        pairs = zip(of_ours(name, given, group), of_torchs(hook, state, group), strict=True)
        seen[label] = [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]
    return seen


def beside_eager(group):
    """How far the parameters are from the eager step's."""
    seen = {}
    for name in WHATEVER_THE_BUCKETS:
        step, codec = hooked(name, group), create(name, CODECS[name])
        exact = eager(perceptron(12, 80, 6), codec, settings_of(name), group)
        for number in range(10):
            step(*learnable(group.rank, number))
            exact(*learnable(group.rank, number))
        difference = (flat(step.replica.module) - flat(exact.replica.module)).abs().max().item()
        seen[name] = {"difference": difference, "notes": step.notes}
    return seen


def as_hooks(group):
    """A short training with several buckets, cut in the middle once, and not."""
    seen = {}
    for name in CODECS:
        step, losses = hooked(name, group), []
        for number in range(30):
            if number == 15:
                saved = step.state_dict()
            losses.append(step(*learnable(group.rank, number)).item())
        step.check()
        again = hooked(name, group)
        again.load_state_dict(saved)
        for number in range(15, 30):
            again(*learnable(group.rank, number))
        resumed = torch.equal(flat(step.replica.module), flat(again.replica.module))
        seen[name] = {"losses": losses, "resumed": resumed, "notes": step.notes}
    return seen


def not_finite(group):
    """What each rank says of one NaN in rank 1's input."""
    seen = {}
    for name in CODECS:
        step, (inputs, targets) = hooked(name, group), learnable(group.rank, 0)
        if group.rank == 1:
            inputs[3, 4] = float("nan")
        step(inputs, targets)
        seen[name] = refusal(NotFiniteError, step.check)
    return seen


@contextmanager
def watched():
    """The parameters of each bucket that DDP hands to a step's hook, pass by pass."""
    passes, hook = [], OverlappedStep._hook

    def seen(step, bucket):
        if bucket.index() == 0:
            passes.append([])
        names = {id(p): name for name, p in step.replica.module.named_parameters()}
        passes[-1].append([names[id(p)] for p in bucket.parameters()])
        return hook(step, bucket)

    with mock.patch.object(OverlappedStep, "_hook", seen):
        yield passes


class Ledger:
    """Of each parameter: what this rank has put in, less what it got out."""

    def __init__(self, momentum):
        self._momentum, self.owed, self._last = momentum, {}, {}

    def step(self, step, inputs, targets):
        """Takes the step and books it."""
        module = step.replica.module
        names, parameters = zip(*module.named_parameters(), strict=True)
        gradients = torch.autograd.grad(step.replica.loss(module(inputs), targets), parameters)
        step(inputs, targets)
        for name, gradient, parameter in zip(names, gradients, parameters, strict=True):
            mean, zero = parameter.grad.double(), torch.zeros_like(gradient, dtype=torch.float64)
            put_in = gradient.double() + self._momentum * self._last.get(name, zero)
            self.owed[name] = self.owed.get(name, zero) + put_in - mean
            self._last[name] = mean.clone()


def withheld(step):
    """By parameter; nothing where nothing ever is."""
    kept = {}
    for state in step._buckets._states:
        values = state.withheld() if hasattr(state, "withheld") else state.total_residual()
        if values is not None:
            kept |= dict(zip(state.layout.names, state.layout.views(values), strict=True))
    return kept


def listed(tensors):
    return {name: one.double().flatten().tolist() for name, one in tensors.items()}


def across_buckets(group):
    """By codec a training whose buckets change every few steps, and what it owes and withholds at the end of
    each stretch."""
    return {name: stretches(name, group) for name in CODECS}


def stretches(name, group):
    ledger, step, seen = Ledger(create(name, CODECS[name]).own_momentum()), None, []
    for number, bucket_mb in enumerate(BUCKETS_MB):
        saved = step and step.state_dict()
        with watched() as passes:
            step = hooked(name, group, Crossed(), bucket_mb)
            if saved is not None:
                step.load_state_dict(saved)
            for at in range(STEPS_EACH):
                ledger.step(step, *batch_of(100 * (STEPS_EACH * number + at) + group.rank, 32))
        states = [list(state.layout.names) for state in step._buckets._states]
        left = {"owed": listed(ledger.owed), "withheld": listed(withheld(step))}
        seen.append({"passes": passes, "states": states, **left})
    return {"stretches": seen, "parameters": flat(step.replica.module).tolist()}


def set_up_too_early(group):
    """What is said where states are those of the buckets before DDP rebuilds them."""
    with mock.patch.object(overlapping, "PASSES_UNTIL_BUCKETS_STAY", 1):
        step = hooked("one_bit_flat", group, Crossed(), BUCKETS_MB[0])
    return refusal(Exception, lambda: step(*learnable(group.rank, 0)))


@pytest.mark.parametrize("name", SIXTEEN_BITS)
def test_sixteen_bits_are_torchs(ranks, name):
    assert [rank["beside_torch"][name] for rank in ranks] == [[0.0] * NUM_STEPS] * 2


@pytest.mark.parametrize("label", POWER_SGD)
def test_power_sgd_is_torchs_to_rounding(ranks, label):
    for rank in ranks:
        assert max(rank["beside_torch"][label]) < 2e-5, rank["beside_torch"][label]


@pytest.mark.parametrize("name", WHATEVER_THE_BUCKETS)
def test_residuals_stay_with_their_parameters_when_ddp_rebuilds_buckets(ranks, name):
    """The eager step's parameters come out, whatever the order in DDP; how they are encoded is noted."""
    for rank in ranks:
        seen = rank["beside_eager"][name]
        assert int(seen["notes"][0].split()[0]) > 1
        assert seen["difference"] < 1e-5
        assert name != "one_bit" or "one_bit in torch operations, by planes" in seen["notes"]


@pytest.mark.parametrize("name", CODECS)
class TestEveryCodec:
    def test_training_learns_with_several_buckets_and_is_resumed_with_the_same_bits(self, ranks, name):
        for rank in ranks:
            seen = rank["as_hooks"][name]
            assert int(seen["notes"][0].split()[0]) > 1
            assert sum(seen["losses"][-5:]) < 0.85 * sum(seen["losses"][:5])
            assert seen["resumed"]

    def test_nan_on_one_rank_is_an_error_on_both_that_names_the_tensor(self, ranks, name):
        one, other = (rank["not_finite"][name] for rank in ranks)
        assert one == other
        assert "is NaN or infinite" in one
        assert "'0.weight'" in one or "'2.weight'" in one

    def test_ddp_rebuilds_its_buckets_and_states_are_those_of_the_rebuilt_ones(self, ranks, name):
        for rank in ranks:
            several, *_ = rank["across_buckets"][name]["stretches"]
            first, *later = several["passes"]
            assert first != later[0]
            assert [bucket for one in later for bucket in one] == several["states"] * len(later)

    def test_buckets_differ_from_stretch_to_stretch_and_replicas_have_the_same_bits(self, ranks, name):
        first, second = (rank["across_buckets"][name] for rank in ranks)
        several, one, fewer, again = (len(each["states"]) for each in first["stretches"])
        assert one == 1 < fewer < several == again
        assert first["parameters"] == second["parameters"]


@pytest.mark.parametrize("name", WITH_RESIDUALS)
@pytest.mark.parametrize("stretch", range(len(BUCKETS_MB)))
def test_what_was_put_in_and_not_got_out_is_withheld_parameter_by_parameter(ranks, name, stretch):
    """The law of residuals over all steps so far, with DDP's own buckets, rebuilt and changed."""
    seen = [rank["across_buckets"][name]["stretches"][stretch] for rank in ranks]
    assert len(seen[0]["owed"]) == 6
    for parameter in seen[0]["owed"]:
        owed, kept = (
            sum(torch.tensor(rank[way][parameter]) for rank in seen) for way in ("owed", "withheld")
        )
        assert torch.allclose(kept, owed, rtol=0, atol=1e-5), parameter
        if name not in ("power_sgd", "two_bit"):  # which send small tensors, and large values, as they are
            assert bool(kept.any())


def test_residuals_are_never_fed_to_buckets_of_other_parameters(ranks):
    assert all("DDP has rebuilt its buckets again" in rank["set_up_too_early"] for rank in ranks)


if __name__ == "__main__":
    as_rank(all_of(beside_torch, beside_eager, as_hooks, not_finite, across_buckets, set_up_too_early))
