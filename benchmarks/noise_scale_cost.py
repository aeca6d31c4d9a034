"""What looking at gradients for the noise scale costs a training, as a part of its steps.

python benchmarks/noise_scale_cost.py [--ranks 2] [--steps 400]

Steps with the look and without take turns, so that both see the same machine; of each the median counts, of
the rank that took more. The cost is their difference, spread over the steps from one look to the next
(`scaling.training.noise_probe.STRIDE`). In seconds of the processor, which other programs do not lengthen as
they do the clock's; over Gloo, with one thread a rank.
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
from scaling.training import noise_probe
from scaling.training.gradients import AS_THEY_ARE
from scaling.training.noise_probe import NoiseProbe
from scaling.training.optimizers import SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep
from scaling.workloads.base import DataShape
from scaling.workloads.registry import build_module, create_model

WARMUP = 20
CASES = [("mlp", {"hidden": [512, 512]}, 64), ("mlp", {"hidden": [512, 512]}, 512), ("fcn-r", {}, 64)]
"""Model, its parameters, and the local batch."""

MNIST = DataShape((1, 28, 28), 10)


def seconds_of(
    model: str, parameters: dict[str, Any], name: str, batch: int, steps: int, group: TorchGroup
) -> Any:
    """Median processor seconds of a plain step and of one with a look, and the stride."""
    torch.manual_seed(0)
    aggregator = create(name)
    replica = FlatReplica(build_module(create_model(model, parameters), MNIST))
    step = EagerStep(replica, aggregator, SgdSettings(1e-3), group)
    probe = NoiseProbe(step, aggregator, AS_THEY_ARE, group, batch)
    inputs, targets = torch.randn(batch, *MNIST.input_shape), torch.randint(10, (batch,))
    stride = noise_probe.STRIDE[probe.source]
    times: dict[bool, list[float]] = {False: [], True: []}
    for index in range(WARMUP + steps):
        is_looked = bool(index % 2)
        number = stride // 2 if is_looked else 0
        group.barrier()
        start = time.process_time()
        probe.take(number, 0, inputs, targets)
        times[is_looked].append(group.largest(time.process_time() - start))
    probe.finish_epoch()
    return *(statistics.median(times[is_looked][WARMUP // 2 :]) for is_looked in (False, True)), stride


def rank(number: int, ranks: int, steps: int, port: int) -> None:
    """Measures all cases; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=ranks)
    data = dist.group.WORLD
    assert data is not None
    group = TorchGroup(data, data, ranks_on_this_host=ranks)
    for model, parameters, batch in CASES:
        for name in ("all_reduce", "one_bit") if ranks > 1 else ("none",):
            plain_s, looked_s, stride = seconds_of(model, parameters, name, batch, steps, group)
            if number == 0:
                cost = (looked_s - plain_s) / plain_s / stride
                case = {"model": model, "local_batch": batch, "aggregator": name, "ranks": ranks}
                found = {"step_ms": 1e3 * plain_s, "looked_ms": 1e3 * looked_s, "stride": stride}
                print(json.dumps({**case, **found, "n": steps // 2, "cost_percent": round(100 * cost, 3)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--port", type=int, default=29_871)
    given = parser.parse_args()
    processes: Any = torch.multiprocessing
    processes.spawn(rank, (given.ranks, given.steps, given.port), nprocs=given.ranks)
