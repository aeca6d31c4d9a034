"""The study's steps against a DDP loop written by hand, in one run, and what a hook costs the host:

    torchrun --nproc-per-node=2 benchmarks/ddp_by_hand.py --arms one_bit one_bit/plain one_bit/captured

Arms are aggregators, in the overlapped step; `/plain`: without the CUDA graphs of buckets; `/views`: with
DDP's gradient_as_bucket_view; `/captured`: in the captured step, of which `/captured/hidden` exchanges all
but the largest bucket, and `/captured/largest` that alone. All arms and the loop train in turn, some
iterations in a row, in an order drawn anew in each round; a time is that of the slowest rank between two
points at which the device is idle. Printed are medians with quartiles, and the median over the rounds of the
ratio of an arm's time to the loop's (1.01: 1% slower); `host_us_per_bucket` is how long the hook holds the
backward pass back for one bucket, and `--profile` says where that goes. `--network gpt-nano --device cpu`
tries it anywhere.
"""

from __future__ import annotations

import argparse
import copy
import csv
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launchers.rank_info import RankInfo
from scaling.aggregators.registry import create
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.captured import CapturedStep
from scaling.training.compute import Compute
from scaling.training.ddp import DdpSettings
from scaling.training.hooked_buckets import HookedBuckets
from scaling.training.layered import LayeredStep
from scaling.training.optimizers import AdamSettings, OptimizerSettings, SgdSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape

