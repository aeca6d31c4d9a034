"""What looking at gradients for the noise scale costs a training, as a part of its steps.

python benchmarks/noise_scale_cost.py [--ranks 2] [--steps 400] [--adam] [--captured]

Steps with the look and without take turns, so that both see the same machine; of each the median counts, of
the rank that took more. The cost is their difference, spread over the steps from one look to the next. In
seconds of the processor, which other programs do not lengthen; over Gloo, with one thread a rank. With
`--captured` one rank's captured step on a GPU, by the clock, whose looks are taken without its graph.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from scaling.aggregators.registry import create
from scaling.process_group import TorchGroup
from scaling.training.captured import CapturedStep
from scaling.training.gradients import AS_THEY_ARE
from scaling.training.noise_probe import NoiseProbe
from scaling.training.optimizers import AdamSettings, SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep, TrainingStep
from scaling.workloads.base import DataShape
from scaling.workloads.registry import build_module, create_model

WARMUP = 20
CASES = [("mlp", {"hidden": [512, 512]}, 64), ("mlp", {"hidden": [512, 512]}, 512), ("fcn-r", {}, 64)]
"""Model, its parameters, and the local batch."""

MNIST = DataShape((1, 28, 28), 10)


def now(is_cuda: bool) -> float:
    if not is_cuda:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measured(
    model: str,
    parameters: dict[str, Any],
    name: str,
    batch: int,
    given: argparse.Namespace,
    group: TorchGroup,
) -> dict[str, float]:
    torch.manual_seed(0)
    aggregator, settings = (
        create(name),
        AdamSettings(1e-3, decoupled=True) if given.adam else SgdSettings(1e-3),
    )
    device = torch.device("cuda" if given.captured else "cpu")
    replica = FlatReplica(build_module(create_model(model, parameters), MNIST).to(device))
    eager = EagerStep(replica, aggregator, settings, group, capturable=given.captured)
    step: TrainingStep = eager
    if given.captured:
        example = torch.randn(batch, *MNIST.input_shape, device=device)
        step = CapturedStep(eager, example, torch.randint(10, (batch,), device=device), group)
    probe = NoiseProbe(step, aggregator, AS_THEY_ARE, group, batch)
    times: dict[bool, list[float]] = {False: [], True: []}
    for index in range(WARMUP + given.steps):
        is_looked = bool(index % 2)
        inputs = torch.randn(batch, *MNIST.input_shape, device=device)
        targets = torch.randint(10, (batch,), device=device)
        group.barrier()
        start = now(given.captured)
        probe.take(probe.stride // 2 if is_looked else 0, 0, inputs, targets)
        times[is_looked].append(group.largest(now(given.captured) - start))
    probe.finish_epoch()
    plain_s, looked_s = (statistics.median(taken[WARMUP // 2 :]) for taken in times.values())
    cost = round(100 * (looked_s - plain_s) / plain_s / probe.stride, 3)
    found = {"step_ms": 1e3 * plain_s, "looked_ms": 1e3 * looked_s, "stride": probe.stride}
    return {**found, "n": given.steps // 2, "cost_percent": cost}


def rank(number: int, given: argparse.Namespace) -> None:
    """Measures all cases; rank 0 prints."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{given.port}"
    dist.init_process_group("gloo", init_method=address, rank=number, world_size=given.ranks)
    data = dist.group.WORLD
    assert data is not None
    group = TorchGroup(data, data, ranks_on_this_host=given.ranks)
    for model, parameters, batch in CASES:
        for name in ("all_reduce", "one_bit") if given.ranks > 1 else ("none",):
            found = measured(model, parameters, name, batch, given, group)
            if number == 0:
                case = {"model": model, "local_batch": batch, "aggregator": name, "ranks": given.ranks}
                print(json.dumps({**case, **found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--port", type=int, default=29_871)
    parser.add_argument("--adam", action="store_true", help="AdamW, of which both forms are looked at")
    parser.add_argument("--captured", action="store_true", help="captured steps of one rank on a GPU")
    given = parser.parse_args()
    given.ranks = 1 if given.captured else given.ranks
    processes: Any = torch.multiprocessing
    processes.spawn(rank, (given,), nprocs=given.ranks)
