"""CPU time of `status`, `report`, `recommend`, `compare` and `plan` by the number of runs.

    python benchmarks/load.py --runs 100 1000 5000 --out benchmarks/results/load.csv

The folders are copies of the timed runs of a committed one, with the first samples of each rank: `many`
workloads of 9 cells each (three networks' worth of aggregators and world sizes, three repeats), or `one`
workload of which every copy has another size of buckets. `plan` reads a study of as many cells. `--of FOLDER`
times the commit that is checked out in another folder.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scaling.store import ResultsFolder
from scaling.store.files import as_json

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE = REPOSITORY / "results" / "reference" / "quickstart-2xh100"
NUM_LINES = 12
VERBS = ("status", "report", "recommend", "compare", "plan")
UNDECIDED = 3


def fill(path: Path, num_runs: int, shape: str) -> None:
    """Makes a results folder of that many runs, or of a few more."""
    source, made = ResultsFolder(SOURCE), ResultsFolder(path)
    made.write_study(source.study())
    made.write_environment(source.environment())
    timed = [record for record in source.runs() if record.cell["kind"] == "iteration"]
    samples = [as_lines(source.samples(record.cell_id, record.repeat)) for record in timed]
    for number in range(-(-num_runs // len(timed))):
        for record, ranks in zip(timed, samples, strict=True):
            other: dict[str, Any] = {"bucket_mb": number + 1.0}
            if shape == "many":
                label = f"{record.cell['model_label']}(number={number})"
                other = {"model_parameters": {"number": number}, "model_label": label}
            copy = replace(record, cell_id=f"{number:06x}{record.cell_id[:6]}", cell={**record.cell, **other})
            folder = path / "runs" / copy.cell_id / str(copy.repeat)
            folder.mkdir(parents=True)
            (folder / "run.json").write_bytes(as_json(asdict(copy)))
            for rank, text in enumerate(ranks):
                (folder / f"rank{rank}.jsonl").write_bytes(text)


def as_lines(ranks: Sequence[Sequence[dict[str, object]]]) -> list[bytes]:
    """The text of each rank's file: half of its lines unprofiled, if it has so many."""
    return [b"".join(as_json(line).replace(b"\n", b"") + b"\n" for line in chosen(lines)) for lines in ranks]


def chosen(lines: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """The first lines of each kind, in their order."""
    measured = [line for line in lines if not line["warmup"]]
    of_kind = [[line for line in measured if bool(line.get("profiled")) is kind] for kind in (False, True)]
    taken = [id(line) for some in of_kind for line in some[: NUM_LINES // 2]]
    return [line for line in lines if id(line) in taken]


def write_study(path: Path, num_cells: int) -> None:
    """A study of that many cells: two aggregators on two workers, at as many batch sizes as it takes."""
    batches = [64 * (number + 1) for number in range(num_cells // 2)]
    workload = f"{{model: fcn-r, dataset: synthetic, global_batch: {batches}}}"
    path.write_text(
        f"name: load\nworkloads:\n  - {workload}\naggregators: [all_reduce, ring]\n"
        "world_sizes: [2]\nscaling: strong\ndevice: cpu\n"
    )


def cpu_s(words: Sequence[object], repository: Path, limit_s: int) -> str:
    """CPU seconds of one `scaling` command that comes to an end of its own, or that it took longer."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["prlimit", f"--cpu={limit_s}", sys.executable, "-m", "scaling", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    ended = subprocess.run(command, env=environment, cwd=repository, stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if ended.returncode < 0 and taken_s > limit_s - 1:
        return f"over {limit_s}"
    if ended.returncode not in (0, UNDECIDED):
        sys.exit(f"error: scaling {' '.join(map(str, words))} ended with exit code {ended.returncode}")
    return f"{taken_s:.1f}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--verbs", nargs="+", default=VERBS)
    parser.add_argument("--shapes", nargs="+", default=["many", "one"])
    parser.add_argument("--of", type=Path, default=REPOSITORY, help="repository whose commands are timed")
    parser.add_argument("--limit-s", type=int, default=600, help="CPU seconds after which a command is ended")
    parser.add_argument("--out", type=Path, help="CSV of all")
    given = parser.parse_args()
    rows = []
    for num_runs in given.runs:
        for shape in given.shapes:
            with tempfile.TemporaryDirectory() as place:
                folder, study = Path(place, "results"), Path(place, "load.yaml")
                fill(folder, num_runs, shape)
                write_study(study, num_runs)
                for verb in given.verbs:
                    words = {"compare": [folder, folder], "plan": [study]}.get(verb, [folder])
                    rows.append(
                        (verb, shape, num_runs, cpu_s([verb, *words], given.of.resolve(), given.limit_s))
                    )
                    print(*rows[-1], flush=True)
    if given.out:
        with given.out.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("verb", "shape", "runs", "cpu_s"), *rows])


if __name__ == "__main__":
    main()
