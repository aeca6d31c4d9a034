"""The rate of every step, by values worked out by hand; and that every kind of step takes it."""

import math

import pytest
import torch
from torch import nn

from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.learning_rate import LearningRate, scaled_rate
from scaling.training.optimizers import SgdSettings
from tests.training.small import eager


@pytest.mark.parametrize(
    ("rule", "batch", "base", "expected"),
    [
        *(("fixed", 512, 128, 0.1), ("linear", 512, 128, 0.4), ("linear", 64, 128, 0.05)),
        *(("sqrt", 512, 128, 0.2), ("fixed", 512, None, 0.1)),
        *((rule, 128, 128, 0.1) for rule in ("fixed", "linear", "sqrt")),
    ],
)
def test_rate_follows_the_batch_by_the_rule(rule, batch, base, expected):
    assert scaled_rate(0.1, rule, batch, base) == pytest.approx(expected, rel=1e-15)


STEPS = {"schedule": "step", "milestones": (2, 4), "gamma": 0.1}
WARMED_UP_STEPS = {"warmup_epochs": 2, "schedule": "step", "milestones": (1, 3), "gamma": 0.5}


@pytest.mark.parametrize(
    ("rate", "steps_an_epoch", "epochs", "expected"),
    [
        (LearningRate(0.8, warmup_epochs=2), 2, 10, [0.2, 0.4, 0.6, 0.8, 0.8, 0.8]),
        (LearningRate(1.0, warmup_epochs=0.5), 4, 10, [0.5, 1.0, 1.0]),  # rounded to steps
        (LearningRate(0.3), 10, 10, [0.3] * 100),  # none begins with the peak, and a constant rate stays
        (LearningRate(1.0, **STEPS), 3, 6, [1] * 6 + [0.1] * 6 + [0.01] * 6),  # behind each milestone
        # Milestones are counted from the start, and warm-up goes before.
        (LearningRate(1.0, **WARMED_UP_STEPS), 2, 6, [0.25, 0.5, 0.75, 1.0, 0.5, 0.5, 0.25]),
    ],
)
def test_rate_rises_in_equal_steps_to_the_peak_and_falls_behind_milestones(
    rate, steps_an_epoch, epochs, expected
):
    found = [rate.at(step, steps_an_epoch, epochs) for step in range(len(expected))]
    assert found == pytest.approx(expected)


def test_cosine_begins_behind_the_warm_up_and_is_half_way_down_in_the_middle_and_near_0_at_the_end():
    rate = LearningRate(0.8, schedule="cosine")
    assert rate.at(0, 10, 10) == LearningRate(0.8, warmup_epochs=2, schedule="cosine").at(20, 10, 10) == 0.8
    assert rate.at(25, 10, 10) == pytest.approx(0.4 * (1 + math.sqrt(0.5)))
    assert rate.at(50, 10, 10) == pytest.approx(0.4)
    assert LearningRate(0.8, warmup_epochs=2, schedule="cosine").at(60, 10, 10) == pytest.approx(0.4)
    assert 0 < rate.at(99, 10, 10) < 0.001
    assert rate.at(100, 10, 10) == pytest.approx(0)


@pytest.mark.parametrize("aggregator", ["all_reduce", "torch_cpu", "mxnet_device", "host_serial", "caffe"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_rate_of_every_update_site_can_be_set(aggregator, world_size):
    """Two steps of 0.1 and 0.3 on a loss that is linear in the bias: it moves by their sum."""

    def work(group: InProcessGroup) -> tuple[float, float]:
        module = nn.Linear(1, 2, bias=True)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        step = eager(module, aggregator, SgdSettings(5.0), group)
        inputs, targets = torch.zeros(2, 1), torch.tensor([0, 1])
        step.set_learning_rate(0.0)
        step(inputs, targets)
        unmoved = float(module.bias.detach().abs().max())
        step.set_learning_rate(0.5)
        step(inputs[:1], targets[:1])  # the softmax is even: the gradient of the bias is (-1/2, 1/2)
        return unmoved, float(module.bias.detach()[0])

    for unmoved, moved in run_in_process(world_size, work):
        assert unmoved == 0
        assert moved == pytest.approx(0.25)
