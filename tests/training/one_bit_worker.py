"""One rank of test_one_bit_overlapped.py: 1-bit SGD as DDP's hook; writes JSON."""

from typing import Any

import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.optimizers import SgdSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep, TrainingStep
from tests.ranks import as_rank

CPU = torch.device("cpu")
SETTINGS = SgdSettings(learning_rate=0.05, momentum=0.9)
NUM_STEPS, SAVED_AFTER = 6, 3
BUCKETS_MB = {"one bucket": 25.0, "several": 0.001}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 6))


def batch(rank: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn((10, 12), generator=generator), torch.randint(6, (10,), generator=generator)


def overlapped(group: TorchGroup, bucket_mb: float) -> OverlappedStep:
    inputs, targets = batch(group.rank, 0)
    return OverlappedStep(
        Replica(network()),
        create("one_bit"),
        SETTINGS,
        group,
        bucket_mb=bucket_mb,
        inputs=inputs,
        targets=targets,
    )


def losses(step: TrainingStep, group: TorchGroup, numbers: range) -> list[float]:
    return [step(*batch(group.rank, number)).item() for number in numbers]


def seen_by(workers: Workers) -> dict[str, Any]:
    group = workers.group(CPU)
    eager = EagerStep(FlatReplica(network()), create("one_bit"), SETTINGS, group)
    seen: dict[str, Any] = {"eager": losses(eager, group, range(NUM_STEPS))}
    for way, bucket_mb in BUCKETS_MB.items():
        step = overlapped(group, bucket_mb)
        seen[way] = losses(step, group, range(SAVED_AFTER))
        saved = step.state_dict()
        seen[way] += losses(step, group, range(SAVED_AFTER, NUM_STEPS))
        seen[f"{way} notes"] = step.notes
        for other, other_mb in BUCKETS_MB.items():
            resumed = overlapped(group, other_mb)
            resumed.load_state_dict(saved)
            seen[f"{way} to {other}"] = losses(resumed, group, range(SAVED_AFTER, NUM_STEPS))
    return seen


if __name__ == "__main__":
    as_rank(seen_by)
