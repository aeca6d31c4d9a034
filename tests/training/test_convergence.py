"""Training by epochs: its evaluation, and augmented images."""

from functools import cache

import pytest
import torch
from torch import nn

from scaling.measure.clock import clock_for
from scaling.process_group import InProcessGroup, run_in_process
from scaling.training import convergence
from scaling.training.convergence import TrainingPlan, TrainingProgress, evaluate, train
from scaling.training.learning_rate import LearningRate
from scaling.training.optimizers import SgdSettings
from scaling.workloads.base import Split
from scaling.workloads.digits import Digits
from tests.training.small import CPU, eager, perceptron, trained_on_digits

NUM_CLASSES = 5


class Table(nn.Module):
    """Logits that are looked up: class c, [...], gives row c, [..., num_classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.eye(NUM_CLASSES) * 3)

    def forward(self, inputs):
        return self.rows[inputs]


def evaluated(split: Split, world_size: int) -> list[tuple[float, float]]:
    def work(group: InProcessGroup) -> tuple[float, float]:
        module = Table()
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
    loss = nn.functional.cross_entropy(Table()(inputs).flatten(0, -2), targets.flatten()).item()
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
    seen = [row["train_loss"] for row in trained(1, True, rate=0.0)]
    assert len(set(seen)) == 3
    of_same_images = [row["train_accuracy"] for row in trained(1, True, rate=0.0)]
    assert len(set(of_same_images)) == 1  # evaluation is not augmented


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
