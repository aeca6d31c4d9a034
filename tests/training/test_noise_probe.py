"""What a training records of its gradients' squared norms, and that it learns the same all the while."""

import functools
import math

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.measure.clock import MonotonicClock
from scaling.process_group import run_in_process
from scaling.training import noise_probe
from scaling.training.by_tensor import ByTensorStep
from scaling.training.captured import CapturedStep
from scaling.training.compute import FLOAT32, Compute
from scaling.training.convergence import TrainingPlan, train
from scaling.training.gradients import AS_THEY_ARE, GradientSettings
from scaling.training.local_updates import LocalStep
from scaling.training.noise_probe import NoiseProbe
from scaling.training.optimizers import SgdSettings
from scaling.training.outer_updates import outer_update
from scaling.training.replica import FlatReplica
from scaling.workloads.base import Split, cross_entropy
from tests.training import small
from tests.training.mixed_models import Network
from tests.training.small import batch_of, batches, normalised

SETTINGS = SgdSettings(0.05, momentum=0.9)
LOCAL, COUNT = 10, 6


@pytest.fixture(autouse=True)
def each_second(monkeypatch):
    """Every second step is looked at from the second one on, whatever it costs."""
    for strides in ("STRIDE", "STRIDE_CAPTURED"):
        monkeypatch.setattr(noise_probe, strides, dict.fromkeys(noise_probe.STRIDE, 2))


network = functools.partial(normalised, 12, 20, 6)


def gradient(module: nn.Module, inputs, targets) -> torch.Tensor:
    loss = cross_entropy(module(inputs), targets)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])


def eager(group, aggregator, *gradients, **how):
    return small.eager(network(), aggregator, SETTINGS, group, *gradients, **how)


def layered(group, aggregator, *gradients, **how):
    return small.layered(network(), aggregator, SETTINGS, group, *gradients, bucket_mb=1e-3, **how)


def by_tensor(group, aggregator, gradients=AS_THEY_ARE, compute=FLOAT32):
    replica = FlatReplica(network(), compute=compute, by_tensor=True)
    return ByTensorStep(replica, aggregator, SETTINGS, group, gradients)


def blocks(group, aggregator, gradients=AS_THEY_ARE, compute=FLOAT32):
    replica, outer = FlatReplica(network(), compute=compute), outer_update("average", group.world_size)
    return LocalStep(replica, aggregator, SETTINGS, group, gradients, sync_every=3, outer=outer)


class Replayed(CapturedStep):
    """A captured step whose graph is the plain step, which no GPU is needed for."""

    def __init__(self, step):
        self.uncaptured, self.replica = step, step.replica

    def __call__(self, inputs, targets):
        return self.uncaptured(inputs, targets)


def captured(*chosen, **how):
    return Replayed(eager(*chosen, **how))


def probed(world_size, name, make=eager, gradients=AS_THEY_ARE, compute=FLOAT32, parts=1):
    """Of each rank what was recorded, and the gradients at the same places, of parts of its batch."""

    def work(group):
        aggregator = create(name)
        step = make(group, aggregator, gradients, compute=compute)
        probe = NoiseProbe(step, aggregator, gradients, group, LOCAL)
        own = []
        for number, batch in enumerate(batches(group.rank, COUNT)):
            module = network()
            module.load_state_dict(step.replica.module.state_dict())
            chunks = zip(*(values.chunk(parts) for values in batch), strict=True)
            own.append(torch.stack([gradient(module, *chunk) for chunk in chunks]))
            probe.take(number, number, *batch)
        return probe.finish_epoch()["noise"], own, probe.source

    return run_in_process(world_size, work)


def assert_norms(ranks, rel=1e-4):
    """What is recorded is the mean of the squared norms of all these gradients, and that of their mean."""
    recorded = ranks[0][0]
    for number, *norms in zip(*(recorded[key] for key in ("steps", "small", "big")), strict=True):
        own = torch.cat([gradients[number] for _, gradients, _ in ranks])
        wanted = own.square().sum(dim=1).mean().item(), own.mean(dim=0).square().sum().item()
        assert norms == pytest.approx(wanted, rel=rel)