ADAMW = AdamSettings(6e-4, weight_decay=0.1, beta2=0.95, decoupled=True)
BUCKET_MB = 25.0
NUM_BATCHES = 4
LOCAL_BATCH = {"fcn-r": 2048, "fcn-s4": 32, "resnet-56": 64}
PROFILED = {
    "kernel launches": ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch"),
    "stream waits and events": ("cudaStreamWaitEvent", "cudaEventRecord", "cudaStreamIsCapturing"),
    "memory": ("cudaMalloc", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaHostAlloc"),
    "torch.distributed": ("c10d::", "nccl:", "record_param_comms"),
    "torch's operations": ("aten::",),
}
"""Kind -> beginnings of the names of events, as torch.profiler has them; self time."""

Step = Callable[[Tensor, Tensor], Any]


class Network:
    """A network, its precision and optimizer, and this rank's batches."""

    def __init__(self, options: argparse.Namespace, rank: int, device: torch.device) -> None:
        name, _, size = (
            options.network.partition("-") if options.network.startswith("gpt") else (options.network, "", "")
        )
        self.is_gpt = name == "gpt"
        model = create_model(name, {"size": size or "small"} if self.is_gpt else {})
        dataset = create_dataset("synthetic")
        shape = resolve_shape(model, dataset)
        batch = options.batch or LOCAL_BATCH.get(name, 16)
        self.accumulate = options.accumulate
        local = batch * self.accumulate
        train = dataset.load(shape, NUM_BATCHES * local, rank).train
        inputs, targets = (torch.split(values.to(device), local) for values in (train.inputs, train.targets))
        self.batches = list(zip(inputs, targets, strict=True))
        self.precision = torch.bfloat16 if self.is_gpt else None
        torch.manual_seed(0)
        self._module = build_module(model, shape).to(device)

    def module(self) -> nn.Module:
        """With the same weights each time."""
        return copy.deepcopy(self._module)

    def settings(self, own_momentum: float) -> OptimizerSettings:
        """Of an aggregator that applies such a momentum itself."""
        if self.is_gpt and not own_momentum:
            return ADAMW
        return SgdSettings(1e-4, momentum=0.0 if own_momentum else 0.9)

    def by_hand(self, group: TorchGroup) -> Step:
        """The loop's body as one writes it, with nothing of this project."""
        model = self.module()
        ddp = DistributedDataParallel(model, process_group=group.data, bucket_cap_mb=BUCKET_MB)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        if self.is_gpt:
            optimizer = torch.optim.AdamW(
                model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
            )
        device_type = next(model.parameters()).device.type

        def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
            with torch.autocast(device_type, torch.bfloat16, enabled=self.is_gpt):
                logits = ddp(inputs)
                loss = nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
                return loss / self.accumulate

        def step(inputs: Tensor, targets: Tensor) -> None:
            optimizer.zero_grad()
            micro = zip(inputs.chunk(self.accumulate), targets.chunk(self.accumulate), strict=True)
            parts = list(micro)
            with ddp.no_sync():
                for part in parts[:-1]:
                    loss_of(*part).backward()  # type: ignore[no-untyped-call]
            loss_of(*parts[-1]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    def arm(self, arm: str, group: TorchGroup) -> Step:
        """A step of the study's."""
        name, *ways = arm.split("/")
        way = ways[0] if ways else ""
        aggregator = create(name, {"warmup_steps": 3} if name == "one_bit_adam" else {})
        settings = self.settings(aggregator.own_momentum())
        inputs, targets = self.batches[0]
        compute = Compute(self.precision, self.accumulate, way == "captured")
        if way == "captured":
            replica = FlatReplica(self.module(), compute=compute)
            layered = LayeredStep(replica, aggregator, settings, group, bucket_mb=BUCKET_MB, capturable=True)
            if ways[1:]:
                _exchange_part(layered, only_largest=ways[1] == "largest")
            return CapturedStep(layered, inputs, targets, group)
        if aggregator.ddp_path() == "layered":
            LayeredStep.captures = way != "plain"
            replica = FlatReplica(self.module(), compute=compute)
            sharded = LayeredStep(replica, aggregator, settings, group, bucket_mb=BUCKET_MB)
            LayeredStep.captures = True
            return sharded
        HookedBuckets.captures = way != "plain"
        step = OverlappedStep(
            Replica(self.module(), compute=compute),
            *(aggregator, settings, group),
            ddp=DdpSettings(gradient_as_bucket_view=way == "views"),
            bucket_mb=BUCKET_MB, inputs=inputs, targets=targets,
        )  # fmt: skip
        HookedBuckets.captures = True
        return step


def _exchange_part(step: LayeredStep, *, only_largest: bool) -> None:
    """The others are stepped with what this rank has: so much of a step is the exchange of some buckets."""
    exchange, largest = step._bring_together, max(step._parts, key=lambda part: part.size_mb)

    def part(bucket: Any) -> None:
        if (bucket is largest) == only_largest:
            exchange(bucket)
        else:
            with torch.no_grad():
                step._update(bucket, step._flat_gradient(bucket), step._marks.phase)

    step._bring_together = part  # type: ignore[method-assign]


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


def host_us_per_bucket(step: Any, batches: list[Any], count: int) -> float | None:
    """How long the hook takes of the host, a bucket; None where there is none."""
    buckets = getattr(step, "_buckets", None)
    if buckets is None or not step.bucket_bytes:
        return None
    took: list[float] = []
    launch = buckets.launch

    def clocked(*given: Any) -> Any:
        start = time.perf_counter()
        future = launch(*given)
        took.append(time.perf_counter() - start)
        return future

    buckets.launch = clocked
    for index in range(count):
        step(*batches[index % len(batches)])
    del buckets.launch
    return 1e6 * float(np.mean(took))


def profiled(step: Any, batches: list[Any], count: int) -> dict[str, float]:
    """Microseconds of the host a bucket, by kind, inside of the hook."""
    buckets = step._buckets
    launch, num = buckets.launch, 0

    def marked(*given: Any) -> Any:
        nonlocal num
        num += 1
        with torch.profiler.record_function("hook"):
            return launch(*given)

    buckets.launch = marked
    activities = list(torch.profiler.supported_activities())  # type: ignore[no-untyped-call]
    with torch.profiler.profile(activities=activities) as profile:
        for index in range(count):
            step(*batches[index % len(batches)])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    del buckets.launch
    inside: dict[str, float] = dict.fromkeys(PROFILED, 0.0)
    total = 0.0

    def add(event: Any) -> None:
        kind = next((kind for kind, names in PROFILED.items() if event.name.startswith(names)), None)
        if kind is not None:
            inside[kind] += event.self_cpu_time_total
        for child in event.cpu_children:
            add(child)

    for event in profile.events() or ():
        if event.name == "hook":
            total += event.cpu_time_total
            for child in event.cpu_children:
                add(child)
    inside["Python and the rest"] = total - sum(inside.values())
    return {kind: value / num for kind, value in inside.items()}


def main() -> int:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description="The study's steps against a DDP loop written by hand.")
    networks = ["gpt-nano", "gpt-small", "gpt-medium", *LOCAL_BATCH]
    parser.add_argument("--network", default="gpt-small", choices=networks)
    parser.add_argument("--arms", nargs="+", default=["all_reduce"])
    parser.add_argument("--batch", type=int, help="samples of a worker in a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--count", type=int, default=5, help="iterations in a row")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, help="a CSV file, to which the samples are added")
    parser.add_argument("--label", default="", help="in the CSV: such as the link")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    options = parser.parse_args()
    info = RankInfo.from_env(os.environ)
    device = torch.device(options.device)
    if options.device == "cuda":
        torch.cuda.set_device(info.local_rank)
        device = torch.device("cuda", info.local_rank)
    group = Workers(info).group(device)
    network = Network(options, group.rank, device)
    steps: dict[str, Step] = {"by hand": network.by_hand(group)}
    steps |= {arm: network.arm(arm, group) for arm in options.arms}
    for step in steps.values():
        timed(step, network.batches, options.count, group, device)
    rounds, shuffled = [], random.Random(0)
    for _ in range(options.rounds):
        order = list(steps)
        shuffled.shuffle(order)
        times = {name: timed(steps[name], network.batches, options.count, group, device) for name in order}
        rounds.append(times)
    host = {name: host_us_per_bucket(step, network.batches, options.count) for name, step in steps.items()}
    profiles = {
        name: profiled(steps[name], network.batches, options.count)
        for name, us in host.items()
        if options.profile and us is not None
    }
    if info.rank == 0:
        report(options, rounds, host, profiles)
    group.barrier()
    sys.stdout.flush()
    os._exit(0)  # pending work of NCCL would keep an orderly exit waiting


