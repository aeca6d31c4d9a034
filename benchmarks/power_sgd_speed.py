"""Our `power_sgd` compared with torch's powerSGD_hook for DDP: whole training steps, on one machine.

    torchrun --nproc-per-node=2 benchmarks/power_sgd_speed.py --out FILE.json [--host-only]

Each network is trained by every contender in every round, in an order drawn anew: some iterations in a row
between two points at which the devices are idle, on batches that lie on the device. A sample is the time of
one iteration on the slowest rank. Before that each contender takes LOSS_STEPS steps, whose losses are kept:
DDP has settled its buckets by then, and torch's hook compresses, which is asked of it.

Contenders: DDP alone, with its fp16 hook, with torch's powerSGD_hook at several bucket sizes (also with
gradients as views into the buckets, and with matrices of one shape batched); ours: eager, overlapped at
several bucket sizes, captured, captured layer by layer; `one_bit` and `none`, captured. A bucket size is left
out where a smaller one holds the whole gradient already. Same approximation size 1, warm start, error
feedback, minimum compression 2; statistics of batch normalisation are each rank's own; float32, TF32 off. On
CPUs (Gloo, where there is no GPU) nothing can be captured. `--host-only`: NCCL goes through host memory.

FILE.json has all samples, losses and the environment, and is written after each network; `power_sgd_table.py`
makes the tables. `--seconds` is shared out over the networks: set-up and at least MIN_ROUNDS rounds are taken
in any case.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from leaving import leave, let_go
from power_sgd_contenders import Contender, Maker, Makers
from power_sgd_table import lines, summary
from torch import Tensor

from launchers.rank_info import RankInfo
from scaling.measure.environment import collect
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from scaling.workloads.sampling import epoch_batches, shard

NETWORKS = ("fcn-r:4096", "fcn-s4:64", "resnet-56:128")
NUM_BATCHES = 4
LOSS_STEPS = 20
PACE_STEPS = 3
SAMPLE_S, MIN_ITERATIONS = 0.05, 3
"""Each contender runs so long in a round, and so many iterations at least."""
MIN_ROUNDS, MAX_ROUNDS = 6, 20
"""Of fewer rounds there is no interval."""

Batches = list[tuple[Tensor, Tensor]]


class Bench:
    """The ranks and the clock. Collective to make.

    Args:
        group: the ranks.
        device: of this one.
        num_seconds: from now on, for all networks together.
    """

    def __init__(self, group: TorchGroup, device: torch.device, num_seconds: float) -> None:
        self.group, self.device = group, device
        self.ddp_group: dist.ProcessGroup = dist.new_group(backend=dist.get_backend(group.data))
        self._deadline = time.monotonic() + num_seconds

    def say(self, text: str) -> None:
        """Prints it once, at once."""
        if self.group.rank == 0:
            print(text, flush=True)

    def share_of(self, num_left: int) -> float:
        """The point in time until which a network may take, of those that are left."""
        now = time.monotonic()
        return now + max(0.0, self._deadline - now) / num_left

    def is_over(self, until: float) -> bool:
        """Whether that is past, for all ranks at once. Collective."""
        return self.group.share(time.monotonic() >= until)

    def timed(self, contender: Contender, batches: Batches, count: int) -> float:
        """Seconds of one iteration on the slowest rank. Collective."""
        self._wait()
        self.group.barrier()
        start = time.perf_counter()
        for index in range(count):
            contender.step(*batches[index % len(batches)])
        self._wait()
        return self.group.largest((time.perf_counter() - start) / count)

    def losses(self, contender: Contender, batches: Batches) -> list[float]:
        """The global batch's loss before each of the first updates. Collective."""
        seen = [contender.step(*batches[index % len(batches)]) for index in range(LOSS_STEPS)]
        losses = torch.stack(seen).float()
        self.group.all_reduce(losses)
        return (losses / self.group.world_size).tolist()

    def made(self, name: str, maker: Maker) -> tuple[Contender | None, str]:
        """A contender, or None and why no rank has it. Collective.

        What fails on one rank alone, in the middle of an exchange, keeps the others waiting: not caught here.
        """
        contender, reason = None, ""
        try:
            contender = maker()
        except Exception as error:  # noqa: BLE001 (of a contender: named, and the others go on)
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            print(f"rank {self.group.rank}: {name}: {reason}", file=sys.stderr, flush=True)
        if self.group.largest(float(contender is None)):
            return None, reason or "failed on another rank"
        return contender, ""

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def batches_of(name: str, global_batch: int, bench: Bench) -> tuple[torch.nn.Module, Batches]:
    """A fresh model, and this rank's batches, on the device."""
    model, group = create_model(name), bench.group
    dataset = create_dataset(model.dataset if model.shape is None else "synthetic")
    shape = resolve_shape(model, dataset)
    train = dataset.load(shape, NUM_BATCHES * global_batch, 0).train
    torch.manual_seed(0)
    module = build_module(model, shape).to(bench.device)
    order = shard(epoch_batches(len(train), global_batch, 0, 1), group.rank, group.world_size)
    place = bench.device
    return module, [(train.inputs[rows].to(place), train.targets[rows].to(place)) for rows in order]


