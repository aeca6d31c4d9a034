"""Does `scaling attach` name first what was planted in a script, and nothing where nothing was?

    python benchmarks/attach_quality.py --seed 1 --out FOLDER            # two ranks on a CPU, as root
    python benchmarks/attach_quality.py --seed 1 --out FOLDER --processes 8     # on 16 cores, two for each

Twelve faults and six healthy scripts (`attach_plants.py`); rank, place and size are drawn by the seed. A
healthy script exchanges for less than 5% of its step by calculation (`exchange_ratio`). The
fault of a slow network runs on two network namespaces (`launchers.two_hosts`), the second by `attach --join`.
`cases.csv` in FOLDER has what was planted, what was named first, and all that was found; with the seconds of
a case, its A/A spread, and how busy the machine was at its start (1-minute load).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import queue
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launchers.two_hosts import HostLink, on_host, two_hosts, why_not

SCRIPT = Path(__file__).with_name("attach_plants.py")
CAUSES_SCRIPT = SCRIPT.with_name("attach_causes.py")
HEALTHY = 6
CORES = 2
"""Of each case, which has as many ranks."""


COLUMNS = ("case", "plant", "expected", "first", "values", "found", "seconds", "spread", "load", "right")


@dataclass(frozen=True)
class Case:
    """A script, and what should be named first; no kind for a healthy one.

    Attributes:
        plant: the script's argument.
        values: of the finding.
        rate: of the link between two hosts; None: one host.
        script: that is given the plant.
    """

    name: str
    plant: dict[str, Any]
    kind: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    rate: str | None = None
    script: Path = SCRIPT

    def is_named(self, found: Sequence[dict[str, Any]]) -> bool:
        """Whether the findings say what should be said."""
        if self.kind is None or not found:
            return self.kind is None and not found
        values = found[0]["values"]
        return found[0]["kind"] == self.kind and all(
            values.get(key) == value for key, value in self.values.items()
        )


def cases(seed: int) -> list[Case]:
    """What the seed draws."""
    draw = random.Random(seed)

    def between(least: float, most: float) -> float:
        return round(draw.uniform(least, most), 1)

    def slow(fault: str, phase: str) -> Case:
        rank = draw.randrange(2)
        plant: dict[str, Any] = {"fault": fault, "rank": rank, "ms": between(8, 25)}
        return Case(fault, plant, "slow_rank", {"ranks": [rank], "phase": phase})

    faulty = [
        slow("forward", "forward"),
        slow("backward", "backward"),
        slow("input_rank", "input"),
        Case("input", {"fault": "input", "ms": between(8, 25)}, "input", {"waits": False}),
        Case("storage", {"fault": "storage", "ms": between(8, 25)}, "input", {"waits": True}),
        Case("item", {"fault": "item", "metric": draw.randrange(2_000_000, 6_000_000)}, "collectives"),
        Case("buckets", {"bucket_mb": 0.001, "width": 64, "depth": draw.randrange(80, 160)}, "buckets"),
        Case("exchange", {"depth": draw.randrange(4, 9)}, "exchange", rate="100mbit"),
        Case("threads", {"threads": draw.randrange(4, 9), "depth": 12}, "threads"),
        Case("evaluation", {"evaluate": 1, "batches": draw.randrange(2, 6)}, "evaluation"),
        Case("uneven", {"fault": "uneven", "batch": 1024, "factor": between(1.2, 2)}, "uneven"),
        Case("optimizer", {"fault": "optimizer", "ms": between(15, 40)}, "optimizer"),
    ]  # fmt: skip
    healthy: list[dict[str, Any]] = [
        {"batch": 3072},
        {"batch": 3072, "workers": 1},
        {"batch": 1024, "accumulate": 4},
        {"batch": 3072, "momentum": 0.9},
        {"batch": 3072, "evaluate": 100, "batches": 1},
        {"batch": 3072, "depth": draw.randrange(8, 12)},
    ]
    chosen = [Case(f"healthy-{at}", plant) for at, plant in enumerate(healthy[:HEALTHY])]
    order = [*faulty, *chosen]
    draw.shuffle(order)
    return order


CAUSES = {
    "uneven_lengths": "uneven", "no_sampler": "no_sampler", "save": "saves", "evaluation": "evaluation",
    "no_sync": "exchange", "gather": "collectives", "threads": "threads", "no_optimizer": "exchange",
}  # fmt: skip
"""Of `attach_causes.py` those that a CPU shows, and the kind of what should be found first."""


def causes() -> list[Case]:
    """A case for each."""
    return [Case(cause, {"cause": cause}, kind, script=CAUSES_SCRIPT) for cause, kind in CAUSES.items()]


DECIDING = ("aa", "no_exchange", "cached_input", "no_collectives", "threads", "buckets_2", "buckets_25")
"""The arms that findings are made of."""

FLOPS, BYTES_PER_S, BUCKET_S = 100e9, 1e9, 0.3e-3
"""Of one core in float32 products, of Gloo between two processes of a host, and what each bucket takes."""


def exchange_ratio(plant: dict[str, Any]) -> float:
    """The part of a step that a script's exchange takes by calculation: 6 operations a parameter and sample.

    Two ranks that reduce around a ring each send all gradients once.
    """
    parameters: float = plant.get("depth", 6) * plant.get("width", 256) ** 2
    samples: float = plant["batch"] * plant.get("accumulate", 1)
    buckets = 1 + math.ceil(4 * parameters / 2**20 / 25)
    exchange_s = 4 * parameters / BYTES_PER_S + buckets * BUCKET_S
    return exchange_s / (exchange_s + 6 * parameters * samples / FLOPS)


def run(case: Case, out: Path, options: Sequence[str]) -> list[dict[str, Any]] | None:
    """Attaches to the case's script; what was found, None if it could not be measured."""
    attach = [sys.executable, "-m", "scaling", "attach", "--arms", ",".join(DECIDING), *options]
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    script = [str(case.script), case.plant.get("cause") or json.dumps(case.plant)]
    with (out.parent / f"{out.name}.log").open("w") as log:
        if case.rate is None:
            words = [*attach, "--out", str(out), "--", *start, "2", "--standalone", *script]
            subprocess.run(words, stdout=log, stderr=log, check=False)
        else:
            with two_hosts(HostLink(case.rate)) as names, socket.socket() as one:
                one.bind(("", 0))
                port = str(one.getsockname()[1])
                started = []
                for node, name in enumerate(names):
                    where = ["--join" if node else "--out", str(out)]
                    of_node = ["1", "--nnodes", "2", "--node-rank", str(node)]
                    of_node += ["--master-addr", "host1", "--master-port", port]
                    words = on_host(node, name, [*attach, *where, "--", *start, *of_node, *script])
                    started.append(subprocess.Popen(words, stdout=log, stderr=log))
                for process in started:
                    process.wait()
    found = out / "findings.json"
    return json.loads(found.read_text()) if found.exists() else None


