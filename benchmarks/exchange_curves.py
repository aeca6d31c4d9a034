"""Curves of the exact exchanges for `by_size`, and whether its choice is faster than the library:

    torchrun --nproc-per-node=2 benchmarks/exchange_curves.py --out FOLDER

Each exchange is timed in every round, in an order drawn anew, on GPUs as a CUDA graph, NCCL's all-reduce too.
A sample is the time on the slowest rank, of several in a row. The medians are written to curves.yaml; then
by_size, with that file, is timed beside the library in new rounds, which alone judge it. samples.csv has all.

Goal on 2 GPUs: by_size is not behind NCCL in a graph from 4 KiB to 4 MiB, and 1.2 times ahead somewhere.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from launchers.rank_info import RankInfo
from scaling.aggregators.base import Aggregator
from scaling.aggregators.by_size import EXCHANGES, BySize
from scaling.bucket import BucketLayout
from scaling.errors import ScalingError
from scaling.measure.environment import collect
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers

KIB = 1 << 10
SIZES_BYTES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB, 2048 * KIB, 4096 * KIB, 25 * 1024 * KIB)
GOAL_BYTES = 4096 * KIB
SAMPLE_S, MOST_REPEATS = 4e-3, 50
AHEAD = 1.2


class Bench:
    """The ranks, and the samples so far."""

    def __init__(self, group: TorchGroup, device: torch.device, rounds: int) -> None:
        self.group, self.device, self.rounds = group, device, rounds
        self.samples: list[dict[str, Any]] = []

    def say(self, text: str) -> None:
        """On rank 0."""
        if self.group.rank == 0:
            print(text, flush=True)

    def contender(self, aggregator: Aggregator[Any], num_bytes: int) -> Callable[[], object]:
        """What runs one exchange of that size; checked first."""
        size = num_bytes // 4
        layout = BucketLayout.of([("all", (size,))])
        state = aggregator.start(layout, self.group, torch.float32, self.device)
        gradient = state.gradient_buffer
        gradient = torch.zeros(size, device=self.device) if gradient is None else gradient
        gradient.fill_(self.group.rank + 1)
        mean = aggregator.aggregate(state, gradient)
        assert mean is not None
        if not bool((mean == (self.group.world_size + 1) / 2).all()):
            raise SystemExit(f"{aggregator.label()}: wrong mean of {num_bytes} bytes")
        if self.device.type != "cuda":
            return lambda: aggregator.aggregate(state, gradient)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        self.group.barrier()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            aggregator.aggregate(state, gradient)
        return partial(self.replayed, graph, state, gradient)  # whose memory it reads

    @staticmethod
    def replayed(graph: torch.cuda.CUDAGraph, *_: object) -> None:
        """One exchange."""
        graph.replay()

    def once(self, run: Callable[[], object], repeats: int) -> float:
        """Seconds of one exchange on the slowest rank."""
        run()
        self.settle()
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return self.group.largest((time.perf_counter() - start) / repeats)

    def settle(self) -> None:
        """All ranks begin together, with idle devices."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.group.barrier()

    def compare(
        self, what: str, num_bytes: int, contenders: Mapping[str, Callable[[], object]]
    ) -> dict[str, list[float]]:
        """Seconds of each, round by round."""
        repeats = {
            name: int(min(MOST_REPEATS, SAMPLE_S // self.once(run, 2) + 1))
            for name, run in contenders.items()
        }
        times: dict[str, list[float]] = {name: [] for name in contenders}
        order, shuffle = list(contenders), random.Random(num_bytes)
        for number in range(self.rounds):
            shuffle.shuffle(order)
            for name in order:
                times[name].append(self.once(contenders[name], repeats[name]))
                row = {"comparison": what, "bytes": num_bytes, "exchange": name, "round": number}
                self.samples.append({**row, "seconds": times[name][-1]})
        return times


def lines(times: Mapping[str, list[float]]) -> list[str]:
    """Of each exchange: median and quartiles in us; the library's time over its own, round by round."""
    found, library = [], np.array(times["all_reduce"])
    for name, values in times.items():
        low, median, high = 1e6 * np.percentile(values, [25, 50, 75])
        ahead = np.percentile(library / np.array(values), [25, 50, 75])
        found.append(
            f"  {name:12}{median:10.1f} us [{low:.1f}, {high:.1f}]   speed over all_reduce's "
            f"{ahead[1]:5.2f} [{ahead[0]:.2f}, {ahead[2]:.2f}]   n={len(values)}"
        )
    return found


def measured_curves(bench: Bench, sizes: list[int]) -> dict[str, list[list[float]]]:
    """Medians of each exchange, by its bytes."""
    curves: dict[str, list[list[float]]] = {}
    for num_bytes in sizes:
        contenders, reasons = {}, []
        for name, aggregator in EXCHANGES.items():
            try:
                contenders[name] = bench.contender(aggregator, num_bytes)
            except ScalingError as error:  # on all ranks alike
                reasons.append(f"  {name:12} not here: {error!s:.90}")
        times = bench.compare("curves", num_bytes, contenders)
        for name, values in times.items():
            curves.setdefault(name, []).append([num_bytes, float(np.median(values))])
        bench.say("\n".join([f"{num_bytes / KIB:g} KiB", *lines(times), *reasons]))
    return curves


def judged(bench: Bench, curves: Path, sizes: list[int]) -> None:
    """The choice beside the library, and the goal."""
    aggregator, ahead = BySize(curves=str(curves)), {}
    bench.say("\nby_size with these curves, in new rounds")
    for num_bytes in sizes:
        contenders = {
            "all_reduce": bench.contender(EXCHANGES["all_reduce"], num_bytes),
            "by_size": bench.contender(aggregator, num_bytes),
        }
        times = bench.compare("by_size", num_bytes, contenders)
        ahead[num_bytes] = float(np.median(np.array(times["all_reduce"]) / np.array(times["by_size"])))
        choice = aggregator.choice(num_bytes, bench.group.world_size)
        bench.say("\n".join([f"{num_bytes / KIB:g} KiB: {choice}", *lines(times)]))
    small = [ratio for size, ratio in ahead.items() if size <= GOAL_BYTES]
    bench.say(
        f"\nup to {GOAL_BYTES / KIB:g} KiB by_size has {min(small):.2f} to {max(small):.2f} times "
        f"the speed of all_reduce (goal: 1 at least everywhere, {AHEAD} somewhere)"
    )


def main() -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES_BYTES, help="in bytes")
    options = parser.parse_args()
    info = RankInfo.from_env(os.environ)
    workers = Workers(info)
    device = torch.device("cuda", info.local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = workers.group(device)
    bench = Bench(group, device, options.rounds)
    found = measured_curves(bench, list(options.sizes))
    curves = options.out / "curves.yaml"
    if info.rank == 0:
        options.out.mkdir(parents=True, exist_ok=True)
        content = {"device": device.type, "world_size": group.world_size, "seconds": found}
        curves.write_text(yaml.safe_dump(content, sort_keys=False, default_flow_style=None), encoding="utf-8")
    group.barrier()
    judged(bench, curves, list(options.sizes))
    if info.rank == 0:
        with (options.out / "samples.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(bench.samples[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(bench.samples)
        (options.out / "environment.json").write_text(json.dumps(collect(), indent=1), encoding="utf-8")
    workers.close()


if __name__ == "__main__":
    main()
