"""Small networks, their batches and steps, which tests train in threads and in processes."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from scaling.aggregators.registry import create
from scaling.measure.clock import MonotonicClock
from scaling.process_group import Group, run_in_process
from scaling.runtime.workers import Workers
from scaling.training.compute import FLOAT32
from scaling.training.convergence import TrainingPlan, train
from scaling.training.layered import LayeredStep
from scaling.training.optimizers import AdamSettings, SgdSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep
from scaling.workloads.digits import Digits

CPU = torch.device("cpu")
SGD = SgdSettings(learning_rate=0.05, momentum=0.9, weight_decay=1e-4)
OPTIMIZERS = {"sgd": SGD, "adamw": AdamSettings(learning_rate=1e-3, weight_decay=0.01, decoupled=True)}
BUCKETS_MB = [1e-6, 1e-3, 100.0]
"""A bucket a tensor, some, and one."""
Batch = tuple[Tensor, Tensor]


def perceptron(*sizes: int, seed: int = 0) -> nn.Sequential:
    """Linear layers between layers of these sizes, and ReLUs; the same each time."""
    torch.manual_seed(seed)
    layers = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def normalised(*sizes: int, dropout: float = 0.0) -> nn.Sequential:
    """The same with batch normalisation and dropout behind the first layer."""
    first, *others = perceptron(*sizes)
    return nn.Sequential(first, nn.BatchNorm1d(sizes[1]), nn.Dropout(dropout), *others)


def batch_of(seed: int | torch.Generator, size: int = 10, width: int = 12, classes: int = 6) -> Batch:
    """Random inputs, [size, width], and targets."""
    generator = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed
    inputs = torch.randn((size, width), generator=generator)
    return inputs, torch.randint(classes, (size,), generator=generator)


def batch(rank: int, number: int, device: torch.device | str = CPU) -> Batch:
    """Of a rank in a step."""
    inputs, targets = batch_of(100 * number + rank)
    return inputs.to(device), targets.to(device)


def learnable(rank: int, number: int, size: int = 64) -> Batch:
    """The class is the largest of the first six inputs."""
    inputs, _ = batch_of(100 * number + rank, size)
    return inputs, inputs[:, :6].argmax(1)


def torchs_power_sgd(group: Any, given: dict[str, Any], **own: Any) -> powerSGD_hook.PowerSGDState:
    """The state of torch's hook with our names of its parameters."""
    return powerSGD_hook.PowerSGDState(
        group.data,
        matrix_approximation_rank=given.get("approximation_size", 1),
        start_powerSGD_iter=given.get("start_step", 2),
        use_error_feedback=given.get("error_feedback", True),
        random_seed=given.get("seed", 0),
        **own,
    )


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


def relative_difference(one: list[float], other: list[float]) -> float:
    """The largest."""
    a, b = (torch.tensor(values, dtype=torch.float64) for values in (one, other))
    return ((a - b).abs() / b.abs()).max().item()


def _made(
    kind: Any, module: nn.Module, named: Any, settings: Any, group: Any, *gradients: Any, **own: Any
) -> Any:
    """A step of that kind with an aggregator, or one that is named."""
    replica = FlatReplica(module, compute=own.pop("compute", FLOAT32))
    aggregator = create(named) if isinstance(named, str) else named
    return kind(replica, aggregator, settings, group, *gradients, **own)


eager = functools.partial(_made, EagerStep)
layered = functools.partial(_made, LayeredStep)


def overlapped(
    module: nn.Module, aggregator: Any, settings: Any, group: Any, example: Batch, **options: Any
) -> OverlappedStep:
    inputs, targets = example
    return OverlappedStep(
        Replica(module), aggregator, settings, group, inputs=inputs, targets=targets, **options
    )


def trained_on_digits(
    world_size: int, named: Any, settings: Any, plan: TrainingPlan, hidden: int = 16, seed=0, **own: Any
) -> list[tuple[list[dict[str, Any]], Tensor]]:
    """Of each rank the rows of a perceptron's training between threads, and its last parameters."""
    splits = Digits().load(Digits().shape(None), 0, 0)

    def work(group: Group) -> tuple[list[dict[str, Any]], Tensor]:
        module = nn.Sequential(nn.Flatten(), *perceptron(64, hidden, 10, seed=seed))
        step, clock = eager(module, named, settings, group), MonotonicClock()
        rows = train(step, splits.train, splits.test, plan, group, clock, lambda seconds: seconds, **own)
        return list(rows), step.replica.parameters

    return run_in_process(world_size, work)


def all_of(*scenarios: Callable[[Any], Any]) -> Callable[[Workers], dict[str, Any]]:
    """What a rank does: these, each with a group of the CPU; gives their results by their names."""

    def seen_by(workers: Workers) -> dict[str, Any]:
        group = workers.group(CPU)
        return {scenario.__name__: scenario(group) for scenario in scenarios}

    return seen_by
