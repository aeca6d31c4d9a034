"""Optimizers, scaled and clipped gradients at every update site, against torch's own on the mean gradient."""

import pytest
import torch

from scaling.aggregators.registry import create
from scaling.process_group import run_in_process
from scaling.training.compute import FLOAT32, Compute
from scaling.training.gradients import AS_THEY_ARE, INITIAL_SCALE, GradientSettings, GradientTreatment
from scaling.training.optimizers import AdamSettings, SgdSettings
from scaling.training.step_check import StepCheck
from tests.training.small import CPU, batch_of, eager

NUM_STEPS = 5
ADAMW = AdamSettings(0.01, weight_decay=0.1, decoupled=True)
SETTINGS = {
    "sgd": SgdSettings(0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": AdamSettings(0.01, weight_decay=0.1, beta1=0.8, beta2=0.99, epsilon=1e-6),
    "adamw": ADAMW,
}
SITES = {
    **{"replica": "ring", "root": "caffe", "owner": "mxnet_device"},
    **{"host_serial": "host_serial", "host_parallel": "torch_cpu"},
}
CLIP_NORM = 0.05


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def batches():
    generator = torch.Generator().manual_seed(1)
    return [batch_of(generator, 8, 6, 3) for _ in range(NUM_STEPS)]


def shares(group):
    for inputs, targets in batches():
        yield inputs.chunk(group.world_size)[group.rank], targets.chunk(group.world_size)[group.rank]


def stepped(name, settings, group, gradients=AS_THEY_ARE, compute=FLOAT32):
    step = eager(network(), name, settings, group, gradients, compute=compute)
    for inputs, targets in shares(group):
        step(inputs, targets)
    return step


def by_torch(settings, clip_norm=None) -> list[torch.Tensor]:
    module = network()
    optimizer = settings.optimizer(list(module.parameters()))
    for inputs, targets in batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        optimizer.step()
    return [parameter.detach() for parameter in module.parameters()]


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize(
    ("name", "clip_norm", "accumulate"),
    [
        *((name, None, 1) for name in SETTINGS),
        *(("adamw", CLIP_NORM, 1), ("adamw", None, 2), ("adamw", None, 4)),
    ],
)
def test_every_site_steps_as_torch_does_clipped_and_in_micro_batches_too(name, clip_norm, accumulate, site):
    assert create(SITES[site]).update_site == site
    expected = by_torch(SETTINGS[name], clip_norm)
    how = {"gradients": GradientSettings(clip_norm=clip_norm), "compute": Compute(accumulate=accumulate)}
    for step in run_in_process(2, lambda group: stepped(SITES[site], SETTINGS[name], group, **how)):
        for own, other in zip(step.replica.trainable, expected, strict=True):
            torch.testing.assert_close(own.detach(), other, rtol=1e-4, atol=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("name", SETTINGS)
def test_checks_of_a_run_accept_every_optimizer_at_every_site_clipped_too(name, site):
    settings = SETTINGS[name]

    def checked(group):
        step = eager(network(), SITES[site], settings, group, GradientSettings(clip_norm=CLIP_NORM))
        check = StepCheck(step, create(SITES[site]), settings, group)
        check.steps(list(shares(group)), 4)
        return check.findings

    for findings in run_in_process(2, checked):
        assert (findings.num_steps, findings.laws) == (4, {"exact mean"})


def test_a_local_gradient_is_clipped_before_the_exchange():
    treatment = GradientTreatment(GradientSettings(clip_norm=1.0, clip_gradient="local"), FLOAT32, CPU)
    gradient = torch.tensor([3.0, 4.0])
    treatment.before_exchange([gradient])
    torch.testing.assert_close(gradient, torch.tensor([0.6, 0.8]), rtol=1e-4, atol=0)


def test_memory_of_the_state_is_counted_where_it_is_kept():
    steps = run_in_process(2, lambda group: stepped("mxnet_device", ADAMW, group))
    num_values = steps[0].replica.layout.num_elements
    total = sum(step.optimizer_state_bytes for step in steps)
    assert 8 * num_values < total < 8 * num_values + 100  # two moments, and the counts of steps


def test_micro_batches_are_exchanged_once():
    def sent(group):
        counts = []
        for accumulate in (1, 2):
            group.meter.reset()
            stepped("ring", ADAMW, group, compute=Compute(accumulate=accumulate))
            counts.append(group.meter.bytes_sent)
        return counts

    assert all(one == other for one, other in run_in_process(2, sent))


class TestLossScale:
    def treated(self, gradient, settings=SETTINGS["sgd"]):
        """One update of a parameter of ones with that scaled mean gradient."""
        treatment = GradientTreatment(AS_THEY_ARE, Compute(torch.float16), CPU)
        parameter = torch.nn.Parameter(torch.ones(len(gradient)))
        optimizer = settings.optimizer([parameter], skippable=True)
        optimizer.found_inf = treatment.found_inf
        parameter.grad = gradient.clone()
        treatment.before_update([parameter.grad])
        optimizer.step()
        return treatment, parameter.detach(), optimizer

    @pytest.mark.parametrize("name", SETTINGS)
    def test_infinite_mean_changes_no_parameter_and_halves_the_scale(self, name):
        treatment, parameter, optimizer = self.treated(torch.tensor([1.0, torch.inf]), SETTINGS[name])
        assert torch.equal(parameter, torch.ones(2))
        assert treatment.state_dict()["scale"] == INITIAL_SCALE / 2
        kept = [values for state in optimizer.state.values() for values in state.values()]
        assert all(not values.any() for values in kept)

    @pytest.mark.parametrize("name", SETTINGS)
    def test_finite_mean_is_divided_by_the_scale(self, name):
        _, parameter, _ = self.treated(torch.tensor([1.0, -2.0]) * INITIAL_SCALE, SETTINGS[name])
        plain = torch.nn.Parameter(torch.ones(2))
        optimizer = SETTINGS[name].optimizer([plain])
        plain.grad = torch.tensor([1.0, -2.0])
        optimizer.step()
        torch.testing.assert_close(parameter, plain.detach())

    def test_scale_follows_that_of_torch(self):
        scaler = torch.amp.GradScaler("cpu", growth_interval=2000)
        treatment = GradientTreatment(AS_THEY_ARE, Compute(torch.float16), CPU)
        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for factor in (1.0, torch.inf, 2.0, torch.inf):
            own = torch.tensor([factor * 3.0])
            loss = (parameter * own).sum()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            treatment.before_update([treatment.scaled(own.clone())])
        assert float(treatment.state_dict()["scale"]) == scaler.get_scale()

    def test_scale_is_saved_and_restored(self):
        treatment, *_ = self.treated(torch.tensor([torch.inf]))
        other = GradientTreatment(AS_THEY_ARE, Compute(torch.float16), CPU)
        other.load_state_dict(treatment.state_dict())
        assert other.state_dict() == treatment.state_dict()
