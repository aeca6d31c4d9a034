"""Steps to a target by batch, predicted from other batches: blind predictions and left-out folds.

    python benchmarks/steps_to_target.py epochs.csv --gather FOLDER...  # writes the CSV
    python benchmarks/steps_to_target.py epochs.csv --without 256,1024  # what the others predict, as JSON
    python benchmarks/steps_to_target.py epochs.csv  # leaves out each batch in turn

A row of the CSV is an epoch of a training. The fit is that of `scaling recommend --objective time-to-target`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import scaling
from scaling.analysis.samples import TrainingSamples
from scaling.analysis.steps_by_batch import BatchSteps, Reached, best_rate, fit_steps, steps_to_target

TARGETS = ["target_accuracy", "target_bits_per_byte"]
CELL = ["model", "optimizer", *TARGETS, "global_batch", "learning_rate", "seed"]


def gathered(folders: list[Path]) -> pd.DataFrame:
    """The epochs of the folders' trainings, ordered."""
    parts = []
    for folder in folders:
        loaded = scaling.load(folder)
        epochs = loaded.samples.drop(columns="learning_rate").merge(
            loaded.cells[["cell_id", *CELL]], on="cell_id"
        )
        epochs["steps"] = (epochs["samples"] / epochs["global_batch"]).round().astype(int)
        parts.append(epochs[[*CELL, "epoch", "steps", "test_accuracy", "test_loss", "train_s"]])
    return pd.concat(parts).sort_values([*CELL, "epoch"])


def batches(epochs: pd.DataFrame) -> dict[int, BatchSteps]:
    """Batch -> its trainings at the best of the rates at which all seeds reach the target."""
    cell = {name: None if pd.isna(epochs.iloc[0][name]) else epochs.iloc[0][name] for name in TARGETS}
    reached: dict[Any, dict[Any, list[Reached | None]]] = {}
    for (batch, rate, _), training in epochs.groupby(["global_batch", "learning_rate", "seed"]):
        none, steps = np.full(len(training), math.nan), np.diff(training["steps"], prepend=0).astype(float)
        accuracy, loss = (training[name].to_numpy(float) for name in ("test_accuracy", "test_loss"))
        number = training["epoch"].to_numpy()
        samples = TrainingSamples(0, number, none, none, accuracy, none, steps, none, none, loss)
        reached.setdefault(batch, {}).setdefault(rate, []).append(steps_to_target(samples, cell))
    found = {batch: best_rate(batch, by_rate) for batch, by_rate in reached.items()}
    return {batch: best for batch, best in found.items() if best is not None}


def by_workload(epochs: pd.DataFrame) -> Iterator[tuple[str, dict[int, BatchSteps]]]:
    for (model, optimizer, *_), rows in epochs.groupby(["model", "optimizer", *TARGETS], dropna=False):
        yield f"{model}, {optimizer}", batches(rows)


def predictions(epochs: pd.DataFrame, without: list[int]) -> dict[str, Any]:
    """Workload -> the fit to its other batches, and the steps that it predicts."""
    found: dict[str, Any] = {}
    for workload, trained in by_workload(epochs):
        known = [one for batch, one in trained.items() if batch not in without]
        if fit := fit_steps(known):
            steps = {str(batch): fit.steps(batch)._asdict() for batch in without}
            fitted = {"least_steps": fit.least._asdict(), "critical_batch": fit.critical._asdict()}
            found[workload] = {"from": [one.batch for one in known], **fitted, "steps": steps}
    return found


def table(epochs: pd.DataFrame) -> pd.DataFrame:
    """One row a workload and batch: measured steps, those predicted by the other batches."""
    rows = []
    for workload, trained in by_workload(epochs):
        for batch, one in trained.items():
            row = {"workload": workload, **one.values(), "steps": ", ".join(f"{n:,.0f}" for n in one.steps)}
            others = [other for other in trained if other != batch]
            if fit := fit_steps([trained[other] for other in others]):
                steps = fit.steps(batch)
                row |= {"outside": not min(others) <= batch <= max(others), **steps._asdict()}
                row["error"] = steps.value / math.exp(one.logs.mean()) - 1
                row["inside"] = sum(steps.low <= each <= steps.high for each in one.steps)
            rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("epochs", type=Path)
    parser.add_argument("--gather", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--without", type=lambda text: [int(batch) for batch in text.split(",")])
    arguments = parser.parse_args()
    if arguments.gather:
        gathered(arguments.gather).to_csv(arguments.epochs, index=False, float_format="%.6g")
        return
    epochs = pd.read_csv(arguments.epochs)
    if arguments.without:
        json.dump(predictions(epochs, arguments.without), sys.stdout, indent=1)
    else:
        print(table(epochs).to_string(index=False))


if __name__ == "__main__":
    main()
