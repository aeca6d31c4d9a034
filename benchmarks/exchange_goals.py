"""What exchanges have to reach on 2 GPUs, measured by one command, on one page:

    python benchmarks/exchange_goals.py --out FOLDER          # writes page.txt, samples and a results folder
    python benchmarks/exchange_goals.py --out FOLDER --cpu    # a rehearsal without GPUs, briefly

1. Small messages: `exchange_curves.py`: the library, the ring, stripes, the one-kernel exchanges, by_size.
2. Sums in host memory: `collective_speed.py --only host`, 57 and 489 MB, beside bare copies.
3. A study of three launches: captured ResNet-56 over each exchange, beside the same step without; and FCN-R
   without peer access, beside DDP. Ratios are of the same launches, with 95% intervals and their number.

The bound of FCN-R's step (`bound_s`): gradients that become ready last can go over the bus only then. With
two GPUs every byte goes up and down once, whoever sums. Its layer of 33.6 MB is ready 0.3 ms before the
backward pass ends, and 40 MB are then left: more than a millisecond at what the bus gives both ways.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from scaling.analysis.noise import scatter_of
from scaling.analysis.samples import CellResult, read_cells
from scaling.analysis.tuned import bucket_times
from scaling.store import ResultsFolder

HERE = Path(__file__).parent
LAUNCHES = 3
STRIPES = {"name": "schedule", "collective": "stripes"}
TWO_SHOT = {**STRIPES, "transport": "one_kernel"}
PINNED = {**STRIPES, "transport": "host_memory"}
RESNET_GOAL, HOST_ONLY_GOAL = 1.03, 0.8


def study(curves: Path, *, cpu: bool) -> dict[str, Any]:
    """Of the third part; the rehearsal has small networks, and steps that a CPU has."""
    by_size = {"name": "scaling.aggregators.by_size:BySize", "curves": str(curves.resolve())}
    resnet = {"model": "resnet-56", "dataset": "synthetic", "global_batch": 128}
    fcn_r = {"model": "fcn-r", "dataset": "synthetic", "global_batch": 4096}
    captured: dict[str, Any] = {"step": "captured", "workloads": [resnet]}
    host_only: dict[str, Any] = {"peer_access": False, "workloads": [fcn_r]}
    parts = [
        {**captured, "aggregators": ["none", "all_reduce", "ring", TWO_SHOT, by_size]},
        {**captured, "bucket_mb": 1, "aggregators": ["all_reduce", TWO_SHOT]},
        {**host_only, "step": "overlapped", "aggregators": ["none", "all_reduce"]},
        {
            **host_only,
            "step": "captured",
            "bucket_mb": [4, 25],
            "aggregators": ["none", "all_reduce", STRIPES, PINNED],
        },
        {**host_only, "step": "eager", "aggregators": ["host_parallel"]},
    ]
    if cpu:
        small = {"workloads": [{"model": "mlp", "dataset": "digits", "global_batch": 64}]}
        parts = [
            {
                **small,
                "step": "eager",
                "aggregators": ["none", "all_reduce", "ring", by_size, "host_parallel"],
            },
            {**small, "step": "overlapped", "aggregators": ["none", "all_reduce"]},
        ]
    return {
        "name": "exchange-goals", "kind": "iteration", "device": "cpu" if cpu else "cuda", "world_sizes": 2,
        "scaling": "strong", "noise_pair": False, "repeats": 2 if cpu else LAUNCHES,
        **({"iterations": 10} if cpu else {"max_seconds": 2}), "precision_goal": None, "parts": parts,
    }  # fmt: skip


def ratios(cells: Sequence[CellResult], baseline: CellResult) -> Iterator[str]:
    """A line for each cell: its time over the baseline's, in the same launches."""
    scatter = scatter_of(cells)
    for cell in cells:
        label = f"  {cell.cell['step']:11}{cell.cell['aggregator_label']:.60}"
        label += f", {cell.cell['bucket_mb']:g} MiB" if cell.cell["bucket_mb"] else ""
        if not cell.launches:
            yield f"{label}: {cell.records[0].state}, {cell.records[0].reason or ''}"
            continue
        median_ms = 1e3 * sorted(launch.iteration_s for launch in cell.launches)[len(cell.launches) // 2]
        if not scatter.num_launches(baseline.cell_id):
            yield f"{label}: {median_ms:.3f} ms; the baseline was not measured"
            continue
        found = scatter.difference(baseline.cell_id, cell.cell_id)
        low, high = found.interval or (float("nan"), float("nan"))
        shown = f"{median_ms:.3f} ms, {found.ratio:.3f} [{low:.3f}, {high:.3f}]"
        yield f"{label}: {shown}, n={len(cell.launches)}"


def bound_s(
    backward_end_s: float, ready_s: Sequence[float], num_bytes: Sequence[int], bytes_per_s: float
) -> float:
    """No step of two GPUs is shorter: of any last buckets, when the first is ready and what they take.

    Args:
        backward_end_s: without exchange, from the start of the step.
        ready_s: of buckets in their order, in another step; their distances to its last count.
        num_bytes: of each.
        bytes_per_s: of a bus in each direction while both are used.
    """
    starts = [backward_end_s - (ready_s[-1] - one) for one in ready_s]
    return max(start + sum(num_bytes[k:]) / bytes_per_s for k, start in enumerate(starts))


def bound_of(none: CellResult, ddp: CellResult, copies: Path) -> str:
    """The bound by what a run measured itself: profiled steps, and copies both ways at once."""
    with copies.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["contender"] == "D2H and H2D at once"]
    speed = median(int(row["bytes"]) / float(row["seconds"]) for row in rows)
    ends = [
        max(span.stop_s for rank in step.ranks for span in rank.spans if span.phase == "backward")
        for launch in none.launches
        for step in launch.profiled_steps
    ]
    times = bucket_times(ddp)
    bound = bound_s(median(ends), times.ready_s, times.num_bytes, speed)
    ddp_s = median(launch.iteration_s for launch in ddp.launches)
    shown = f"{1e3 * bound:.3f} ms, {bound / ddp_s:.3f} of DDP's"
    return f"  bound: {shown}, at {speed / 1e9:.1f} GB/s each way at once"


