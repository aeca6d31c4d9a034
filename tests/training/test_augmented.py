"""Augmented training: the same for every world size, another in every epoch, and no part of evaluation."""

from functools import cache

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.measure.clock import MonotonicClock, clock_for
from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.convergence import TrainingPlan, TrainingProgress, train
from scaling.training.learning_rate import LearningRate
from scaling.training.optimizers import SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep
from scaling.workloads.base import Split
from scaling.workloads.digits import Digits


@cache
def trained(world_size: int, augmented: bool, rate: float = 0.05, after: int = 0) -> list[dict]:
    splits = Digits().load(Digits().shape(None), 0, 0)
    plan = TrainingPlan(100, 3, seed=1, learning_rate=LearningRate(rate), augmented=augmented)

    def work(group: InProcessGroup) -> list[dict]:
        torch.manual_seed(0)
        replica = FlatReplica(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)))
        step = EagerStep(replica, create("all_reduce"), SgdSettings(7.0, 0.9), group)
        parts = (step, splits.train, splits.test, plan, group, MonotonicClock(), lambda seconds: seconds)
        return list(train(*parts, after=TrainingProgress(after, 10.0, 5.0), energy_meter=lambda: lambda: 2.0))

    return run_in_process(world_size, work)[0]


@pytest.mark.gpu
@pytest.mark.parametrize("augmented", [False, True])
def test_samples_in_host_memory_are_the_same_training_on_a_gpu(augmented):
    device = torch.device("cuda")
    loaded = Digits().load(Digits().shape(None), 0, 0)
    plan = TrainingPlan(100, 2, seed=1, augmented=augmented)

    def rows_from(place: torch.device) -> list[dict]:
        parts = [Split(one.inputs.to(place), one.targets.to(place)) for one in (loaded.train, loaded.test)]

        def work(group: InProcessGroup) -> list[dict]:
            torch.manual_seed(0)
            replica = FlatReplica(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).to(device))
            step = EagerStep(replica, create("all_reduce"), SgdSettings(0.05, 0.9), group)
            return list(train(step, *parts, plan, group, clock_for(device), lambda seconds: seconds))

        return run_in_process(1, work)[0]

    for host, own in zip(rows_from(torch.device("cpu")), rows_from(device), strict=True):
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
