"""One rank of test_compiled.py: a decoder's steps with torch.compile and without; writes JSON.

On GPUs where there is one for each rank, else on the CPU. What torch.compile traces and splits is run as it
is, by its backend aot_eager: no compiler of C++ or Triton is needed.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from scaling.aggregators.registry import create
from scaling.errors import ExchangeError
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.compute import AUTOCAST, Compute
from scaling.training.ddp import DdpSettings
from scaling.training.optimizers import AdamSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep, TrainingStep
from scaling.training.step_check import StepCheck
from tests.ranks import as_rank
from tests.training.decoder import BATCH, batches, network

CASES = (
    ("float32", "none", "eager"),
    ("float32", "none", "one bucket"),
    ("float32", "all_reduce", "eager"),
    ("float32", "all_reduce", "one bucket"),
    ("float32", "all_reduce", "several"),
    ("float32", "ring", "one bucket"),
    ("float32", "ring", "several"),
    ("bf16", "all_reduce", "several"),
)

BUCKETS_MB = {"eager": None, "one bucket": 25.0, "several": 0.1}
SETTINGS = AdamSettings(1e-3, 0.1, decoupled=True)
NUM_STEPS = 3


COMPILE = torch.compile


class Graphs:
    """Counts what torch.compile traces, and makes it run."""

    def __init__(self) -> None:
        self.number, self._backend = 0, torch._dynamo.lookup_backend("aot_eager")

    def __call__(self, graph: Any, example: Any) -> Any:
        self.number += 1
        return self._backend(graph, example)


def shares(group: TorchGroup, device: torch.device) -> tuple[Tensor, Tensor]:
    """This rank's part of the first batch."""
    inputs, targets = (one[: BATCH // group.world_size].to(device) for one in next(batches(1)))
    return inputs, targets


def overlapped(
    replica: Replica, arm: str, group: TorchGroup, device: torch.device, bucket_mb: float, *, compiled: bool
) -> OverlappedStep:
    inputs, targets = shares(group, device)
    return OverlappedStep(
        replica,
        create(arm),
        SETTINGS,
        group,
        bucket_mb=bucket_mb,
        ddp=DdpSettings(compiled=compiled),
        inputs=inputs,
        targets=targets,
    )


def training(step: TrainingStep, group: TorchGroup, device: torch.device) -> list[float]:
    own = slice(group.rank * BATCH // group.world_size, (group.rank + 1) * BATCH // group.world_size)
    return [
        step(inputs[own].to(device), targets[own].to(device)).item() for inputs, targets in batches(NUM_STEPS)
    ]


def trainings(group: TorchGroup, device: torch.device) -> dict[str, Any]:
    """Losses of each case, compiled and not, and the number of graphs."""
    seen = {}
    for precision, arm, way in CASES:
        compute, bucket_mb = Compute(AUTOCAST.get(precision), accumulate=2), BUCKETS_MB[way]
        for compiled in (False, True):
            torch._dynamo.reset()
            graphs, module = Graphs(), network().to(device)
            torch.compile = functools.partial(COMPILE, backend=graphs)
            if bucket_mb is None:
                if compiled:
                    module.compile(backend=graphs)
                replica = FlatReplica(module, compute=compute)
                step: TrainingStep = EagerStep(replica, create(arm), SETTINGS, group)
            else:
                replica_of_ddp = Replica(module, compute=compute)
                step = overlapped(replica_of_ddp, arm, group, device, bucket_mb, compiled=compiled)
            losses = training(step, group, device)
            key = f"{precision}, {arm}, {way}, {'compiled' if compiled else 'plain'}"
            seen[key] = {"losses": losses, "graphs": graphs.number}
    return seen


class RoundsOtherwise(nn.Module):
    """A network whose compiled code gives other gradients than its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layers(inputs)
        return found * 1.02 if torch.compiler.is_compiling() else found


def checks(group: TorchGroup, device: torch.device) -> dict[str, Any]:
    """What the check finds of a compiled step in DDP's own path, and of one whose mean is wrong there."""
    torch._dynamo.reset()
    torch.compile = functools.partial(COMPILE, backend="aot_eager")
    replica = Replica(RoundsOtherwise().to(device), compute=Compute(AUTOCAST["bf16"]))
    step = overlapped(replica, "all_reduce", group, device, 25.0, compiled=True)
    check = StepCheck(step, create("all_reduce"), SETTINGS, group)
    own = [shares(group, device)]
    check.steps(own, 2)
    found: dict[str, Any] = {"right": check.findings.as_dict()}

    def wrong(_, bucket):
        summed = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
        return summed.then(lambda done: done.value()[0].mul_(1.05 / group.world_size))

    step._ddp.register_comm_hook(None, wrong)
    try:
        check.steps(own, 2)
    except ExchangeError as error:
        found["wrong"] = str(error)
    return found


def seen_by(workers: Workers) -> dict[str, Any]:
    on_gpus = torch.cuda.device_count() >= workers.info.world_size
    device = torch.device("cuda", workers.info.rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    group = workers.group(device)
    return {**trainings(group, device), "check": checks(group, device)}


if __name__ == "__main__":
    as_rank(seen_by)
