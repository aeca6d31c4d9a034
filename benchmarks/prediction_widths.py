"""Whether folds are too few to tell their coverage from 95%, and what narrower intervals would hold:

    python benchmarks/prediction_widths.py --out benchmarks/results/prediction-quality/widths

A deviation is the logarithm of measured over predicted time, in standard deviations of the interval. Cells of
a folder, network and step err together: `effective` is how many independent cells they are worth (cells over
1 + (mean cells a group, weighted by cells, - 1) x intraclass correlation, the smaller of groups by folder and
by folder, network and step). `share` is of the interval's width, on the logarithm, that holds 95% of all
folders but one; `held` are the cells of that one inside it, over all folders.

The loops are DDP's, written by hand, and our own steps beside them, on two machines of four H200 GPUs
(benchmarks/results/against-ddp-loop-4xh200): in no folder, so in no fit.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from prediction_quality import FOLDS, H100_FOLDS, Fold, measured, predictor_of, rows_of, strategy
from prediction_scores import write
from scipy.stats import beta

from scaling.prediction.estimate import NORMAL_95

LOOPS = Path(__file__).parent / "results" / "against-ddp-loop-4xh200"
NAMES = ("4 from 1", "H100 from H200", "H200 from H100", "4 from 1 and 2", "2 from 1")
SHARES = (1.0, 0.8, 0.7, 0.6, 0.55)
COLUMNS = (
    "fold",
    "cells",
    "inside",
    "coverage",
    "exact",
    "effective",
    "exact of effective",
    "share",
    "held",
    "worst",
)
LOOP_COLUMNS = ("fold", "steps", *(f"inside {share:g}" for share in SHARES))


def deviation(seconds: float, low: float, high: float) -> float:
    """Of a time from an interval's middle, in its standard deviations."""
    return math.log(seconds / math.sqrt(low * high)) / math.log(high / low) * 2 * NORMAL_95


def exact(inside: float, cells: float) -> str:
    """The exact binomial 95% interval (Clopper and Pearson) of a coverage; numbers need not be whole."""
    low = float(beta.ppf(0.025, inside, cells - inside + 1)) if inside else 0.0
    high = float(beta.ppf(0.975, inside + 1, cells - inside)) if inside < cells else 1.0
    return f"{low:.1%} to {high:.1%}"


def effective(groups: Sequence[Sequence[float]]) -> float:
    """How many independent values the values of groups are worth."""
    sizes = np.array([len(group) for group in groups])
    cells = sizes.sum()
    if len(groups) < 2 or len(groups) == cells:
        return float(cells)
    means = np.array([np.mean(group) for group in groups])
    between = (sizes * (means - sizes @ means / cells) ** 2).sum() / (len(groups) - 1)
    within = sum(((group - np.mean(group)) ** 2).sum() for group in map(np.array, groups)) / (
        cells - len(groups)
    )
    usual = (cells - (sizes**2).sum() / cells) / (len(groups) - 1)
    correlation = max(0.0, (between - within) / (between + (usual - 1) * within))
    return float(cells / (1 + ((sizes**2).sum() / cells - 1) * correlation))


def of_fold(fold: Fold) -> dict[str, Any]:
    """A row of the first table."""
    rows = [row for row in rows_of(fold) if row["predicted_s"]]
    by_folder, by_step = defaultdict(list), defaultdict(list)
    for row in rows:
        off = deviation(row["measured_s"], row["low_s"], row["high_s"])
        by_folder[row["results"]].append(off)
        by_step[row["results"], row["model"], row["step"]].append(off)
    cells, inside = len(rows), sum(bool(row["inside"]) for row in rows)
    worth = min(effective(list(groups.values())) for groups in (by_folder, by_step))
    coverage = inside / cells
    row = {"fold": fold.name, "cells": cells, "inside": inside, "coverage": f"{coverage:.1%}"}
    row |= {"exact": exact(inside, cells), "effective": round(worth)}
    row |= {"exact of effective": exact(coverage * worth, worth), "share": "-", "held": "-", "worst": "-"}
    if len(by_folder) == 1:
        return row
    shares, held = [], {}
    for folder, own in by_folder.items():
        others = np.abs([off for other, values in by_folder.items() if other != folder for off in values])
        shares.append(np.quantile(others, 0.95, method="higher") / NORMAL_95)
        held[folder] = (np.abs(own) <= NORMAL_95 * shares[-1]).sum()
    worst = min(held, key=lambda folder: held[folder] / len(by_folder[folder]))
    row |= {"share": f"{min(shares):.2f} to {max(shares):.2f}", "held": f"{sum(held.values()) / cells:.1%}"}
    return row | {"worst": f"{held[worst]} of {len(by_folder[worst])} ({worst})"}


def of_loops(fold: Fold) -> dict[str, Any]:
    """A row of the second table: steps of two machines, of numbers of GPUs that the fold does not know."""
    predictor, offs = predictor_of(fold), []
    for model, world_size, contender, seconds in loops():
        step = "captured" if contender == "captured" else "overlapped"
        like = {
            "model_label": model,
            "world_size": world_size,
            "step": step,
            "aggregator_label": "all_reduce",
        }
        alike = [cell for cell in measured()[0] if like.items() <= cell.cell.items() and _is_plain(cell.cell)]
        if not alike or fold.knows(alike[0]):
            continue
        predicted = predictor.predict(strategy(alike[0].cell, alike[0].tensor_shapes)).iteration
        assert predicted is not None
        offs.append(abs(deviation(seconds, *predicted.interval)))
    row = {f"inside {share:g}": sum(off <= NORMAL_95 * share for off in offs) for share in SHARES}
    return {"fold": fold.name, "steps": len(offs)} | row


def _is_plain(cell: Any) -> bool:
    batches = {"fcn-r": 4096, "fcn-s4": 64, "resnet-56": 128}
    placed = cell.get("input_placement", "device") == "device" and cell.get("peer_access") is not False
    return placed and not cell.get("tf32") and cell["global_batch"] == batches[cell["model_label"]]


def loops() -> Iterator[tuple[str, int, str, float]]:
    """Network, GPUs, contender and median seconds of each machine."""
    for path in (LOOPS / "samples.csv", LOOPS / "another-machine" / "samples.csv"):
        times = defaultdict(list)
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                key = row["model"], int(row["world_size"]), row["contender"]
                times[key].append(float(row["iteration_s"]))
        yield from ((*key, statistics.median(values)) for key, values in times.items() if key[1] > 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    named = {fold.name: fold for fold in (*FOLDS, *H100_FOLDS)}
    folds = [of_fold(named[name]) for name in NAMES]
    by_loops = [of_loops(named[name]) for name in ("4 from 1", "4 from 1 and 2")]
    if options.out:
        write(options.out / "folds.csv", COLUMNS, folds)
        write(options.out / "loops.csv", LOOP_COLUMNS, by_loops)
    for columns, rows in ((COLUMNS, folds), (LOOP_COLUMNS, by_loops)):
        print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
        print("\n".join("| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows))


if __name__ == "__main__":
    main()
