"""Our executors compared with the library's all-reduce, on one machine's GPUs:

    torchrun --nproc-per-node=4 benchmarks/collective_speed.py --out FOLDER [--host-only]

Every contender is timed in every round, in an order drawn anew, so that all meet the same machine. A sample
is the time of one exchange on the slowest rank: several in a row between two points at which the device is
idle, divided by their number. `samples.csv` in FOLDER has all of them; the table gives medians with
quartiles, and the median over the rounds of the ratio to the first contender of the same round. `--host-only`
takes every way through host memory: NCCL_P2P_DISABLE=1, and no peer access for our executors.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from launchers.rank_info import RankInfo
from scaling.aggregators.host import HostParallel, HostSerial
from scaling.bucket import BucketLayout
from scaling.collectives.exchange import RankExchange, Transport
from scaling.collectives.owners import stripes
from scaling.collectives.ring import ring
from scaling.measure.environment import collect
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from topologies.detect import num_usable_cores

Contender = Callable[[], object]

SIZES_BYTES = (4 << 10, 1 << 20, 4 << 20, 64 << 20, 512 << 20, 1 << 30)
FCN_R_ELEMENTS, FCN_S4_ELEMENTS = 14_205_962, 122_194_048
SAMPLE_S, MIN_REPEATS = 4e-3, 3


class Bench:
    """The ranks, and the samples so far (rank 0's copy counts)."""

    def __init__(self, group: TorchGroup, device: torch.device, rounds: int) -> None:
        self.group, self.device, self.rounds = group, device, rounds
        self.samples: list[dict[str, object]] = []

    def time(self, run: Contender, repeats: int) -> float:
        """Seconds of one exchange on the slowest rank, after one that is not timed."""
        run()
        torch.cuda.synchronize()
        self.group.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
        return self.group.largest((time.perf_counter() - start) / repeats)

    def compare(self, title: str, num_bytes: int, contenders: dict[str, Contender], rounds: int = 0) -> None:
        """Times all contenders and prints the table."""
        repeats = {}
        for name, run in contenders.items():
            once_s = self.time(run, 2)
            repeats[name] = int(min(50, max(MIN_REPEATS, SAMPLE_S // once_s + 1)))
        order, shuffle = list(contenders), random.Random(0)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for index in range(rounds or self.rounds):
            shuffle.shuffle(order)
            for name in order:
                seconds = self.time(contenders[name], repeats[name])
                times[name].append(seconds)
                row = {"comparison": title, "bytes": num_bytes, "contender": name, "round": index}
                self.samples.append({**row, "repeats": repeats[name], "seconds": seconds})
        if self.group.rank == 0:
            show(title, num_bytes, self.group.world_size, times)


def show(title: str, num_bytes: int, world_size: int, times: dict[str, list[float]]) -> None:
    """Prints medians, quartiles, bus bandwidth as in nccl-tests, and ratios to the first contender."""
    print(f"\n{title}, {num_bytes / 1e6:.3f} MB, {world_size} GPUs", flush=True)
    first = np.array(next(iter(times.values())))
    for name, values in times.items():
        low, median, high = np.percentile(values, [25, 50, 75])
        busbw = num_bytes * 2 * (world_size - 1) / world_size / median / 1e9
        ratio = np.median(first / np.array(values))
        print(
            f"  {name:34} {median * 1e3:9.3f} ms [{low * 1e3:.3f}, {high * 1e3:.3f}]  "
            f"busbw {busbw:6.1f} GB/s  {ratio:5.2f} x the first's speed  n={len(values)}"
        )


def ring_contenders(bench: Bench, num_elements: int, *, peer: bool) -> dict[str, Contender]:
    """NCCL's all-reduce and our ring, eager and as a CUDA graph; results are checked first."""
    group, device = bench.group, bench.device
    n = group.world_size
    ways: dict[str, Transport] = {"sends": "sends"}
    if peer:
        ways["peer memory"] = "peer_memory"
    schedules = {"ring": ring(n), "ring, both ways,": ring(n, directions=2), "stripes": stripes(n)}
    exchanges = {
        f"{name} {way}{', graph' if captured else ''}": RankExchange(
            schedule, group, num_elements, torch.float32, device, transport=transport, captured=captured
        )
        for name, schedule in schedules.items()
        for way, transport in ways.items()
        for captured in (False, True)
        if captured or name == "ring"
    }
    for name, exchange in exchanges.items():
        mine = torch.full((num_elements,), float(group.rank + 1), device=device)
        result = exchange.run(mine)
        wanted = group.world_size * (group.world_size + 1) / 2
        if not bool((result == wanted).all()):
            sys.exit(f"{name}: wrong sum")
    buffer = torch.zeros(num_elements, device=device)
    graph = torch.cuda.CUDAGraph()
    group.all_reduce(buffer)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        group.all_reduce(buffer)

    def running(exchange: RankExchange) -> Contender:
        buffer = exchange.buffer if exchange.buffer is not None else torch.zeros(num_elements, device=device)
        return lambda: exchange.run(buffer)

    library: dict[str, Contender] = {
        "NCCL all-reduce": lambda: group.all_reduce(buffer),
        "NCCL all-reduce, graph": graph.replay,
    }
    return library | {name: running(exchange) for name, exchange in exchanges.items()}


def host_contenders(bench: Bench, num_elements: int) -> dict[str, Contender]:
    """Both directions of the bus with all GPUs at once, then the sums in host memory."""
    group, device = bench.group, bench.device
    gradient = torch.full((num_elements,), float(group.rank + 1), device=device)
    up, back = torch.zeros(num_elements).pin_memory(), torch.zeros(num_elements).pin_memory()
    target, side = torch.zeros_like(gradient), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    layout = BucketLayout.of([("all", (num_elements,))])

    def both() -> None:
        side.wait_stream(torch.cuda.current_stream())
        up.copy_(gradient, non_blocking=True)
        with torch.cuda.stream(side):
            target.copy_(back, non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)

    contenders: dict[str, Contender] = {
        "D2H alone, pinned": lambda: up.copy_(gradient, non_blocking=True),
        "H2D alone, pinned": lambda: target.copy_(back, non_blocking=True),
        "D2H and H2D at once": both,
    }
    for aggregator in (
        HostParallel(),
        HostParallel(num_chunks=1),
        HostSerial(),
        HostSerial(num_chunks=1),
    ):
        state = aggregator.start(layout, group, torch.float32, device)
        result = aggregator.aggregate(state, gradient)
        if result is not None and not bool((result == (group.world_size + 1) / 2).all()):
            sys.exit(f"{aggregator.label()}: wrong mean")
        contenders[aggregator.label()] = lambda a=aggregator, s=state: a.aggregate(s, gradient)  # type: ignore[misc]
    return contenders


def main() -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--host-only", action="store_true")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", choices=["rings", "host"])
    options = parser.parse_args()
    if options.host_only:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    info = RankInfo.from_env(os.environ)
    workers = Workers(info)
    device = torch.device("cuda", info.local_rank)
    torch.cuda.set_device(device)
    # As many threads as a study gives a worker by default.
    torch.set_num_threads(max(1, 3 * (num_usable_cores() // info.local_world_size) // 4))
    group = workers.group(device, peer_access=not options.host_only)
    bench = Bench(group, device, options.rounds)
    name = "all-reduce, host-only" if options.host_only else "all-reduce, NVLink"
    for num_bytes in SIZES_BYTES if options.only != "host" else ():
        contenders = ring_contenders(bench, num_bytes // 4, peer=not options.host_only)
        bench.compare(name, num_bytes, contenders)
        del contenders
        torch.cuda.empty_cache()
    for num_elements in (FCN_R_ELEMENTS, FCN_S4_ELEMENTS) if options.only != "rings" else ():
        bench.compare("host sums", num_elements * 4, host_contenders(bench, num_elements), rounds=10)
        group.release_host_buffers()
    if info.rank == 0:
        options.out.mkdir(parents=True, exist_ok=True)
        with (options.out / "samples.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(bench.samples[0]))
            writer.writeheader()
            writer.writerows(bench.samples)
        (options.out / "environment.json").write_text(json.dumps(collect(), indent=1), encoding="utf-8")
    workers.close()


if __name__ == "__main__":
    main()
