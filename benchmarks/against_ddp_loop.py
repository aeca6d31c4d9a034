"""Our steps compared with a DDP loop written by hand (`ddp_loop.py`), on one machine's GPUs:

    torchrun --nproc-per-node=4 benchmarks/against_ddp_loop.py --out FOLDER

Each network is trained by every contender in every round, in an order drawn anew: some iterations in a row
between two points at which the device is idle, on batches that lie on the device. A sample is the time of one
iteration on the slowest rank. The table gives medians with quartiles, the median over the rounds of the ratio
of the loop's time to the contender's in the same round (above 1: faster than the loop), and how far apart the
losses of the first steps are. `samples.csv` in FOLDER is added to by each world size; `losses.csv` likewise.

Contenders: the loop as people write it; the loop with DDP's `broadcast_buffers=False`, which does what our
steps do (it only matters with batch normalisation); `overlapped` and `captured` with all_reduce.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from ddp_loop import DdpLoop
from torch import Tensor

from launchers.rank_info import RankInfo
from scaling.aggregators.native import AllReduce
from scaling.measure.environment import collect
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.captured import CapturedStep
from scaling.training.optimizers import SgdSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from scaling.workloads.sampling import epoch_batches, shard

NETWORKS = {"fcn-r": 4096, "fcn-s4": 64, "resnet-56": 128}
"""Model -> global batch."""

NUM_BATCHES = 4
ROUND_S = 0.1
"""Each contender runs so long in a round, and three iterations at least."""

LOSS_STEPS = 50
SETTINGS = SgdSettings(learning_rate=0.01, momentum=0.9)

LOOP, OWN_BUFFERS = "ddp loop", "ddp loop, own buffers"
CONTENDERS = (LOOP, OWN_BUFFERS, "overlapped", "captured")

Contender = Callable[[Tensor, Tensor], Tensor]


def contenders(
    model: torch.nn.Module, group: TorchGroup, batch: tuple[Tensor, Tensor]
) -> dict[str, Contender]:
    """Name -> step, each with a model of its own that begins with the same weights. Collective."""

    def own() -> torch.nn.Module:
        return copy.deepcopy(model)

    def eager() -> EagerStep:
        return EagerStep(FlatReplica(own()), AllReduce(), SETTINGS, group, capturable=True)

    inputs, targets = batch
    overlapped = OverlappedStep(
        Replica(own()), AllReduce(), SETTINGS, group, bucket_mb=25.0, inputs=inputs, targets=targets
    )
    return {
        LOOP: DdpLoop(own(), group.data).step,
        OWN_BUFFERS: DdpLoop(own(), group.data, broadcast_buffers=False).step,
        "overlapped": overlapped,
        "captured": CapturedStep(eager(), inputs, targets, group),
    }


def batches_of(name: str, group: TorchGroup, device: torch.device) -> tuple[torch.nn.Module, list[Any]]:
    """A fresh model, and this rank's batches on the device."""
    model = create_model(name)
    dataset = create_dataset("synthetic")
    shape = resolve_shape(model, dataset)
    train = dataset.load(shape, NUM_BATCHES * NETWORKS[name], 0).train
    torch.manual_seed(0)
    module = build_module(model, shape).to(device)
    order = shard(epoch_batches(len(train), NETWORKS[name], 0, 1), group.rank, group.world_size)
    return module, [(train.inputs[rows].to(device), train.targets[rows].to(device)) for rows in order]


def timed(step: Contender, batches: list[Any], count: int, group: TorchGroup) -> float:
    """Seconds of one iteration on the slowest rank."""
    torch.cuda.synchronize()
    group.barrier()
    start = time.perf_counter()
    for index in range(count):
        step(*batches[index % len(batches)])
    torch.cuda.synchronize()
    return group.largest((time.perf_counter() - start) / count)