@pytest.mark.parametrize(
    ("name", "make", "source"),
    [
        *((name, eager, "delivered") for name in ("all_reduce", "ring", "host_parallel")),
        *(("ring", layered, "delivered"), ("mxnet_device", by_tensor, "exchanged")),
        *((name, eager, "exchanged") for name in ("torch_cpu", "zero1", "one_bit")),
        *(("top_k", layered, "exchanged"), ("one_bit_momentum", eager, "recomputed")),
    ],
)
def test_norms_are_those_of_each_ranks_gradient_and_of_the_exact_mean(name, make, source):
    ranks = probed(3, name, make)
    for recorded, _, took in ranks:
        assert took == source
        assert recorded == ranks[0][0]
        assert (recorded["small_batch"], recorded["big_batch"]) == (LOCAL, 3 * LOCAL)
        assert recorded["steps"] == [1, 3, 5]
    assert_norms(ranks)


@pytest.mark.parametrize(
    ("name", "make", "gradients", "steps", "rel"),
    [
        ("all_reduce", eager, GradientSettings(torch.bfloat16), [1, 3, 5], 1e-2),
        ("all_reduce", eager, GradientSettings(None, 0.1, "local"), [1, 3, 5], 1e-2),
        ("ring", blocks, AS_THEY_ARE, [3], 1e-4),  # where models are equal
    ],
    ids=["wire", "clipped", "local updates"],
)
def test_gradients_are_looked_at_as_they_were_before(name, make, gradients, steps, rel):
    ranks = probed(2, name, make, gradients=gradients)
    assert ranks[0][0]["steps"] == steps
    assert_norms(ranks, rel)


@pytest.mark.parametrize(("accumulate", "parts"), [(1, 2), (5, 5)])
def test_one_worker_compares_parts_of_its_batch(accumulate, parts):
    ranks = ((recorded, _, source),) = probed(1, "none", compute=Compute(accumulate=accumulate), parts=parts)
    assert source == "recomputed"
    assert (recorded["small_batch"], recorded["big_batch"]) == (LOCAL // parts, LOCAL)
    assert_norms(ranks)


def test_several_workers_take_their_batch_in_micro_batches():
    """Batch normalisation has the statistics of each, and what is whole does not have to fit."""
    ranks = probed(2, "one_bit_momentum", compute=Compute(accumulate=5), parts=5)
    recorded = ranks[0][0]
    assert (recorded["small_batch"], recorded["big_batch"]) == (LOCAL, 2 * LOCAL)
    assert_norms([(got, [own.mean(dim=0, keepdim=True) for own in parts], None) for got, parts, _ in ranks])


def test_a_compiled_model_is_not_compiled_again_for_parts():
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    def work(group):
        step = small.eager(Network(), "none", SETTINGS, group)
        step.replica.module.compile(backend=backend)
        probe = NoiseProbe(step, create("none"), AS_THEY_ARE, group, LOCAL)
        for number, batch in enumerate(batches(0, COUNT)):
            probe.take(number, number, *batch)
        return len(probe.finish_epoch()["noise"]["steps"])

    assert run_in_process(1, work) == [3]
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("name", "make", "world_size"),
    [
        *((name, eager, 3) for name in ("all_reduce", "host_parallel", "torch_cpu", "zero1")),
        *(("ring", layered, 2), ("zero1", layered, 2), ("mxnet_device", by_tensor, 2)),
        *(("none", eager, 1), ("ring", blocks, 2), ("all_reduce", captured, 2)),
    ],
)
def test_with_adam_the_norms_of_divided_gradients_are_recorded_too(monkeypatch, name, make, world_size):
    """Divided as torch's own optimizer does that has seen the same gradients."""
    monkeypatch.setitem(globals(), "SETTINGS", small.OPTIMIZERS["adamw"])
    parts = 2 if world_size == 1 else 1

    def work(group):
        aggregator = create(name)
        step = make(group, aggregator)
        probe = NoiseProbe(step, aggregator, AS_THEY_ARE, group, LOCAL)
        flat = nn.Parameter(torch.zeros(step.replica.layout.num_elements))
        optimizer, divided = torch.optim.AdamW([flat]), []
        for number, batch in enumerate(batches(group.rank, COUNT)):
            module = network()
            module.load_state_dict(step.replica.module.state_dict())
            chunks = zip(*(values.chunk(parts) for values in batch), strict=True)
            own = torch.stack([gradient(module, *chunk) for chunk in chunks])
            if state := optimizer.state[flat]:
                factor = 1 / ((state["exp_avg_sq"] / (1 - 0.999 ** state["step"])).sqrt() + 1e-8)
                if make is blocks:
                    group.all_reduce(factor)
                divided.append(own * factor)
            else:
                divided.append(own * math.nan)
            probe.take(number, number, *batch)
            flat.grad = gradient(module, *batch)
            if make is not blocks:
                group.all_reduce(flat.grad)
                flat.grad /= group.world_size
            optimizer.step()
        found = probe.finish_epoch()
        assert found["preconditioned_noise"]["steps"] == found["noise"]["steps"] != []
        return found["preconditioned_noise"], divided, probe.source

    assert_norms(run_in_process(world_size, work), rel=1e-3)