def shares_of_cores(count: int) -> list[list[int]]:
    """So many sets of cores, hardware threads of one core in the same set.

    Raises:
        ValueError: there are fewer.
    """

    def siblings(core: int) -> str:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        return path.read_text() if path.exists() else ""

    cores = sorted(os.sched_getaffinity(0), key=lambda core: (siblings(core), core))
    if count * CORES > len(cores):
        raise ValueError(f"--processes {count}: {count * CORES} cores are needed, there are {len(cores)}")
    return [cores[at * CORES : (at + 1) * CORES] for at in range(count)]


def judged(case: Case, out: Path, options: Sequence[str]) -> tuple[Any, ...]:
    """The row of a case; it is run."""
    started, load = time.monotonic(), os.getloadavg()[0]
    found = run(case, out / case.name, options)
    is_right = found is not None and case.is_named(found)
    first = "not measured" if found is None else found[0]["kind"] if found else "nothing"
    named = json.dumps(found[0]["values"]) if found else ""
    kinds = " ".join(f"{one['kind']}:{one['values']['ratio']:.2f}" for one in found or [])
    took_s, answer = round(time.monotonic() - started), out / case.name / "answer.txt"
    spread = re.search(r"([\d.]+%) in a launch at most", answer.read_text()) if answer.exists() else None
    said = "named" if is_right else "MISSED"
    print(f"{case.name}: {said}: {first} {named} ({kinds}) {took_s} s, load {load:.1f}", flush=True)
    expected, share = case.kind or "nothing", spread[1] if spread else ""
    plant = json.dumps(case.plant)
    return (case.name, plant, expected, first, named, kinds, took_s, share, round(load, 1), is_right)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all cases, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=None, help="names of cases")
    parser.add_argument("--processes", type=int, default=1, help="cases side by side, each on its two cores")
    parser.add_argument("--causes", action="store_true", help="those of attach_causes.py instead")
    parser.add_argument("options", nargs="*", help="of attach, after --")
    chosen = parser.parse_args(arguments)
    free: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    try:
        for cores in shares_of_cores(chosen.processes):
            free.put(cores)
    except ValueError as error:
        parser.error(str(error))
    chosen.out.mkdir(parents=True, exist_ok=True)
    every = causes() if chosen.causes else cases(chosen.seed)
    wanted = [case for case in every if chosen.only is None or case.name in chosen.only]
    wanted.sort(key=lambda case: case.rate is None)  # a slow network takes longest
    if any(case.rate for case in wanted) and (reason := why_not()):
        print(f"not run on a slow network, because {reason}")
        wanted = [case for case in wanted if case.rate is None]
    rows = []

    def pin() -> None:
        """Pins the thread, and with it what it starts."""
        os.sched_setaffinity(0, free.get())

    with ThreadPoolExecutor(chosen.processes, initializer=pin) as pool:
        for row in as_completed([pool.submit(judged, case, chosen.out, chosen.options) for case in wanted]):
            rows.append(row.result())
            with (chosen.out / "cases.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(COLUMNS)
                writer.writerows(sorted(rows))
    faulty = [row for row in rows if row[2] != "nothing"]
    healthy = [row for row in rows if row[2] == "nothing"]
    print(f"{sum(row[-1] for row in faulty)} of {len(faulty)} faults named first")
    print(f"{sum(not row[-1] for row in healthy)} of {len(healthy)} healthy scripts with a finding")
    return 0


if __name__ == "__main__":
    sys.exit(main())