def report(
    options: argparse.Namespace,
    rounds: list[dict[str, float]],
    host: dict[str, float | None],
    profiles: dict[str, dict[str, float]],
) -> None:
    """Prints the table; adds the samples to the file."""
    print(f"{options.label} {options.network}, batch {options.batch or 'default'}, {len(rounds)} rounds")
    for name in host:
        low, median, high = np.percentile([1e3 * one[name] for one in rounds], [25, 50, 75])
        ratios = np.percentile([one[name] / one["by hand"] for one in rounds], [25, 50, 75])
        us = host[name]
        beside = "" if us is None else f", hook {us:.0f} us a bucket"
        print(
            f"  {name}: {median:.3f} ms [{low:.3f}, {high:.3f}], over the loop by hand "
            f"{ratios[1]:.4f} [{ratios[0]:.4f}, {ratios[2]:.4f}]{beside}"
        )
    for name, kinds in profiles.items():
        print(f"  {name}, us a bucket: " + ", ".join(f"{kind} {us:.0f}" for kind, us in kinds.items()))
    if options.out is not None:
        is_new = not options.out.exists()
        with options.out.open("a", newline="") as file:
            rows = csv.writer(file)
            if is_new:
                rows.writerow(["label", "network", "batch", "round", "arm", "ms", "host_us_per_bucket"])
            for number, times in enumerate(rounds):
                for name, seconds in times.items():
                    us = host[name]
                    shown = "" if us is None else f"{us:.1f}"
                    first = [options.label, options.network, options.batch or "", number]
                    rows.writerow([*first, name, f"{1e3 * seconds:.4f}", shown])
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
