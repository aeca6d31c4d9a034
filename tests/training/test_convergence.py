"""Training by epochs: its evaluation, augmented images, and the rate of every step, which all steps take."""

import math
from functools import cache

import pytest
import torch
from torch import nn

from scaling.measure.clock import clock_for
from scaling.process_group import InProcessGroup, run_in_process
from scaling.training import convergence
from scaling.training.convergence import TrainingPlan, TrainingProgress, evaluate, train
from scaling.training.learning_rate import LearningRate, scaled_rate
from scaling.training.optimizers import SgdSettings
from scaling.workloads.base import Split
from scaling.workloads.digits import Digits
from tests.training.small import CPU, eager, perceptron, trained_on_digits

NUM_CLASSES = 5


def table() -> nn.Module:
    """Logits that are looked up: class c, [...], gives row c, [..., num_classes]."""
    return nn.Embedding.from_pretrained(torch.eye(NUM_CLASSES) * 3, freeze=False)


def evaluated(split: Split, world_size: int) -> list[tuple[float, float]]:
    def work(group: InProcessGroup) -> tuple[float, float]:
        module = table()
        result = evaluate(module, split, group)
        assert module.training
        return result

    return run_in_process(world_size, work)


def classes(*shape: int) -> torch.Tensor:
    return torch.randint(NUM_CLASSES, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("shape", [(11,), (11, 4)], ids=["images", "tokens"])
def test_loss_and_accuracy_are_over_all_targets_whatever_the_chunks(shape, world_size, monkeypatch):
    inputs, targets = classes(*shape), classes(*shape).clone()
    targets[0] = (targets[0] + 1) % NUM_CLASSES  # one image of 11, or one line of 11
    loss = nn.functional.cross_entropy(table()(inputs).flatten(0, -2), targets.flatten()).item()
    for chunk in (convergence.EVALUATION_BATCH, 2):
        monkeypatch.setattr(convergence, "EVALUATION_BATCH", chunk)
        for found in evaluated(Split(inputs, targets), world_size):
            assert found == (pytest.approx(loss, rel=1e-6), pytest.approx(10 / 11))


def test_one_wrong_token_is_one_of_all():
    inputs = classes(6, 4)
    targets = inputs.clone()
    targets[2, 3] = (targets[2, 3] + 1) % NUM_CLASSES
    ((_, accuracy),) = evaluated(Split(inputs, targets), 1)
    assert accuracy == pytest.approx(23 / 24)


@cache
def trained(world_size: int, augmented: bool, rate: float = 0.05, after: int = 0) -> list[dict]:
    plan = TrainingPlan(100, 3, seed=1, learning_rate=LearningRate(rate), augmented=augmented)
    metered = {"after": TrainingProgress(after, 10.0, 5.0), "energy_meter": lambda: lambda: 2.0}
    return trained_on_digits(world_size, "all_reduce", SgdSettings(7.0, 0.9), plan, **metered)[0][0]


@pytest.mark.gpu
@pytest.mark.parametrize("augmented", [False, True])
def test_samples_in_host_memory_are_the_same_training_on_a_gpu(augmented):
    device = torch.device("cuda")
    loaded = Digits().load(Digits().shape(None), 0, 0)
    plan = TrainingPlan(100, 2, seed=1, augmented=augmented)

    def rows_from(place: torch.device) -> list[dict]:
        parts = [Split(one.inputs.to(place), one.targets.to(place)) for one in (loaded.train, loaded.test)]

        def work(group: InProcessGroup) -> list[dict]:
            module = nn.Sequential(nn.Flatten(), *perceptron(64, 10)).to(device)
            step = eager(module, "all_reduce", SgdSettings(0.05, 0.9), group)
            return list(train(step, *parts, plan, group, clock_for(device), lambda seconds: seconds))

        return run_in_process(1, work)[0]

    for host, own in zip(rows_from(CPU), rows_from(device), strict=True):
        assert {**host, "train_s": 0.0} == {**own, "train_s": 0.0}


def losses(rows: list[dict]) -> torch.Tensor:
    return torch.tensor([loss for row in rows for loss in row["step_losses"]], dtype=torch.float64)


@pytest.mark.parametrize("world_size", [2, 4])
def test_workers_see_what_one_worker_sees(world_size):
    torch.testing.assert_close(losses(trained(world_size, True)), losses(trained(1, True)), rtol=1e-5, atol=0)


def test_augmented_images_are_others():
    assert not torch.allclose(losses(trained(1, True)), losses(trained(1, False)), rtol=1e-2)


def test_same_image_varies_from_epoch_to_epoch():
    """Nothing is learned at a rate of 0: what differs between epochs is what is seen."""
    rows = trained(1, True, rate=0.0)
    assert len({row["train_loss"] for row in rows}) == 3
    assert len({row["train_accuracy"] for row in rows}) == 1  # evaluation is not augmented


def test_plans_rate_is_taken_and_recorded():
    # The optimizer's own, 7, would make it diverge.
    rows = trained(1, False)
    assert [row["learning_rate"] for row in rows] == [0.05] * 3
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]


def test_samples_seconds_and_joules_are_counted_from_the_start():
    rows = trained(1, False)
    assert [row["samples"] for row in rows] == [1400, 2800, 4200]
    assert [row["train_j"] for row in rows] == [7.0, 9.0, 11.0]
    (last,) = trained(1, False, after=2)
    assert (last["epoch"], last["samples"], last["train_j"]) == (3, 4200, 7.0)
    assert last["train_s"] > 10


def test_training_accuracy_is_that_on_as_many_samples_as_are_tested():
    row = trained(1, False)[-1]
    assert 0.2 < row["train_accuracy"] <= 1
    assert (row["train_accuracy"] * 360) == pytest.approx(round(row["train_accuracy"] * 360), abs=1e-6)


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
def test_rate_rises_in_equal_steps_and_falls_behind_milestones(rate, steps_an_epoch, epochs, expected):
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
