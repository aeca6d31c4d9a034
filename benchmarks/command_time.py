"""How long `--help`, `status`, `recommend` and `explain` take on the largest committed results folder.

    python benchmarks/command_time.py --rounds 10 --out benchmarks/results/command-time.csv

The folder is the one of results/reference with the most samples. Each round runs each command once, from the
start of its process to its end. The CPU time of the process is written next to the wall time: other load on
the machine changes it least.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
REFERENCE = REPOSITORY / "results" / "reference"
COMMANDS = ("--help", "status", "recommend", "explain")


def num_samples(folder: Path) -> int:
    """Rows of samples that a committed folder has."""
    with gzip.open(folder / "samples.csv.gz") as file:
        return sum(1 for _ in file) - 1


def largest() -> Path:
    """The committed folder with the most samples."""
    return max((path.parent for path in REFERENCE.glob("*/samples.csv.gz")), key=num_samples)


def time_once(words: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one `scaling` command.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    began, cpu_s = time.perf_counter(), _children_cpu_s()
    subprocess.run(
        [sys.executable, "-m", "scaling", *words], env=environment, check=True, capture_output=True
    )
    return time.perf_counter() - began, _children_cpu_s() - cpu_s


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, help="CSV with every run")
    given = parser.parse_args()
    folder = largest()
    name = str(folder.relative_to(REPOSITORY))
    print(f"{name}: {num_samples(folder)} rows of samples; {platform.machine()}, {os.cpu_count()} cores")
    rows: list[tuple[int, str, str, float, float]] = []
    for number in range(given.rounds):
        for command in COMMANDS:
            words = [command] if command == "--help" else [command, str(folder)]
            rows.append((number, command, name, *time_once(words)))
    for command in COMMANDS:
        own = [row for row in rows if row[1] == command]
        walls, cpus = [row[3] for row in own], [row[4] for row in own]
        print(
            f"{command}: wall {statistics.median(walls):.2f} s ({min(walls):.2f} to {max(walls):.2f}), "
            f"CPU {statistics.median(cpus):.2f} s ({min(cpus):.2f} to {max(cpus):.2f}), n {len(own)}"
        )
    if given.out:
        with given.out.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["round", "command", "folder", "wall_s", "cpu_s"])
            writer.writerows((*row[:3], f"{row[3]:.3f}", f"{row[4]:.3f}") for row in rows)


if __name__ == "__main__":
    main()
