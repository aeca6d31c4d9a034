"""A replay's rounding is no fault, also where it flips signs of Adam's step; wrong replays are found."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.errors import ExchangeError
from scaling.process_group import run_in_process
from scaling.training import step_check, update_check
from scaling.training.captured import CapturedStep
from scaling.training.optimizers import AdamSettings, SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step_check import StepCheck
from scaling.training.update import OwnedUpdate
from scaling.training.update_check import TOLERANCE, adam_problem
from scaling.workloads.transformer import build_gpt, gpt_shape
from tests.training import small
from tests.training.small import batch_of, perceptron

ADAMW = AdamSettings(6e-4, weight_decay=0.1, decoupled=True)
ADAM = AdamSettings(6e-4, weight_decay=0.1)
OPTIMIZERS = pytest.mark.parametrize("settings", [ADAMW, ADAM], ids=["adamw", "adam"])
NOISE = 1e-3


@pytest.fixture(scope="module")
def gpt() -> FlatReplica:
    """A small one, with its gradient."""
    torch.manual_seed(0)
    replica = FlatReplica(build_gpt(gpt_shape("nano", 256, 16), "nano", 256, 16))
    tokens = torch.randint(256, (4, 17))
    replica.backward(replica.forward(tokens[:, :-1], tokens[:, 1:]))
    return replica


def noisy(gradient: torch.Tensor, seed: int) -> torch.Tensor:
    """With noise of the same size everywhere, as sums in another order have: tiny elements change signs."""
    noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(seed))
    return gradient + NOISE * gradient.norm() / math.sqrt(gradient.numel()) * noise


def stepped(settings, start, *gradients):
    """The parameters and the state after steps with these gradients."""
    flat, half = start.clone(), start.numel() // 2 + 3
    owned = OwnedUpdate(flat, [(0, 0), (0, half), (half, flat.numel())], settings)
    for gradient in gradients:
        owned.step(gradient.clone())
    return flat.detach(), owned.state_dict()


def problem(settings, gpt, replayed, state, *, lossy=False):
    start, gradient = gpt.parameters.detach(), gpt.gradient
    states = [stepped(settings, start, noisy(gradient, seed))[1] for seed in (1, 1)] + [state]
    return adam_problem(settings, gpt.buckets[0].layout, start, replayed, states, lossy=lossy)


class TestAdam:
    @OPTIMIZERS
    @pytest.mark.parametrize("chunk", [1000, 2**22])
    def test_rounding_passes_though_the_updates_differ_by_more(self, gpt, settings, chunk, monkeypatch):
        monkeypatch.setattr(update_check, "CHUNK_ELEMENTS", chunk)
        start = gpt.parameters.detach()
        replayed, state = stepped(settings, start, noisy(gpt.gradient, 2))
        assert problem(settings, gpt, replayed, state) is None
        plain, _ = stepped(settings, start, noisy(gpt.gradient, 1))
        assert (replayed - plain).norm() > 2 * TOLERANCE * (plain - start).norm()

    @OPTIMIZERS
    @pytest.mark.parametrize(
        ("fault", "changed", "said"),
        [
            ("twice", {}, "takes 2 steps of Adam"),
            *((name, {}, "mean gradient") for name in ("stale", "scaled")),
            ("unfinished", {}, "update is not Adam"),
            ("rate", {"learning_rate": 6.06e-4}, "update is not Adam"),
            ("weight decay", {"weight_decay": 0.0}, "update is not Adam"),
        ],
    )
    def test_a_wrong_replay_is_found(self, gpt, settings, fault, changed, said):
        start, gradient = gpt.parameters.detach(), noisy(gpt.gradient, 2)
        shuffled = gradient[torch.randperm(len(gradient))]
        gradients = {"twice": [gradient, gradient], "stale": [shuffled], "scaled": [gradient * 1.02]}
        wrong = dataclasses.replace(settings, **changed)
        replayed, state = stepped(wrong, start, *gradients.get(fault, [gradient]))
        if fault == "unfinished":
            replayed[-1] = start[-1]
        if fault == "weight decay" and not settings.decoupled:
            said = "mean gradient"
        assert said in problem(settings, gpt, replayed, state)

    @OPTIMIZERS
    def test_a_missing_correction_of_the_bias_is_found(self, gpt, settings):
        start = gpt.parameters.detach()
        optimizer = settings.optimizer([flat := nn.Parameter(start.clone())])
        flat.grad = noisy(gpt.gradient, 2)
        zeros = torch.zeros_like(start)
        optimizer.state[flat] = {"step": torch.tensor(1000.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        optimizer.step()
        _, state = stepped(settings, start, noisy(gpt.gradient, 2))
        assert "update is not Adam" in problem(settings, gpt, flat.detach(), state)

    def test_a_skipped_step_must_leave_the_parameters(self, gpt):
        start = gpt.parameters.detach()
        _, state = stepped(ADAMW, start, gpt.gradient)
        zeros = [{name: torch.zeros_like(values) for name, values in state.items()}] * 3
        layout = gpt.buckets[0].layout
        assert adam_problem(ADAMW, layout, start, start.clone(), zeros) is None
        replayed = start.clone()
        replayed[7] += 1
        assert "element 7 of tokens.weight" in adam_problem(ADAMW, layout, start, replayed, zeros)

    def test_a_lossy_codec_may_flip_signs_too_but_not_a_whole_gradient(self, gpt):
        start, gradient = gpt.parameters.detach(), noisy(gpt.gradient, 2)
        flipped = torch.where(torch.arange(len(gradient)) % 400 == 0, -gradient, gradient)
        assert problem(ADAMW, gpt, *stepped(ADAMW, start, flipped), lossy=True) is None
        for given, lossy in ((flipped, False), (-gradient, True)):
            assert problem(ADAMW, gpt, *stepped(ADAMW, start, given), lossy=lossy) is not None

    def test_what_is_no_number_is_found(self, gpt):
        replayed, state = stepped(ADAMW, gpt.parameters.detach(), noisy(gpt.gradient, 2))
        moment = next(values for name, values in state.items() if name.startswith("exp_avg/") and len(values))
        moment[0] = math.nan
        assert problem(ADAMW, gpt, replayed, state) is not None


class Replayed(CapturedStep):
    """A captured step whose replay is the step itself on a CPU, with a fault."""

    def __init__(self, step, fault, rank):
        self.uncaptured, self._fault, self._rank = step, fault, rank
        self.replica, self.treatment, self._parts = step.replica, step.treatment, step._parts

    def __call__(self, inputs, targets, *marks):
        if self._fault == "rate":
            self.uncaptured.set_learning_rate(0.5)
        if self._fault == "twice":
            self.uncaptured(inputs, targets)
        if self._fault == "stale":
            inputs = inputs.roll(1, 0)
        loss = self.uncaptured(inputs, targets)
        if self._fault == "replica" and self._rank == 1:
            with torch.no_grad():
                self.uncaptured.replica.parameters[0] += 1e-3  # of zero1's and tensorflow's rank 0
        return loss


def check(monkeypatch, name, settings, *, layered, fault=None, world_size=2):
    monkeypatch.setattr(torch.cuda, "get_rng_state", torch.get_rng_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: None)
    monkeypatch.setattr(step_check, "MAX_SECONDS", 0.0)

    def work(group):
        chosen = (perceptron(12, 40, 6), name, settings, group)
        made = small.layered(*chosen, bucket_mb=1e-3) if layered else small.eager(*chosen)
        step, before = Replayed(made, fault, group.rank), made.replica.parameters.clone()
        StepCheck(step, create(name), settings, group).steps([batch_of(group.rank)], 1)
        return torch.equal(before, made.replica.parameters)

    return run_in_process(world_size, work)


SGD = SgdSettings(0.05, momentum=0.9, weight_decay=1e-3)
EVERY_OPTIMIZER = pytest.mark.parametrize("settings", [SGD, ADAMW, ADAM], ids=["sgd", "adamw", "adam"])
CASES = pytest.mark.parametrize(
    ("name", "layered"),
    [("all_reduce", False), ("all_reduce", True), ("zero1", True), ("one_bit", True), ("tensorflow", False)],
)


class TestStepCheck:
    @CASES
    @EVERY_OPTIMIZER
    def test_a_right_replay_passes_and_everything_is_put_back(self, monkeypatch, name, layered, settings):
        assert check(monkeypatch, name, settings, layered=layered) == [True, True]

    @pytest.mark.sampled(4)
    @CASES
    @EVERY_OPTIMIZER
    @pytest.mark.parametrize("fault", ["rate", "twice", "stale"])
    def test_a_wrong_replay_fails_the_run(self, monkeypatch, name, layered, settings, fault):
        with pytest.raises(ExchangeError, match="captured graph"):
            check(monkeypatch, name, settings, layered=layered, fault=fault)

    @CASES
    def test_parameters_that_another_rank_owns_are_compared_too(self, monkeypatch, name, layered):
        owns_all = name in ("all_reduce", "one_bit")
        words = "captured graph" if owns_all else r"rank 1 differs from rank 0"
        with pytest.raises(ExchangeError, match=words):
            check(monkeypatch, name, ADAMW, layered=layered, fault="replica")
