"""The study's DDP arm against a DDP loop written by hand, for GPT-2 small in bf16 with AdamW, in one run:

    torchrun --nproc-per-node=2 benchmarks/ddp_by_hand.py

Both train in turn, some iterations in a row, in an order drawn anew in each round; a time is that of the
slowest rank between two points at which the device is idle. The last line is the median over the rounds of
the ratio of the study's arm to the loop's (1.01: 1% slower) with its quartiles. `--size nano --device cpu`
tries it anywhere.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launchers.rank_info import RankInfo
from scaling.aggregators.native import AllReduce
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.compute import Compute
from scaling.training.optimizers import AdamSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import Replica
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape

SETTINGS = AdamSettings(6e-4, weight_decay=0.1, beta2=0.95, decoupled=True)
BUCKET_MB = 25.0
NUM_BATCHES = 4

Step = Callable[[Tensor, Tensor], Any]


def by_hand(model: nn.Module, group: TorchGroup, accumulate: int) -> Step:
    """The loop's body as one writes it, with nothing of this project."""
    ddp = DistributedDataParallel(model, process_group=group.data, bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    device_type = next(model.parameters()).device.type

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(device_type, torch.bfloat16):
            logits = ddp(inputs)
            return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten()) / accumulate

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        parts = list(zip(inputs.chunk(accumulate), targets.chunk(accumulate), strict=True))
        with ddp.no_sync():
            for part in parts[:-1]:
                loss_of(*part).backward()  # type: ignore[no-untyped-call]
        loss_of(*parts[-1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def timed(step: Step, batches: list[Any], count: int, group: TorchGroup, device: torch.device) -> float:
    """Seconds of one iteration on the slowest rank."""

    def idle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    idle()
    group.barrier()
    start = time.perf_counter()
    for index in range(count):
        step(*batches[index % len(batches)])
    idle()
    return group.largest((time.perf_counter() - start) / count)


def contenders(options: argparse.Namespace, group: TorchGroup, device: torch.device) -> tuple[Any, Any]:
    """Name -> step, from the same weights, and this rank's batches."""
    model = create_model("gpt", {"size": options.size})
    shape = resolve_shape(model, create_dataset("synthetic"))
    local = options.batch * options.accumulate
    train = create_dataset("synthetic").load(shape, NUM_BATCHES * local, group.rank).train
    inputs, targets = (torch.split(values.to(device), local) for values in (train.inputs, train.targets))
    batches = list(zip(inputs, targets, strict=True))
    torch.manual_seed(0)
    module = build_module(model, shape).to(device)
    replica = Replica(copy.deepcopy(module), compute=Compute(torch.bfloat16, options.accumulate))
    ours = OverlappedStep(
        replica, AllReduce(), SETTINGS, group, bucket_mb=BUCKET_MB, inputs=inputs[0], targets=targets[0]
    )
    return {"study": ours, "by hand": by_hand(module, group, options.accumulate)}, batches


def main() -> int:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description="The study's DDP arm against a DDP loop written by hand.")
    parser.add_argument("--size", default="small", choices=["nano", "small", "medium"])
    parser.add_argument("--batch", type=int, default=16, help="texts of a worker in a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--count", type=int, default=5, help="iterations in a row")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    options = parser.parse_args()
    info = RankInfo.from_env(os.environ)
    device = torch.device(options.device)
    if options.device == "cuda":
        torch.cuda.set_device(info.local_rank)
        device = torch.device("cuda", info.local_rank)
    group = Workers(info).group(device)
    steps, batches = contenders(options, group, device)
    for step in steps.values():
        timed(step, batches, options.count, group, device)
    rounds, shuffled = [], random.Random(0)
    for _ in range(options.rounds):
        order = list(steps)
        shuffled.shuffle(order)
        rounds.append({name: timed(steps[name], batches, options.count, group, device) for name in order})
    if info.rank == 0:
        for name in steps:
            low, median, high = np.percentile([1e3 * one[name] for one in rounds], [25, 50, 75])
            print(f"{name}: {median:.3f} ms [{low:.3f}, {high:.3f}]")
        low, median, high = np.percentile([one["study"] / one["by hand"] for one in rounds], [25, 50, 75])
        print(f"study / by hand: {median:.4f} [{low:.4f}, {high:.4f}], {len(rounds)} rounds", flush=True)
    group.barrier()
    sys.stdout.flush()
    os._exit(0)  # pending work of NCCL would keep an orderly exit waiting


if __name__ == "__main__":
    sys.exit(main())
