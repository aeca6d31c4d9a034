"""The rate of every step, by values worked out by hand; and that every kind of step takes it."""

import math

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.learning_rate import LearningRate, scaled_rate
from scaling.training.optimizers import SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep


class TestScaledRate:
    @pytest.mark.parametrize(
        ("rule", "batch", "expected"),
        [("fixed", 512, 0.1), ("linear", 512, 0.4), ("linear", 64, 0.05), ("sqrt", 512, 0.2)],
    )
    def test_rate_follows_the_batch_by_the_rule(self, rule, batch, expected):
        assert scaled_rate(0.1, rule, batch, 128) == pytest.approx(expected)

    def test_fixed_rate_needs_no_base_batch(self):
        assert scaled_rate(0.1, "fixed", 512, None) == 0.1

    @pytest.mark.parametrize("rule", ["fixed", "linear", "sqrt"])
    def test_base_batch_has_the_stated_rate(self, rule):
        assert scaled_rate(0.1, rule, 128, 128) == 0.1


class TestWarmup:
    @pytest.mark.parametrize(
        ("rate", "steps_an_epoch", "expected"),
        [
            (LearningRate(0.8, warmup_epochs=2), 2, [0.2, 0.4, 0.6, 0.8, 0.8, 0.8]),
            (LearningRate(1.0, warmup_epochs=0.5), 4, [0.5, 1.0, 1.0]),  # rounded to steps
            (LearningRate(0.3), 10, [0.3] * 100),  # none begins with the peak, and a constant rate stays
        ],
    )
    def test_rate_rises_in_equal_steps_to_the_peak(self, rate, steps_an_epoch, expected):
        found = [rate.at(step, steps_an_epoch, 10) for step in range(len(expected))]
        assert found == pytest.approx(expected)


class TestSchedules:
    def test_step_falls_behind_each_milestone(self):
        rate = LearningRate(1.0, schedule="step", milestones=(2, 4), gamma=0.1)
        values = [rate.at(step, 3, 6) for step in (0, 5, 6, 11, 12, 17)]
        assert values == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])

    def test_milestones_are_counted_from_the_start_and_warm_up_goes_before(self):
        rate = LearningRate(1.0, warmup_epochs=2, schedule="step", milestones=(1, 3), gamma=0.5)
        assert [rate.at(step, 2, 6) for step in range(7)] == [0.25, 0.5, 0.75, 1.0, 0.5, 0.5, 0.25]

    def test_cosine_is_half_way_down_in_the_middle_and_near_0_at_the_end(self):
        rate = LearningRate(0.8, schedule="cosine")
        assert rate.at(0, 10, 10) == 0.8
        assert rate.at(25, 10, 10) == pytest.approx(0.4 * (1 + math.sqrt(0.5)))
        assert rate.at(50, 10, 10) == pytest.approx(0.4)
        assert 0 < rate.at(99, 10, 10) < 0.001
        assert rate.at(100, 10, 10) == pytest.approx(0)

    def test_cosine_begins_behind_the_warm_up(self):
        rate = LearningRate(0.8, warmup_epochs=2, schedule="cosine")
        assert rate.at(20, 10, 10) == 0.8
        assert rate.at(60, 10, 10) == pytest.approx(0.4)


@pytest.mark.parametrize("aggregator", ["all_reduce", "torch_cpu", "mxnet_device", "host_serial", "caffe"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_rate_of_every_update_site_can_be_set(aggregator, world_size):
    """Two steps of 0.1 and 0.3 on a loss that is linear in the bias: it moves by their sum."""

    def work(group: InProcessGroup) -> tuple[float, float]:
        module = nn.Linear(1, 2, bias=True)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        step = EagerStep(FlatReplica(module), create(aggregator), SgdSettings(5.0), group)
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
