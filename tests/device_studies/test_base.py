"""How long a point is measured, when it is left out, and the step that studies of networks time."""

import pytest
import torch
from torch import nn

from scaling.device_studies.base import SHORTEST_SAMPLE_S, Budget, LeftOutError, steps
from scaling.device_studies.cpu_threads import SEVEN_NETWORKS
from scaling.device_studies.training_step import (
    batch_of,
    model_and_shape,
    num_parameters,
    pilots,
    timed,
    training_step,
)
from scaling.workloads.base import DataShape, cross_entropy
from tests.device_studies.conftest import CPU


def test_samples_are_seconds_of_one_call(takes):
    samples = Budget(seconds=1.0).samples(takes(0.02), CPU)
    assert samples == pytest.approx([0.02] * len(samples))
    assert 50 <= len(samples) <= 51  # a second's worth


def test_short_calls_are_measured_together_and_divided(takes):
    step = takes(1e-5)
    samples = Budget(seconds=0.1).samples(step, CPU)
    assert samples == pytest.approx([1e-5] * len(samples))
    assert step.call_count > 90 * len(samples)  # about a hundred calls make a sample of a millisecond
    assert len(samples) == pytest.approx(0.1 / SHORTEST_SAMPLE_S, abs=2)


def test_caller_says_how_many_calls_a_sample_covers(takes):
    step = takes(0.01)
    assert len(Budget(seconds=0.5).samples(step, CPU, per_sample=10)) == pytest.approx(6, abs=1)
    assert step.call_count >= 53


def test_samples_are_neither_fewer_nor_more_than_asked(takes):
    assert len(Budget(seconds=0.1, min_samples=6, limit_s=10).samples(takes(1.0), CPU)) == 6
    assert len(Budget(seconds=10.0, max_samples=20).samples(takes(0.01), CPU)) == 20


@pytest.mark.parametrize(("seconds", "first", "message", "calls"), [
    (2.0, None, r"a step took 2 s, so that 6 samples would pass the limit of 10 s", 3),
    (4.0, None, "a step took 4 s", 2),  # beyond doubt
    (0.01, 100.0, r"took 1e\+02 s|took 100 s", 1),
], ids=["three calls", "the second beyond doubt", "the first alone"])  # fmt: skip
def test_calls_that_would_pass_the_limit_are_left_out_with_the_numbers(takes, seconds, first, message, calls):
    step = takes(seconds, first=first)
    with pytest.raises(LeftOutError, match=message):
        Budget(seconds=1.0, limit_s=10.0).samples(step, CPU)
    assert step.call_count == calls


@pytest.mark.parametrize(("slow", "slow_s"), [(1, 5.0), (2, 2.0)])
def test_one_slow_call_is_forgiven_since_libraries_set_themselves_up_and_others_work(clock, slow, slow_s):
    calls = []

    def step() -> None:
        calls.append(0)
        clock.now += slow_s if len(calls) == slow else 0.01

    samples = Budget(seconds=0.1, limit_s=10.0).samples(step, CPU)
    assert samples
    assert samples == pytest.approx([0.01] * len(samples))


def test_expectation_is_refused_before_anything_is_made():
    budget = Budget(seconds=1.0, min_samples=6, limit_s=6.0)
    budget.require(0.99, "measured")
    with pytest.raises(
        LeftOutError, match=r"^known from before, so that 6 samples would pass the limit of 6 s$"
    ):
        budget.require(1.01, "known from before")


def test_warm_up_of_short_calls_lasts_a_tenth_of_the_time(takes):
    step = takes(0.001)
    Budget(seconds=1.0, max_samples=1, min_samples=1).samples(step, CPU, per_sample=1)
    assert 100 <= step.call_count <= 200


def test_samples_become_rows_of_their_phase():
    expected = [{"phase": "train", "seconds": 0.5}, {"phase": "train", "seconds": 0.25}]
    assert list(steps([0.5, 0.25], "train")) == expected


def test_step_trains():
    torch.manual_seed(0)
    module = nn.Linear(5, 3)
    inputs, targets = batch_of(DataShape((5,), 3), 16, CPU)
    before = cross_entropy(module(inputs), targets).item()
    step = training_step(module, inputs, targets)
    for _ in range(50):
        step()
    assert cross_entropy(module(inputs), targets).item() < before


def test_step_leaves_frozen_parameters_alone():
    module = nn.Linear(5, 3)
    module.bias.requires_grad_(False)
    before = module.bias.clone()
    training_step(module, *batch_of(DataShape((5,), 3), 4, CPU))()
    assert torch.equal(module.bias, before)
    assert num_parameters(module) == 15


def test_batch_of_tokens_has_a_target_a_token():
    inputs, targets = batch_of(DataShape((7,), 11, tokens=True), 4, CPU)
    assert inputs.shape == targets.shape == (4, 7)
    assert inputs.dtype == targets.dtype == torch.int64
    assert int(inputs.max()) < 11


def test_pilots_ascend_to_a_quarter():
    assert (pilots(1), pilots(64), pilots(100)) == ([], [1, 4, 16], [1, 6, 25])


def test_large_batch_is_not_tried_where_a_small_one_is_too_slow(clock, takes):
    made = []

    def make(batch):
        made.append(batch)
        return takes(0.1 * batch)

    budget = Budget(seconds=0.1, min_samples=6, limit_s=6.0)
    with pytest.raises(LeftOutError, match=r"a step on 16 samples takes 1.6 s, one on 1,024 takes longer"):
        list(timed(make, 1024, CPU, budget))
    assert made == [1, 4, 16]


def test_batch_is_told_with_its_samples():
    rows = list(timed(lambda batch: lambda: None, 8, CPU, Budget(seconds=0.001, max_samples=6)))
    assert (rows[0], {row["phase"] for row in rows[1:]}) == ({"fact": "samples", "value": 8}, {"step"})
    assert len(rows) == 7


def test_seven_networks_are_those_of_the_workloads():
    assert len(set(SEVEN_NETWORKS)) == 7
    for name in SEVEN_NETWORKS:
        model, shape = model_and_shape(name)
        assert (model.name, shape.num_classes > 1) == (name, True)


@pytest.mark.gpu
def test_captured_step_trains_as_the_eager_one_does():
    device = torch.device("cuda")
    inputs, targets = batch_of(DataShape((5,), 3), 16, device)
    losses = []
    for captured in (False, True):
        torch.manual_seed(0)
        module = nn.Linear(5, 3).to(device)
        step = training_step(module, inputs, targets, captured=captured)
        for _ in range(50 if captured else 53):  # three steps warm the captured one up
            step()
        losses.append(cross_entropy(module(inputs), targets).item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
