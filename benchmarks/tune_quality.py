"""How much of a full sweep's gain `scaling tune` finds, with how many of its measurements.

python benchmarks/tune_quality.py cpu --work DIR              # two workers here; writes cpu.csv
python benchmarks/tune_quality.py folders results/reference/*   # by committed samples; writes folders.csv

On a CPU: a sweep over the sizes of DDP's first bucket and of the others, `scaling tune`, and then the winners
of both beside the default and the step without exchange, in new launches, which decide. The network `timed`
and its link sleep (`tune_plants.py`); `resnet-56` computes, and its exchange is gloo's.

From folders with several bucket sizes of a cell: the model is made of the smallest and of the default size
alone, and its choice among the sizes is compared with what was measured.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scaling.analysis.noise import scatter_of
from scaling.analysis.samples import CellResult, read_cells
from scaling.analysis.tuned import bucket_times
from scaling.bucket import DDP_BUCKETS_MB
from scaling.errors import ScalingError
from scaling.prediction.buckets import ExchangeCurve, Gradients, closed_by, end_s
from scaling.store import ResultsFolder
from scaling.study.predicting import layouts_of_model

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "tune-quality"
FIRST_MB = (0.1, 0.25, 0.5, 1, 2, 4)
OTHERS_MB = (0.1, 0.2, 0.35, 0.5, 1, 2, 4, 25)
COUNT = 2
COMMON = {
    "device": "cpu",
    "world_sizes": [2],
    "scaling": "strong",
    "step": "overlapped",
    "noise_pair": False,
    "warmup": 3,
    "iterations": 15,
    "precision_goal": None,
    "profiled_iterations": 5,
    "repeats": 3,
}
WORKLOADS: dict[str, dict[str, Any]] = {
    "timed": {
        "workloads": [{"model": "tune_plants:timed_network", "dataset": "synthetic", "global_batch": 8}],
        "aggregators": ["tune_plants:TimedAllReduce"],
    },
    "resnet-56": {
        "workloads": [{"model": "resnet-56", "dataset": "synthetic", "global_batch": 4}],
        "aggregators": ["all_reduce"],
    },
}
CONFIRMING_REPEATS = 5


def study(name: str, work: Path, what: str, **changes: Any) -> Path:
    """A study file of a workload."""
    path = work / f"{name}-{what}.yaml"
    content = {"name": f"{name}-{what}", **COMMON, **WORKLOADS[name], **changes}
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def scaling(*words: object) -> str:
    """The command, with the plants importable; its stdout."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    command = [sys.executable, "-m", "scaling", *map(str, words)]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def sizes_of(cell: CellResult) -> tuple[float, ...]:
    """The sizes of its buckets one by one; () of the control arm."""
    return tuple(cell.cell.get("bucket_sizes_mb") or ())


def fastest(cells: Iterable[CellResult]) -> CellResult:
    """By the median of its launches."""
    return min((cell for cell in cells if sizes_of(cell)), key=median_s)


def chosen_by_tune(answer: str) -> tuple[float, ...]:
    """The sizes that its answer names; the default's where it keeps them."""
    if "bucket_mb=[[" not in answer:
        return DDP_BUCKETS_MB
    text = " ".join(answer.split()).partition("bucket_mb=[[")[2].partition("]]")[0]
    return tuple(map(float, text.split(",")))


def seconds_of(folder: Path) -> float:
    """What its runs took."""
    runs = ResultsFolder(folder).runs()
    return sum(sum(run.summary["seconds"].values()) for run in runs if run.state == "done")


