"""What a training to convergence asks of the captured step: its rate can be set, and it can be resumed."""

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.captured import CapturedStep
from scaling.training.checkpoint import Checkpoint, Target
from scaling.training.convergence import TrainingProgress
from scaling.training.optimizers import SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep

pytestmark = pytest.mark.gpu

RATES = [0.05, 0.1, 0.0, 0.02]


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    inputs, targets = torch.randn((10, 12), generator=generator), torch.randint(6, (10,), generator=generator)
    return inputs.cuda(), targets.cuda()


def make(group: InProcessGroup, aggregator: str, *, capture: bool, dropout: float = 0.0):
    torch.manual_seed(0)
    layers = [nn.Linear(12, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(dropout), nn.Linear(40, 6)]
    replica = FlatReplica(nn.Sequential(*layers).cuda())
    step = EagerStep(replica, create(aggregator), SgdSettings(7.0, 0.9), group, capturable=capture)
    return CapturedStep(step, *batch(99), group) if capture else step


def losses(step, rates) -> list[float]:
    seen = []
    for number, rate in enumerate(rates):
        step.set_learning_rate(rate)
        seen.append(step(*batch(number)).item())
    return seen


def test_rate_is_set_from_step_to_step():
    def work(group: InProcessGroup) -> list[list[float]]:
        return [losses(make(group, "all_reduce", capture=capture), RATES * 2) for capture in (False, True)]

    ((eager, captured),) = run_in_process(1, work)
    assert captured == pytest.approx(eager, rel=1e-5)


@pytest.mark.parametrize("aggregator", ["all_reduce", "ring"])
def test_resumed_training_has_the_bits_of_an_uncut_one(aggregator):
    device = torch.device("cuda", torch.cuda.current_device())

    def work(group: InProcessGroup) -> tuple[list[float], list[float]]:
        step = make(group, aggregator, capture=True, dropout=0.3)
        losses(step, RATES)
        target = Target.of(step.replica.module, "cell", rank=0, world_size=1)
        content = Checkpoint.of(step, TrainingProgress(1, 1.0), [], device).to_bytes(target)
        uncut = losses(step, RATES)
        other = make(group, aggregator, capture=True, dropout=0.3)
        saved = Checkpoint.from_bytes(content, target)
        saved.restore(other, device)
        return uncut, losses(other, RATES)

    ((uncut, resumed),) = run_in_process(1, work)
    assert resumed == uncut
