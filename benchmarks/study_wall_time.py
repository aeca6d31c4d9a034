"""How the wall time of a study divides, and whether forked workers measure the same as torchrun's.

    python benchmarks/study_wall_time.py --study quickstart --variant now=. --variant before=../older-checkout
    python benchmarks/study_wall_time.py --study 84-cells --variant forked=. --variant torchrun=.,torchrun

Every variant is a checkout, and a launcher of it (default: local). In each round each variant runs the whole
command once, from a start without results to its verdict, in an order that changes from round to round, so
that what else the machine does meets all of them. Written are, of each run: the command's wall time by the
clock here, how much of it the command's own account has, and the CPU time of all its processes; what its
launches recorded of it; the median iteration of each cell. Printed are the times, the share of measuring (a
training measures), and of two variants the ratio of the medians of the same cells, with the spread of that
ratio between two rounds of one variant: the noise.

--limit S ends a run that takes longer, as Ctrl-C does; what it had measured by then is written and printed,
and it counts for no ratio of wall times. The file of --out is written anew after each run.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import yaml

AGGREGATORS = ["none", "all_reduce", "ring", "tree", "host_serial", "host_parallel", "one_bit", "sign"]
TIMED = {"kind": "iteration", "scaling": "strong", "missing_devices": "error", "noise_pair": False}
TIMED |= {"iterations": 2000, "precision_goal": None, "repeats": 3}
TIMED |= {"split_iterations": 20}  # so called, older checkouts know it too

STOPPING_LIMIT_S = 60.0
"""For the end of a run that was stopped: its workers leave, and what is done is reported."""


def synthetic(model: str, batch: int) -> dict[str, Any]:
    """A workload on data that are drawn, so that no data set is needed."""
    return {"model": model, "dataset": "synthetic", "global_batch": batch}


def studies(world_sizes: Sequence[int], *, on_gpu: bool) -> dict[str, dict[str, Any] | None]:
    """Name -> study; None: a shipped one."""
    batch = 1024 if on_gpu else 32
    mlp = {"model": {"name": "mlp", "hidden": [512, 512]}, "global_batch": batch}
    mlp["dataset"] = {"name": "synthetic", "input_shape": [784], "num_classes": 10}
    three = [mlp, synthetic("alexnet-r", batch), synthetic("fcn-r", batch)]
    sizes = {"world_sizes": list(world_sizes)}
    made: dict[str, dict[str, Any]] = {
        "84-cells": {"workloads": three[:2], "aggregators": AGGREGATORS[:7], "max_seconds": 1},
        "108-cells": {"workloads": three, "aggregators": AGGREGATORS[:6], "max_seconds": 1.5},
        "144-cells": {"workloads": three, "aggregators": AGGREGATORS, "max_seconds": 1.5},
    }
    return {
        "quickstart": None,
        **{name: {"name": name, **TIMED, **sizes, **own} for name, own in made.items()},
    }


@dataclass(frozen=True)
class Variant:
    """A checkout and the launcher with which its command is run."""

    name: str
    folder: Path
    launcher: str = "local"

    @classmethod
    def of(cls, text: str) -> Variant:
        """From `NAME=FOLDER[,LAUNCHER]`."""
        name, equals, rest = text.partition("=")
        folder, _, launcher = rest.partition(",")
        if not (name and equals and (Path(folder) / "scaling").is_dir()):
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER[,LAUNCHER] with a checkout")
        return cls(name, Path(folder).resolve(), launcher or "local")


def run_once(
    variant: Variant, study: str, overrides: Sequence[str], limit_s: float | None = None
) -> dict[str, Any]:
    """One run of the command, stopped after `limit_s`; what it took, by the clock and by its own account."""
    with tempfile.TemporaryDirectory(prefix="study-wall-time-") as folder:
        out = Path(folder) / "out"
        words = [sys.executable, "-m", "scaling", "run", study, *overrides, "--out", str(out)]
        words += ["--launcher", variant.launcher]
        environment = {**os.environ, "PYTHONPATH": str(variant.folder)}
        started, cpu_s = time.perf_counter(), _children_cpu_s()
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(words, cwd=variant.folder, env=environment, stdout=said, stderr=said)
            is_stopped = _is_stopped(process, limit_s)
            wall_s = time.perf_counter() - started
            said.seek(0)
            if process.returncode and not is_stopped:
                raise SystemExit(f"{variant.name}: exit code {process.returncode}\n{said.read()}")
        times = {"wall_s": wall_s, "cpu_s": _children_cpu_s() - cpu_s, "is_stopped": is_stopped}
        return {"variant": variant.name, "launcher": variant.launcher, **times, **account(out)}


def _is_stopped(process: subprocess.Popen[bytes], limit_s: float | None) -> bool:
    """Waits for the end of a run; whether it came by the limit."""
    try:
        process.wait(limit_s)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(STOPPING_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its zygotes and their workers end with it
        process.wait()
    return True


def _children_cpu_s() -> float:
    """Of all processes that have ended below this one: what other load on the machine changes least."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def account(out: Path) -> dict[str, Any]:
    """What a results folder says of its time, and the median iteration of its cells."""
    launches = [json.loads(path.read_text()) for path in sorted((out / "launches").glob("*.json"))]
    launches = [launch for launch in launches if "cells" in launch]
    cells = [cell for launch in launches for cell in launch["cells"]]
    commands = [json.loads(path.read_text()) for path in (out / "launches").glob("command-*.json")]
    summary = out / "summary.csv"
    rows = list(csv.DictReader(summary.read_text().splitlines())) if summary.is_file() else []
    trained_s = sum(_training_s(rows, cell) for cell in cells)
    launched_s = sum(launch["total_s"] for launch in launches)
    return {
        "launches": len(launches),
        "cells": len(cells),
        "accounted_s": launched_s + sum(sum(command.values()) for command in commands),
        "start_up_s": sum(launch["start_up_s"] for launch in launches),
        "measuring_s": sum(cell["unprofiled_s"] + cell["profiled_s"] for cell in cells) + trained_s,
        "iteration_s": {
            f"{row['model']} {row['aggregator']} {row['world_size']}": float(row["iteration_s"])
            for row in rows
            if row["kind"] == "iteration" and row["iteration_s"]
        },
    }