def on_cpu(name: str, work: Path) -> dict[str, Any]:
    """The row of a workload."""
    grid = [[float(first), float(other)] for first in FIRST_MB for other in OTHERS_MB]
    aggregators = [*WORKLOADS[name]["aggregators"], "none"]
    swept, tuned, confirmed = work / f"{name}-sweep", work / f"{name}-tune", work / f"{name}-confirm"
    scaling("run", study(name, work, "sweep", bucket_mb=grid, aggregators=aggregators), "--out", swept)
    answer = scaling("tune", study(name, work, "tuned"), "--out", tuned, "--count", COUNT)
    cells = read_cells(ResultsFolder(swept))
    sizes = {"default": DDP_BUCKETS_MB, "sweep": sizes_of(fastest(cells)), "tune": chosen_by_tune(answer)}
    buckets = [list(one) for one in dict.fromkeys(sizes.values())]
    again = {"bucket_mb": buckets, "aggregators": aggregators, "repeats": CONFIRMING_REPEATS}
    scaling("run", study(name, work, "confirm", **again), "--out", confirmed)
    parts = [tuned / "probe", tuned / "buckets"]
    runs = {
        "sweep": len(ResultsFolder(swept).runs()),
        "tune": sum(len(ResultsFolder(p).runs()) for p in parts),
    }
    return {
        "workload": name,
        "sweep_runs": runs["sweep"],
        "tune_runs": runs["tune"],
        "runs_ratio": round(runs["tune"] / runs["sweep"], 4),
        "sweep_s": round(seconds_of(swept), 1),
        "tune_s": round(sum(map(seconds_of, parts)), 1),
        **first_candidate(cells, read_cells(ResultsFolder(tuned / "buckets"))),
        **compared(read_cells(ResultsFolder(confirmed)), sizes),
    }