def compare(name: str, global_batch: int, bench: Bench, until: float) -> dict[str, Any]:
    """All samples of one network, as the file has them. Collective."""
    begun = time.monotonic()
    module, batches = batches_of(name, global_batch, bench)
    contenders: dict[str, Contender] = {}
    result: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for who, maker in Makers(module, bench.group, bench.ddp_group, batches[0]):
        contender, reason = bench.made(who, maker)
        if contender is None:
            failed[who] = reason
            continue
        losses = bench.losses(contender, batches)
        pace_s = bench.timed(contender, batches, PACE_STEPS)
        count = max(MIN_ITERATIONS, int(SAMPLE_S / pace_s))
        bench.say(f"  {who}: about {1e3 * pace_s:.2f} ms")
        contenders[who] = contender
        result[who] = {
            "kind": contender.kind,
            "compression": contender.compression(),
            "losses": losses,
            "iterations": count,
            "iteration_s": [],
        }
    bench.say(f"{name}: {len(contenders)} contenders set up in {time.monotonic() - begun:.0f} s")
    num_rounds = in_turns(bench, contenders, batches, result, until)
    return {
        "global_batch": global_batch,
        "num_rounds": num_rounds,
        "seconds": time.monotonic() - begun,
        "contenders": result,
        "failed": failed,
    }


def in_turns(
    bench: Bench, contenders: dict[str, Contender], batches: Batches, result: dict[str, Any], until: float
) -> int:
    """Adds a sample a round to each contender's; gives the number of rounds. Collective."""
    shuffled = random.Random(0)  # the same order on all ranks
    for number in range(MAX_ROUNDS):
        if number >= MIN_ROUNDS and bench.is_over(until):
            return number
        order = list(contenders)
        shuffled.shuffle(order)
        for who in order:
            seconds = bench.timed(contenders[who], batches, result[who]["iterations"])
            result[who]["iteration_s"].append(seconds)
    return MAX_ROUNDS


def write(path: Path, document: dict[str, Any]) -> None:
    """Replaces the file at once, so that a program that is cut off leaves the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.part")
    draft.write_text(json.dumps(document, indent=1), encoding="utf-8")
    draft.replace(path)


def measure(bench: Bench, options: argparse.Namespace) -> None:
    """All networks; rank 0 writes and prints. Collective."""
    document: dict[str, Any] = {
        "benchmark": "power_sgd_speed",
        "version": 1,
        "world_size": bench.group.world_size,
        "device": bench.device.type,
        "host_only": options.host_only,
        "environment": collect() if bench.group.rank == 0 else {},
        "networks": {},
    }
    for number, text in enumerate(options.networks):
        name, _, batch = text.partition(":")
        network = compare(name, int(batch), bench, bench.share_of(len(options.networks) - number))
        let_go()
        if bench.group.rank == 0:
            network["summary"] = summary(network)
            document["networks"][name] = network
            write(options.out, document)
            print("\n".join([*lines(document, name), ""]), flush=True)


def main() -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), metavar="MODEL:GLOBAL_BATCH")
    parser.add_argument("--seconds", type=float, default=75.0, help="for all networks, after the start")
    parser.add_argument("--host-only", action="store_true")
    options = parser.parse_args()
    if options.host_only:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    info = RankInfo.from_env(os.environ)
    if info.world_size < 2:
        parser.error("PowerSGD sends nothing on one rank; start two: torchrun --nproc-per-node=2 ...")
    if not options.host_only and os.environ.get("NCCL_P2P_DISABLE", "0") not in ("", "0"):
        parser.error("NCCL_P2P_DISABLE is set: unset it, or give --host-only")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", info.local_rank)
        torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    group = Workers(info).group(device, peer_access=not options.host_only)
    measure(Bench(group, device, options.seconds), options)
    leave(group)


if __name__ == "__main__":
    main()
