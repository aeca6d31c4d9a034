"""Small networks, their batches and steps, which tests train in threads and in processes."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from scaling.process_group import Group
from scaling.runtime.workers import Workers
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import Replica

CPU = torch.device("cpu")
Batch = tuple[Tensor, Tensor]


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers between layers of these sizes, and ReLUs; the same each time."""
    torch.manual_seed(0)
    layers = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def batch_of(seed: int | torch.Generator, size: int = 10, width: int = 12, classes: int = 6) -> Batch:
    """Random inputs, [size, width], and targets."""
    generator = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed
    inputs = torch.randn((size, width), generator=generator)
    return inputs, torch.randint(classes, (size,), generator=generator)


def batch(rank: int, number: int) -> Batch:
    """Of a rank in a step."""
    return batch_of(100 * number + rank)


def batches(rank: int, count: int) -> list[Batch]:
    """The first ones of a rank, drawn one after the other."""
    generator = torch.Generator().manual_seed(rank)
    return [batch_of(generator) for _ in range(count)]


def shared_batches(group: Group, count: int, size: int = 24, classes: int = 7) -> list[Batch]:
    """This rank's share of the first ones that the ranks have together."""
    generator, own = torch.Generator().manual_seed(3), slice(group.rank, None, group.world_size)
    drawn = [batch_of(generator, size, classes=classes) for _ in range(count)]
    return [(inputs[own], targets[own]) for inputs, targets in drawn]


def flat(module: nn.Module) -> Tensor:
    """A copy of its parameters."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def overlapped(
    module: nn.Module, aggregator: Any, settings: Any, group: Any, example: Batch, **options: Any
) -> OverlappedStep:
    inputs, targets = example
    return OverlappedStep(
        Replica(module), aggregator, settings, group, inputs=inputs, targets=targets, **options
    )


def all_of(*scenarios: Callable[[Any], Any]) -> Callable[[Workers], dict[str, Any]]:
    """What a rank does: these, each with a group of the CPU; gives their results by their names."""

    def seen_by(workers: Workers) -> dict[str, Any]:
        group = workers.group(CPU)
        return {scenario.__name__: scenario(group) for scenario in scenarios}

    return seen_by
