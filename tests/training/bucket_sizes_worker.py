"""One rank of test_bucket_sizes.py: DDP with the sizes of its buckets one by one; writes JSON."""

from typing import Any

import torch
from torch import Tensor, nn

from scaling.aggregators.registry import create
from scaling.errors import LaunchError
from scaling.measure.clock import clock_for
from scaling.measure.phases import PhaseRecorder
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training import ddp as wrapping
from scaling.training.ddp import DdpSettings
from scaling.training.optimizers import SgdSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import Replica
from tests.ranks import as_rank

CPU = torch.device("cpu")
KIB = 2.0**-10
WIDTH, DEPTH = 16, 8  # each layer has 1 KiB of weights
ONE_BY_ONE = (2 * KIB, KIB, 4 * KIB)
TWO = DdpSettings(bucket_sizes_mb=(KIB, 3 * KIB))
STEPS = 3


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


def batch(rank: int, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn((8, WIDTH), generator=generator), torch.randint(WIDTH, (8,), generator=generator)


def trained(name: str, group: TorchGroup, ddp: DdpSettings) -> dict[str, Any]:
    inputs, targets = batch(group.rank, 0)
    settings = SgdSettings(0.1, 0.5)
    step = OverlappedStep(
        Replica(network()),
        create(name),
        settings,
        group,
        bucket_mb=25.0,
        ddp=ddp,
        inputs=inputs,
        targets=targets,
    )
    for number in range(STEPS):
        step(*batch(group.rank, number))
    step.prepare_profiled(PhaseRecorder(clock_for(CPU)))
    parameters = torch.cat([one.flatten() for one in step.replica.trainable])
    return {"bytes": step.bucket_bytes, "parameters": parameters.tolist(), "notes": step.notes}


def refused(group: TorchGroup) -> str:
    try:
        trained("all_reduce", group, DdpSettings(bucket_sizes_mb=ONE_BY_ONE, find_unused_parameters=True))
    except LaunchError as error:
        return str(error)
    return ""


def seen_by(workers: Workers) -> dict[str, Any]:
    group = workers.group(CPU)
    seen: dict[str, Any] = {"refused": refused(group)}
    for name in ("all_reduce", "ring"):
        seen[name] = {
            "one size": trained(name, group, DdpSettings()),
            "one by one": trained(name, group, DdpSettings(bucket_sizes_mb=ONE_BY_ONE)),
            "first and others": trained(name, group, TWO),
        }
    wrapping.TAKES_SIZES = False
    for name in ("all_reduce", "ring"):
        seen[name]["in older torch"] = trained(name, group, TWO)
    return seen


if __name__ == "__main__":
    as_rank(seen_by)
