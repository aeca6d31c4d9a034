"""Each tensor pushed and pulled under the backward pass: the eager step's means and training."""

import functools
import threading

import pytest
import torch
from torch import nn

from scaling.aggregators.presets import mxnet
from scaling.aggregators.registry import create
from scaling.process_group import run_in_process
from scaling.training import step_check
from scaling.training.by_tensor import ByTensorStep
from scaling.training.compute import Compute
from scaling.training.gradients import AS_THEY_ARE, GradientSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep
from scaling.training.step_check import FIRST_STEPS, StepCheck
from tests.training import small
from tests.training.small import OPTIMIZERS, SGD, shared_batches
from tests.waiting import wait_until

NAMES = ("mxnet_device", "mxnet_local")
TREATMENTS = {"": AS_THEY_ARE, "clipped": GradientSettings(clip_norm=0.05)}
NUM_STEPS, NUM_TENSORS = 4, 6


def network() -> nn.Module:
    """With batch normalisation, and a parameter that the loss does not depend on."""
    torch.manual_seed(0)
    layers = [nn.Linear(12, 41, bias=False), nn.BatchNorm1d(41), nn.ReLU(), nn.Linear(41, 7)]
    module = nn.Sequential(*layers)
    module.unused = nn.Parameter(torch.ones(5))
    return module


batches = functools.partial(shared_batches, count=NUM_STEPS)


def by_tensor(group, name="mxnet_device", settings="sgd", treatment="", accumulate=1, module=None):
    replica = FlatReplica(module or network(), compute=Compute(accumulate=accumulate), by_tensor=True)
    return ByTensorStep(replica, create(name), OPTIMIZERS[settings], group, TREATMENTS[treatment])


def eager(group, name="mxnet_device", settings="sgd", treatment="", accumulate=1):
    compute = Compute(accumulate=accumulate)
    return small.eager(network(), name, OPTIMIZERS[settings], group, TREATMENTS[treatment], compute=compute)


def trained(step, group) -> list[torch.Tensor]:
    losses = torch.stack([step(*batch) for batch in batches(group)])
    return [losses, *(values.clone() for values in step.replica.module.state_dict().values())]


def delivered(step, group) -> dict[str, torch.Tensor]:
    """The means that this rank has of the first batch, by tensor."""
    step.record = []
    step(*batches(group)[0])
    found = {}
    for exchange in (one for one in step.record if one.owned):
        layout = exchange.layout
        for name, start, view in zip(layout.names, layout.offsets, layout.views(exchange.mean), strict=True):
            if any(first <= start and start + view.numel() <= stop for first, stop in exchange.owned):
                found[name] = view.clone()
    return found