def first_candidate(swept: Sequence[CellResult], tuned: Sequence[CellResult]) -> dict[str, Any]:
    """The model's choice: what it took in the launches of tune, and in the sweep, if that has its buckets."""
    by_sizes = {sizes_of(cell): cell for cell in tuned if sizes_of(cell)}
    choice = min(by_sizes.keys() - {DDP_BUCKETS_MB}, key=len)  # the fewest buckets: measured first
    found = scatter_of(tuned).difference(by_sizes[DDP_BUCKETS_MB].cell_id, by_sizes[choice].cell_id)
    low, high = found.interval or (math.nan, math.nan)
    row: dict[str, Any] = {"model_mb": " ".join(map(str, choice)), "model_ratio": round(found.ratio, 4)}
    row |= {"model_low": round(low, 4), "model_high": round(high, 4), "model_share_in_sweep": ""}
    same = [cell for cell in swept if sizes_of(cell) and bytes_of(cell) == bytes_of(by_sizes[choice])]
    default = next(cell for cell in swept if sizes_of(cell) == DDP_BUCKETS_MB)
    if same:
        times = [median_s(cell) for cell in (default, fastest(swept), *same)]
        gain = times[0] - sorted(times[2:])[len(same) // 2]
        row["model_share_in_sweep"] = round(gain / (times[0] - times[1]), 3)
    return row


def bytes_of(cell: CellResult) -> list[int]:
    """Of its buckets."""
    found: list[int] = cell.done[0].summary["bucket_bytes"]
    return found


def median_s(cell: CellResult) -> float:
    """Of its launches' medians."""
    return sorted(launch.iteration_s for launch in cell.launches)[len(cell.launches) // 2]


def compared(cells: Sequence[CellResult], sizes: Mapping[str, tuple[float, ...]]) -> dict[str, Any]:
    """The winners in the same launches: times over the default's, with intervals, and the share of gain."""
    ids = {sizes_of(cell): cell.cell_id for cell in cells}
    row: dict[str, Any] = {}
    scatter = scatter_of(cells)
    base = ids[DDP_BUCKETS_MB]
    for what, key in (("sweep", sizes["sweep"]), ("tune", sizes["tune"]), ("none", ())):
        found = scatter.difference(base, ids[key])
        low, high = found.interval or (float("nan"), float("nan"))
        row |= {
            f"{what}_ratio": round(found.ratio, 4),
            f"{what}_low": round(low, 4),
            f"{what}_high": round(high, 4),
        }
    gains = 1 - row["sweep_ratio"], 1 - row["tune_ratio"]
    default = next(cell for cell in cells if cell.cell_id == base)
    medians = sorted(launch.iteration_s for launch in default.launches)
    return {
        **row,
        "gain_share": round(gains[1] / gains[0], 3) if gains[0] > 0 else "",
        "default_ms": round(1e3 * medians[len(medians) // 2], 3),
        "launches": len(medians),
        "sweep_mb": " ".join(map(str, sizes["sweep"])),
        "tune_mb": " ".join(map(str, sizes["tune"])),
    }


def of_folder(folder: Path) -> list[dict[str, Any]]:
    """A row for each setting of a committed folder with several bucket sizes."""
    families: dict[Any, list[CellResult]] = {}
    for cell in read_cells(ResultsFolder(folder)):
        if cell.cell["step"] == "overlapped" and cell.launches and cell.cell.get("bucket_mb"):
            names = ("model_label", "aggregator_label", "world_size", "peer_access", "global_batch")
            if cell.cell.get("exchanges", True) and not cell.cell.get("aa_replicate"):
                families.setdefault(tuple(cell.cell.get(name) for name in names), []).append(cell)
    rows = []
    for key, cells in families.items():
        if len({cell.cell["bucket_mb"] for cell in cells}) > 1:
            row = judged(cells)
            rows += [{"folder": folder.name, "model": key[0], "aggregator": key[1], "world_size": key[2],
                      "peer_access": key[3], **row}] if row else []  # fmt: skip
    return rows


def judged(cells: Sequence[CellResult]) -> dict[str, Any] | None:
    """What the model of the smallest and the default size chooses among all, and what that was worth."""
    cells = sorted(cells, key=lambda cell: cell.cell["bucket_mb"])
    (layout,) = layouts_of_model(cells[0].cell).values()
    tensors = _tensor_bytes(layout)
    parts = {cell.cell_id: closed_by([cell.cell["bucket_mb"]], tensors) for cell in cells}
    sizes = {
        one: tuple(sum(tensors[a:b]) for a, b in zip((0, *ends), ends, strict=False))
        for one, ends in parts.items()
    }
    fine = cells[0]
    default = min(cells, key=lambda cell: abs(cell.cell["bucket_mb"] - DDP_BUCKETS_MB[-1]))
    try:
        times = [bucket_times(cell, sizes[cell.cell_id]) for cell in (fine, default)]
    except ScalingError:
        return None
    ready = dict(zip(parts[fine.cell_id], times[0].ready_s, strict=True))
    curve = ExchangeCurve.of(
        [pair for one in times for pair in zip(one.num_bytes, one.exchange_s, strict=True)]
    )
    gradients = Gradients(tuple(_filled(ready, len(tensors))), tensors)
    ends = {cell.cell_id: end_s(parts[cell.cell_id], gradients, curve) for cell in cells}
    measured = {cell.cell_id: cell.launches[0].iteration_s for cell in cells}
    best, chosen = min(measured, key=measured.__getitem__), min(ends, key=ends.__getitem__)
    by_id = {cell.cell_id: cell for cell in cells}
    gain = measured[default.cell_id] - measured[best]
    return {
        "sizes": len(cells),
        "partitions": len(set(parts.values())),
        "default_ms": round(1e3 * measured[default.cell_id], 3),
        "best_ms": round(1e3 * measured[best], 3),
        "best_mb": by_id[best].cell["bucket_mb"],
        "chosen_ms": round(1e3 * measured[chosen], 3),
        "chosen_mb": by_id[chosen].cell["bucket_mb"],
        "chosen_over_best": round(measured[chosen] / measured[best], 4),
        "default_over_best": round(measured[default.cell_id] / measured[best], 4),
        "gain_share": round((measured[default.cell_id] - measured[chosen]) / gain, 3) if gain > 0 else "",
    }


def _tensor_bytes(layout: Any) -> tuple[int, ...]:
    """Bytes of the gradients in the order in which they become ready: the last tensor first."""
    return tuple(4 * math.prod(shape) for shape in reversed(layout.shapes))


def _filled(ready: Mapping[int, float], num: int) -> list[float]:
    """Ready times of all gradients: each as of the first bucket that ends behind it."""
    ends = sorted(ready)
    return [ready[next(end for end in ends if end > number)] for number in range(num)]


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    cpu = verbs.add_parser("cpu")
    cpu.add_argument("--work", type=Path, required=True, help="folder for the studies")
    cpu.add_argument("--workload", choices=list(WORKLOADS), action="append", help="default: all")
    folders = verbs.add_parser("folders")
    folders.add_argument("folder", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.verb == "folders":
        written(RESULTS / "folders.csv", [row for folder in arguments.folder for row in of_folder(folder)])
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in arguments.workload or WORKLOADS:
        rows.append(on_cpu(name, arguments.work))
        RESULTS.mkdir(parents=True, exist_ok=True)
        shutil.copy(arguments.work / f"{name}-confirm" / "environment.json", RESULTS)
        written(RESULTS / "cpu.csv", rows)


if __name__ == "__main__":
    main()