def of_study(folder: Path, copies: Path) -> Iterator[str]:
    """The lines of the third part; `copies` are the samples of the second."""
    cells = read_cells(ResultsFolder(folder))
    for model, step, aggregator, goal in (
        ("resnet-56", "captured", "none", f"over the step without exchange; goal {RESNET_GOAL} at most"),
        (
            "fcn-r",
            "overlapped",
            "all_reduce",
            f"without peer access, over DDP; goal {HOST_ONLY_GOAL} at most",
        ),
        ("mlp", "eager", "none", "a rehearsal, over the step without exchange; no goal"),
    ):
        own = [cell for cell in cells if cell.cell["model"] == model]
        bases = [one for one in own if (one.cell["step"], one.cell["aggregator"]) == (step, aggregator)]
        if own and bases:
            yield f"\n{model}: {goal}"
            yield from ratios(own, bases[0])
        none = [one for one in own if (one.cell["step"], one.cell["aggregator"]) == (step, "none")]
        if none and bases and copies.exists() and aggregator != "none":
            yield bound_of(none[0], bases[0], copies)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    with (options.out / "page.txt").open("w", encoding="utf-8") as page:

        def say(text: str) -> None:
            print(text, flush=True)
            print(text, file=page, flush=True)

        def output_of(*words: object) -> str:
            command = [sys.executable, "-m", *map(str, words)]
            done = subprocess.run(command, check=False, env=environment, stdout=subprocess.PIPE, text=True)
            return done.stdout + (f"\nexit code {done.returncode}" if done.returncode else "")

        two = ("torch.distributed.run", "--nproc-per-node=2")
        curves = options.out / "curves"
        brief = ("--rounds", 5, "--sizes", 4096, 262144, 4194304) if options.cpu else ()
        say("Small messages")
        say(output_of(*two, HERE / "exchange_curves.py", "--out", curves, *brief))
        say("\nSums in host memory")
        host = (
            *two,
            HERE / "collective_speed.py",
            "--out",
            options.out / "host",
            "--only",
            "host",
            "--host-only",
        )
        say("  needs GPUs" if options.cpu else output_of(*host))
        file, folder = options.out / "study.yaml", options.out / "study"
        file.write_text(yaml.safe_dump(study(curves / "curves.yaml", cpu=options.cpu), sort_keys=False))
        output_of("scaling", "run", file, "--out", folder)
        for line in of_study(folder, options.out / "host" / "samples.csv"):
            say(line)


if __name__ == "__main__":
    main()