def assert_same_training(seen, expected):
    for one, other in zip(seen, expected, strict=True):
        for got, wanted in zip(one, other, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
class TestSameTraining:
    def test_means_are_the_eager_steps_bit_for_bit_at_the_same_ranks(self, name, world_size):
        expected = run_in_process(world_size, lambda group: delivered(eager(group, name), group))
        seen = run_in_process(world_size, lambda group: delivered(by_tensor(group, name), group))
        assert len({tensor for rank in seen for tensor in rank}) == NUM_TENSORS
        for one, other in zip(seen, expected, strict=True):
            assert set(one) == set(other)
            assert all(torch.equal(one[tensor], other[tensor]) for tensor in one)

    @pytest.mark.parametrize("settings", OPTIMIZERS)
    def test_training_is_the_exact_steps_to_rounding(self, name, world_size, settings):
        exact = run_in_process(world_size, lambda group: trained(eager(group, "all_reduce", settings), group))
        seen = run_in_process(world_size, lambda group: trained(by_tensor(group, name, settings), group))
        assert_same_training(seen, exact)
        assert all(torch.equal(*pair) for pair in zip(seen[0][-2:], seen[-1][-2:], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_are_exchanged_once_and_clipping_takes_the_norm_of_all(name):
    for treatment, accumulate in (("clipped", 1), ("", 3), ("clipped", 2)):
        chosen = (name, "sgd", treatment, accumulate)
        seen = run_in_process(2, lambda group, chosen=chosen: trained(by_tensor(group, *chosen), group))
        exact = ("all_reduce", *chosen[1:])
        expected = run_in_process(2, lambda group, exact=exact: trained(eager(group, *exact), group))
        assert_same_training(seen, expected)


def test_largest_tensor_decides_for_all_where_the_step_of_local_is_taken(monkeypatch):
    expected = run_in_process(2, lambda group: trained(by_tensor(group, "mxnet_local"), group))
    monkeypatch.setattr(mxnet, "MAX_ELEMENTS_ON_HOST", 12 * 41 - 1)

    def work(group):
        step = by_tensor(group, "mxnet_local")
        seen = trained(step, group)
        return seen, {part.update.site for part in step._parts}, step.optimizer_state_bytes

    for (seen, sites, state_bytes), wanted in zip(run_in_process(2, work), expected, strict=True):
        assert sites == {"replica"}
        assert state_bytes >= 4 * (12 * 41 + 41 * 7)
        assert_same_training([seen], [wanted])


@pytest.mark.parametrize("world_size", [2, 3])
def test_owners_are_those_of_the_whole_network(world_size):
    def owners(group, make):
        step = make(group)
        trained(step, group)
        return step.optimizer_state_bytes, group.meter.bytes_sent

    seen = run_in_process(world_size, lambda group: owners(group, by_tensor))
    assert seen == run_in_process(world_size, lambda group: owners(group, eager))
    assert len({state_bytes for state_bytes, _ in seen}) > 1


@pytest.mark.parametrize("name", NAMES)
def test_its_exchanges_and_updates_pass_the_checks_of_a_run(monkeypatch, name):
    monkeypatch.setattr(step_check, "MAX_SECONDS", float("inf"))

    def work(group):
        check = StepCheck(by_tensor(group, name), create(name), SGD, group)
        check.steps(batches(group), FIRST_STEPS)
        return check.findings.as_dict()

    for found in run_in_process(2, work):
        assert found["exchange"] == "exact mean"
        assert found["exchanges"] == NUM_TENSORS * found["steps"] == NUM_TENSORS * FIRST_STEPS
        assert found["largest_error_ratio"] <= 1


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_from_a_saved_state(name):
    def work(group):
        first, second = (by_tensor(group, name, "adamw") for _ in range(2))
        trained(first, group)
        second.load_state_dict(first.state_dict())
        return trained(first, group), trained(second, group)

    for one, other in run_in_process(2, work):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


class Holds(torch.autograd.Function):
    """Its backward pass ends when `until` holds."""

    @staticmethod
    def forward(context, inputs, until):
        context.until = until
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        wait_until(context.until, "for the exchange of the last layer")
        return gradient, None


@pytest.mark.parametrize("name", NAMES)
def test_last_layer_is_exchanged_and_updated_while_the_first_has_no_gradient(name):
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(12, 9), nn.Linear(9, 7)
            self.start, self.ends = self.last.weight.detach().clone(), True

        def is_updated(self) -> bool:
            return not torch.equal(self.last.weight, self.start)

        def forward(self, inputs):
            return self.last(Holds.apply(self.first(inputs), self.is_updated))

    def work(group):
        module = Held()
        step = by_tensor(group, name, module=module)
        before = module.first.weight.detach().clone()
        step(*batches(group)[0])
        return module.is_updated() and not torch.equal(module.first.weight, before)

    assert run_in_process(1, work) == [True]


def test_failure_of_an_exchange_is_raised_and_nothing_is_exchanged_after_it(monkeypatch):
    calls = []

    def fail(*_):
        calls.append(threading.current_thread())
        raise KeyError("planted")

    def work(group):
        step = by_tensor(group, "mxnet_local")
        monkeypatch.setattr(mxnet, "sum_in_passes", fail)
        for _ in range(2):  # no later step trains as if nothing had been
            with pytest.raises(KeyError, match="planted"):
                step(*batches(group)[0])

    run_in_process(1, work)
    assert len(calls) == 1
    assert calls[0] is not threading.main_thread()


def test_an_error_in_the_backward_pass_leaves_no_exchange_behind():
    def fail(_):
        raise KeyError("planted")

    def work(group):
        step = by_tensor(group, "mxnet_local")
        step.replica.trainable[1].register_hook(fail)  # one of the last gradients: others are on their way
        with pytest.raises(KeyError, match="planted"):
            step(*batches(group)[0])
        assert step._begun == []
        with pytest.raises(KeyError, match="planted"):
            step(*batches(group)[0])

    run_in_process(1, work)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_it_trains_as_the_eager_step(name):
    def work(group, make):
        replica = FlatReplica(network().cuda(), by_tensor=make is ByTensorStep)
        step = make(replica, create(name), SGD, group)
        return [step(*(values.cuda() for values in batch)).item() for batch in batches(group)]

    (expected,) = run_in_process(1, lambda group: work(group, EagerStep))
    (seen,) = run_in_process(1, lambda group: work(group, ByTensorStep))
    assert seen == pytest.approx(expected, rel=1e-6)
