"""One rank of test_compiled.py: a decoder's steps with torch.compile and without; writes JSON.

On GPUs where there is one for each rank, else on the CPU. What torch.compile traces and splits is run as it
is, by its backend aot_eager: no compiler of C++ or Triton is needed.
"""

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import _dynamo

from launchers.rank_info import RankInfo
from scaling.aggregators.registry import create
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.compute import AUTOCAST, Compute
from scaling.training.optimizers import AdamSettings
from scaling.training.overlapped import DdpSettings, OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep, Step
from tests.training.decoder import BATCH, batches, network

ARMS = {"float32": ("none", "all_reduce", "ring"), "bf16": ("all_reduce",)}
BUCKETS_MB = {"one bucket": 25.0, "several": 0.1}
SETTINGS = AdamSettings(1e-3, 0.1, decoupled=True)
NUM_STEPS = 5


class Graphs:
    """Counts what torch.compile traces, and makes it run."""

    def __init__(self) -> None:
        self.number, self._backend = 0, _dynamo.lookup_backend("aot_eager")

    def __call__(self, graph: Any, example: Any) -> Any:
        self.number += 1
        return self._backend(graph, example)


def training(step: Step, group: TorchGroup, device: torch.device) -> list[float]:
    own = slice(group.rank * BATCH // group.world_size, (group.rank + 1) * BATCH // group.world_size)
    return [
        step(inputs[own].to(device), targets[own].to(device)).item() for inputs, targets in batches(NUM_STEPS)
    ]


def trainings(group: TorchGroup, device: torch.device) -> dict[str, Any]:
    """Losses of each arm, eager and overlapped, and the number of graphs."""
    usual, seen = torch.compile, {}
    inputs, targets = (one[: BATCH // group.world_size].to(device) for one in next(batches(1)))
    for precision, arms in ARMS.items():
        compute = Compute(AUTOCAST.get(precision), accumulate=2)
        for compiled in (False, True):
            for arm in arms:
                for way, bucket_mb in {"eager": None, **BUCKETS_MB}.items():
                    _dynamo.reset()
                    graphs, module = Graphs(), network().to(device)
                    torch.compile = functools.partial(usual, backend=graphs)
                    if bucket_mb is None:
                        if compiled:
                            module.compile(backend=graphs)
                        replica = FlatReplica(module, compute=compute)
                        step: Step = EagerStep(replica, create(arm), SETTINGS, group)
                    else:
                        step = OverlappedStep(
                            Replica(module, compute=compute),
                            create(arm),
                            SETTINGS,
                            group,
                            bucket_mb=bucket_mb,
                            ddp=DdpSettings(compiled=compiled),
                            inputs=inputs,
                            targets=targets,
                        )
                    losses = training(step, group, device)
                    key = f"{precision}, {arm}, {way}, {'compiled' if compiled else 'plain'}"
                    seen[key] = {"losses": losses, "graphs": graphs.number}
    torch.compile = usual
    return seen


def main(out: Path) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpus = torch.cuda.device_count() >= world_size
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    workers = Workers(RankInfo(rank, rank, world_size, world_size, "test"))
    out.write_text(json.dumps(trainings(workers.group(device), device)))
    workers.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