def first_losses(step: Contender, batches: list[Any], group: TorchGroup) -> list[float]:
    """The global batch's loss before each of the first updates."""
    losses = torch.stack([step(*batches[index % len(batches)]) for index in range(LOSS_STEPS)])
    group.all_reduce(losses)
    return (losses / group.world_size).tolist()


def compare(name: str, group: TorchGroup, device: torch.device, rounds: int) -> tuple[list[Any], list[Any]]:
    """Rows of samples.csv and of losses.csv for one network. Collective."""
    module, batches = batches_of(name, group, device)
    steps = contenders(module, group, batches[0])
    losses = {who: first_losses(step, batches, group) for who, step in steps.items()}
    pace_s = {who: timed(step, batches, 10, group) for who, step in steps.items()}
    samples = []
    shuffled = random.Random(0)
    for number in range(rounds):
        order = list(steps)
        shuffled.shuffle(order)
        for who in order:
            count = max(3, int(ROUND_S / pace_s[who]))
            seconds = timed(steps[who], batches, count, group)
            samples.append([name, NETWORKS[name], group.world_size, who, number, count, seconds])
    rows = [
        [name, group.world_size, who, index, value]
        for who, rank_losses in losses.items()
        for index, value in enumerate(rank_losses)
    ]
    return samples, rows


def table(folder: Path) -> list[str]:
    """A Markdown table of all samples and losses in `folder`."""
    samples, losses = pd.read_csv(folder / "samples.csv"), pd.read_csv(folder / "losses.csv")
    lines = [
        f"| network | GPUs | contender | ms | {LOOP} / this | {OWN_BUFFERS} / this | losses apart |",
        "|---|---|---|---|---|---|---|",
    ]
    for (model, size), rows in samples.groupby(["model", "world_size"], sort=False):
        times = rows.pivot_table(index="round", columns="contender", values="iteration_s")
        here = losses[(losses["model"] == model) & (losses["world_size"] == size)]
        curves = here.pivot_table(index="step", columns="contender", values="loss")
        for who in CONTENDERS:
            low, median, high = np.percentile(1e3 * times[who], [25, 50, 75])
            ratios = [f"{(times[base] / times[who]).median():.3f}" for base in (LOOP, OWN_BUFFERS)]
            apart = (curves[who] / curves[OWN_BUFFERS] - 1).abs().max()
            lines.append(
                f"| {model} | {size} | {who} | {median:.3f} [{low:.3f}, {high:.3f}] "
                f"| {ratios[0]} | {ratios[1]} | {apart:.0e} |"
            )
    return lines


def append(path: Path, header: list[str], rows: list[Any]) -> None:
    """Adds rows to a CSV, with its header where it is new."""
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows(([header] if is_new else []) + rows)


def main() -> int:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description="Our steps compared with a DDP loop written by hand.")
    parser.add_argument("--out", type=Path, required=True, help="a folder for samples and environment")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    options = parser.parse_args()
    info = RankInfo.from_env(os.environ)
    torch.cuda.set_device(info.local_rank)
    device = torch.device("cuda", info.local_rank)
    torch.backends.cudnn.allow_tf32 = False
    workers = Workers(info)
    group = workers.group(device)
    for name in options.networks:
        samples, losses = compare(name, group, device, options.rounds)
        if info.rank == 0:
            options.out.mkdir(parents=True, exist_ok=True)
            header = [
                "model",
                "global_batch",
                "world_size",
                "contender",
                "round",
                "iterations",
                "iteration_s",
            ]
            append(options.out / "samples.csv", header, samples)
            append(options.out / "losses.csv", ["model", "world_size", "contender", "step", "loss"], losses)
            (options.out / "environment.json").write_text(json.dumps(collect(), indent=1), encoding="utf-8")
    if info.rank == 0:
        print("\n".join(table(options.out)), flush=True)
    group.barrier()
    sys.stdout.flush()
    os._exit(0)  # graphs that hold NCCL's operations keep an orderly exit waiting


if __name__ == "__main__":
    sys.exit(main())