def _training_s(rows: Iterable[Mapping[str, str]], cell: Mapping[str, Any]) -> float:
    """What a cell trained: recorded as such, or before that as what no part of it had."""
    if "training_s" in cell:
        return float(cell["training_s"])
    trained = {row["cell_id"] for row in rows if row["kind"] == "convergence"}
    return float(cell["other_s"]) if cell["cell_id"] in trained else 0.0


def ratios(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[float]:
    """Of the cells' median iterations, other over one."""
    before, after = one["iteration_s"], other["iteration_s"]
    return [after[cell] / before[cell] for cell in before if cell in after]


def spread(values: Sequence[float]) -> str:
    """Median and quartiles of ratios."""
    if len(values) < 2:
        return "none"
    low, middle, high = (math.exp(q) for q in statistics.quantiles([math.log(v) for v in values], n=4))
    return f"{middle:.3f} [{low:.3f}, {high:.3f}], n {len(values)}"


def lines(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the runs show."""
    by_variant: dict[str, list[Mapping[str, Any]]] = {}
    for one in runs:
        by_variant.setdefault(one["variant"], []).append(one)
    for name, own in by_variant.items():
        walls = sorted(one["wall_s"] for one in own)
        shares = [one["measuring_s"] / one["wall_s"] for one in own]
        for one in own:
            if one["is_stopped"]:
                yield f"{name}: stopped in round {one['round']}, with {one['cells']} cells measured"
        yield (
            f"{name}: {statistics.median(walls):.1f} s ({walls[0]:.1f} to {walls[-1]:.1f}, n {len(walls)}), "
            f"{statistics.median(one['cpu_s'] for one in own):.1f} CPU s, "
            f"measuring {statistics.median(shares):.0%}, "
            f"{own[0]['launches']} launches of {own[0]['cells']} cells, "
            f"start-up {statistics.median(one['start_up_s'] / max(1, one['launches']) for one in own):.2f} s "
            f"each, accounted for {statistics.median(one['accounted_s'] / one['wall_s'] for one in own):.1%}"
        )
        again = [r for one, other in combinations(own, 2) for r in ratios(one, other)]
        yield f"  medians of one round over another's: {spread(again)}"
    for (first, own), (second, others) in combinations(by_variant.items(), 2):
        pairs = [r for one, other in zip(own, others, strict=False) for r in ratios(one, other)]
        whole = [two for two in zip(own, others, strict=False) if not any(one["is_stopped"] for one in two)]
        walls = [other["wall_s"] / one["wall_s"] for one, other in whole]
        yield f"{second} over {first}: wall time {spread(walls)}; medians of cells {spread(pairs)}"


def main() -> None:
    """The command line."""
    gpus = torch.cuda.device_count()
    sizes = [1, 2] if gpus != 1 else [1]
    known = studies(sizes, on_gpu=gpus > 0)
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--study", choices=known, default="quickstart")
    parser.add_argument("--variant", type=Variant.of, action="append", required=True, dest="variants")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, metavar="S", help="stop a run that takes longer")
    parser.add_argument("--out", type=Path, help="JSON with every run")
    parser.add_argument("--remark", default="", help="what a reader should know of the machine")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the study")
    given = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        study = given.study
        if (made := known[study]) is not None:
            path = Path(folder) / f"{study}.yaml"
            path.write_text(yaml.safe_dump(made))
            study = str(path)
        gpu = torch.cuda.get_device_name() if gpus else None
        machine = {"cores": os.cpu_count(), "gpus": gpus, "gpu": gpu, "machine": platform.machine()}
        facts = {"study": given.study, "overrides": given.overrides, "torch": torch.__version__, **machine}
        runs: list[dict[str, Any]] = []
        for number in range(given.rounds):
            for variant in given.variants[:: 1 if number % 2 == 0 else -1]:
                own = run_once(variant, study, given.overrides, given.limit)
                runs.append({"round": number, **own})
                print(f"round {number}: {variant.name} {own['wall_s']:.1f} s", file=sys.stderr, flush=True)
                if given.out:
                    text = json.dumps({**facts, "remark": given.remark, "runs": runs}, indent=1)
                    given.out.write_text(text + "\n")
    print("\n".join(lines(runs)))


if __name__ == "__main__":
    main()