def test_before_half_a_stride_nothing_is_looked_at(monkeypatch):
    """What initial weights have is no training's."""
    monkeypatch.setattr(noise_probe, "STRIDE", dict.fromkeys(noise_probe.STRIDE, 8))
    ((recorded, _, _),) = probed(1, "none")
    assert recorded["steps"] == [4]


@pytest.mark.parametrize(("make", "strides"), [(eager, "STRIDE"), (captured, "STRIDE_CAPTURED")])
def test_captured_steps_are_looked_at_by_strides_of_their_own(monkeypatch, make, strides):
    monkeypatch.setattr(noise_probe, strides, {"delivered": 7, "exchanged": 8, "recomputed": 9})

    def work(group):
        probes = (NoiseProbe(make(group, create(name)), create(name), AS_THEY_ARE, group, LOCAL)
                  for name in ("ring", "one_bit"))  # fmt: skip
        return [probe.stride for probe in probes]

    assert run_in_process(2, work) == [[7, 8]] * 2
    assert run_in_process(1, work) == [[9, 9]]


@pytest.mark.parametrize(
    ("name", "world_size", "local"), [("fsdp2", 2, LOCAL), ("hsdp", 2, LOCAL), ("none", 1, 5)]
)
def test_shards_and_parts_of_different_sizes_are_not_compared(name, world_size, local):
    def work(group):
        step = eager(group, create("none" if name == "none" else "ring"))
        return NoiseProbe(step, create(name), AS_THEY_ARE, group, local).is_on

    assert not any(run_in_process(world_size, work))


@pytest.mark.parametrize(
    ("name", "make", "world_size"),
    [
        *(("all_reduce", eager, 1), ("ring", eager, 2), ("one_bit", eager, 2)),
        *(("ring", layered, 2), ("ring", blocks, 2)),
    ],
)
def test_a_training_is_the_same_bit_for_bit_and_sends_the_same(name, make, world_size):
    split = Split(*batch_of(0, 80))

    def trained(group, is_probed):
        aggregator = create(name)
        step = make(group, aggregator)
        probe = NoiseProbe(step, aggregator, AS_THEY_ARE, group, LOCAL) if is_probed else None
        plan = TrainingPlan(LOCAL * world_size, epochs=2, seed=0)
        chosen = (step, split, split, plan, group, MonotonicClock(), lambda seconds: seconds)
        rows = list(train(*chosen, noise=probe))
        return rows, dict(step.replica.module.state_dict())

    for (rows, model), (plain, same) in run_in_process(
        world_size, lambda group: [trained(group, is_probed) for is_probed in (True, False)]
    ):
        assert all(torch.equal(one, same[key]) for key, one in model.items())
        for row, without in zip(rows, plain, strict=True):
            assert row.pop("noise")["small"]
            row.pop("train_s")
            without.pop("train_s")
            assert row == without


def test_a_step_that_was_not_finite_is_left_out():
    def work(group):
        step = eager(group, create("ring"))
        probe = NoiseProbe(step, create("ring"), AS_THEY_ARE, group, LOCAL)
        for number, (inputs, targets) in enumerate(batches(group.rank, 4)):
            if number == 2:
                step.replica.parameters.fill_(float("nan"))
            probe.take(number, number, inputs, targets)
        return [probe.finish_epoch()["noise"]["steps"] for _ in range(2)]

    assert run_in_process(2, work) == [[[1], []], [[1], []]]
