"""One rank of test_dtypes_overlapped.py: trains models of several dtypes over DDP, writes what it saw."""

from typing import Any

import torch
from mixed_models import MIXED, NUM_STEPS, RARE, SETTINGS, Network, apart, batch, plainly_trained
from torch import nn

from scaling.aggregators.registry import create
from scaling.errors import StudyError
from scaling.measure.clock import MonotonicClock
from scaling.measure.phases import PhaseRecorder
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep, TrainingStep
from tests.ranks import as_rank

CPU = torch.device("cpu")
EXACT = ("all_reduce", "ring", "tree")
LOSSY = ("one_bit", "two_bit")  # what is lost of a tensor is its own, whatever bucket it is in
SMALL_MB = 5e-4
MODELS = {**MIXED, **RARE}


def overlapped(module: nn.Module, name: str, group: TorchGroup) -> OverlappedStep:
    inputs, targets = batch(group.rank, 0)
    replica, aggregator = Replica(module), create(name)
    return OverlappedStep(
        replica, aggregator, SETTINGS, group, bucket_mb=SMALL_MB, inputs=inputs, targets=targets
    )


def take(step: TrainingStep, rank: int, start: int = 0, stop: int = NUM_STEPS) -> list[float]:
    return [step(*batch(rank, number)).item() for number in range(start, stop)]


def without_template(module: nn.Module) -> nn.Module:
    """Weight decay moves a parameter without a gradient in an eager step alone."""
    if hasattr(module, "template"):
        del module.template
    return module


def trainings(group: TorchGroup) -> dict[str, Any]:
    """How far each is from a plain loop or, with a lossy aggregator, from the eager step, in units."""
    seen: dict[str, Any] = {}
    for model, make in MODELS.items():
        expected = without_template(plainly_trained(make(), group.world_size))
        for name in EXACT:
            step = overlapped(make(), name, group)
            group.meter.reset()
            take(step, group.rank, 0, 1)
            sent = group.meter.bytes_sent
            take(step, group.rank, 1)
            seen[f"{model} {name}"] = {
                "apart": apart(without_template(step.replica.module), expected),
                "sent": sent,
                "num_bytes": sum(one.nbytes for one in step.replica.trainable),
                "notes": step.notes,
            }
    for model in ("bfloat16 head", "float64 scalar", "three dtypes"):
        for name in LOSSY:
            step = overlapped(MODELS[model](), name, group)
            eager = EagerStep(FlatReplica(MODELS[model]()), create(name), SETTINGS, group)
            losses = [take(one, group.rank) for one in (step, eager)]
            seen[f"{model} {name}"] = {
                "losses": losses,
                "apart": apart(step.replica.module, eager.replica.module),
            }
    return seen


def split(group: TorchGroup) -> dict[str, Any]:
    """DDP's own path gets a hook half-way."""
    expected = plainly_trained(MODELS["three dtypes"](), group.world_size)
    step = overlapped(MODELS["three dtypes"](), "all_reduce", group)
    take(step, group.rank, 0, 2)
    step.prepare_profiled(PhaseRecorder(MonotonicClock()))
    take(step, group.rank, 2)
    return {"apart": apart(step.replica.module, expected), "notes": step.notes}


def resumed(group: TorchGroup) -> dict[str, Any]:
    """Whether a saved and loaded step goes on with the same bits."""
    seen = {}
    for name in ("all_reduce", "one_bit", "one_bit_flat", "power_sgd"):
        step = overlapped(MODELS["three dtypes"](), name, group)
        take(step, group.rank, 0, 3)
        saved = step.state_dict()
        losses = take(step, group.rank, 3, 6)
        other = overlapped(MODELS["three dtypes"](), name, group)
        other.load_state_dict(saved)
        same = losses == take(other, group.rank, 3, 6)
        seen[name] = [same, apart(step.replica.module, other.replica.module)]
    return seen


def refused(group: TorchGroup) -> dict[str, Any]:
    module = Network()
    module.odd = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    try:
        overlapped(module, "all_reduce", group)
    except StudyError as error:
        return {"error": str(error)}
    return {"error": ""}


def seen_by(workers: Workers) -> dict[str, Any]:
    group = workers.group(CPU)
    return {scenario.__name__: scenario(group) for scenario in (trainings, split, resumed, refused)}


if __name__ == "__main__":
    as_rank(seen_by)
