"""Loss and accuracy over a split, of images and of tokens, shared by the ranks."""

import pytest
import torch
from torch import nn

from scaling.process_group import InProcessGroup, run_in_process
from scaling.training import convergence
from scaling.training.convergence import evaluate
from scaling.workloads.base import Split

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
class TestEvaluate:
    def test_accuracy_is_the_part_of_the_targets_that_are_hit(self, shape, world_size):
        right, wrong = classes(*shape), classes(*shape).clone()
        wrong[0] = (wrong[0] + 1) % NUM_CLASSES  # one image of 11, or one line of 11
        for _, accuracy in evaluated(Split(right, wrong), world_size):
            assert accuracy == pytest.approx(10 / 11)

    def test_loss_is_the_mean_over_all_targets(self, shape, world_size):
        inputs, targets = classes(*shape), classes(*shape).flip(0)
        logits = Table()(inputs).flatten(0, -2)
        expected = nn.functional.cross_entropy(logits, targets.flatten()).item()
        for loss, _ in evaluated(Split(inputs, targets), world_size):
            assert loss == pytest.approx(expected, rel=1e-6)

    def test_size_of_the_chunks_changes_nothing(self, shape, world_size, monkeypatch):
        split = Split(classes(*shape), classes(*shape).flip(0))
        whole = evaluated(split, world_size)
        monkeypatch.setattr(convergence, "EVALUATION_BATCH", 2)
        for chunked, one in zip(evaluated(split, world_size), whole, strict=True):
            assert chunked == pytest.approx(one)


def test_one_wrong_token_is_one_of_all():
    inputs = classes(6, 4)
    targets = inputs.clone()
    targets[2, 3] = (targets[2, 3] + 1) % NUM_CLASSES
    ((_, accuracy),) = evaluated(Split(inputs, targets), 1)
    assert accuracy == pytest.approx(23 / 24)
