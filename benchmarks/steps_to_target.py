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
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import scaling
from scaling.analysis.critical_batch import BatchSteps, Fitted, fit_steps, steps_to_target
from scaling.analysis.samples import TrainingSamples

WORKLOAD = ["model", "optimizer", "target_accuracy", "target_bits_per_byte"]
CELL = [*WORKLOAD, "global_batch", "learning_rate", "seed"]


def gathered(folders: list[Path]) -> pd.DataFrame:
    """The epochs of the folders' trainings, ordered."""
    parts = []
    for folder in folders:
        loaded = scaling.load(folder)
        cells = loaded.cells[["cell_id", *CELL]]
        epochs = loaded.samples.drop(columns="learning_rate").merge(cells, on="cell_id")
        epochs["steps"] = (epochs["samples"] / epochs["global_batch"]).round().astype(int)
        parts.append(epochs[[*CELL, "epoch", "steps", "test_accuracy", "test_loss", "train_s"]])
    return pd.concat(parts).sort_values([*CELL, "epoch"])


def batches(epochs: pd.DataFrame) -> dict[int, BatchSteps]:
    """Batch -> its trainings at the best of the rates at which all seeds reach the target."""
    target = epochs.iloc[0][["target_accuracy", "target_bits_per_byte"]]
    cell = {str(name): None if pd.isna(value) else value for name, value in target.items()}
    reached: dict[Any, dict[Any, list[tuple[float, float] | None]]] = {}
    for (batch, rate, _), training in epochs.groupby(["global_batch", "learning_rate", "seed"]):
        none, steps = np.full(len(training), math.nan), np.diff(training["steps"], prepend=0).astype(float)
        accuracy, loss = training["test_accuracy"].to_numpy(float), training["test_loss"].to_numpy(float)
        samples = TrainingSamples(
            0, training["epoch"].to_numpy(), none, none, accuracy, none, steps, none, none, loss
        )
        reached.setdefault(batch, {}).setdefault(rate, []).append(steps_to_target(samples, cell))
    found = {}
    for batch, by_rate in reached.items():
        complete = {rate: np.array(each, float) for rate, each in by_rate.items() if None not in each}
        if complete:
            rate = min(complete, key=lambda rate: complete[rate][:, 0].mean())
            steps, variances = complete[rate].T
            rates = tuple(sorted(by_rate))
            found[batch] = BatchSteps(batch, rate, rates, tuple(steps), float(variances.mean()))
    return found


def fold(found: dict[int, BatchSteps], left_out: int) -> tuple[Fitted, bool] | None:
    """Steps of a batch by the others, and whether it is outside them; None where these are too few."""
    others = [one for batch, one in found.items() if batch != left_out]
    fit = fit_steps(others)
    known = [one.batch for one in others]
    return (fit.steps(left_out), not min(known) <= left_out <= max(known)) if fit else None


def predictions(epochs: pd.DataFrame, without: list[int]) -> dict[str, object]:
    """Workload -> the fit to its other batches, and the steps that it predicts."""
    found: dict[str, object] = {}
    for (model, optimizer, *_), rows in epochs.groupby(WORKLOAD, dropna=False):
        known = [one for batch, one in batches(rows).items() if batch not in without]
        if fit := fit_steps(known):
            steps = {str(batch): fit.steps(batch)._asdict() for batch in without}
            fitted = {"least_steps": fit.least._asdict(), "critical_batch": fit.critical._asdict()}
            found[f"{model}, {optimizer}"] = {"from": [one.batch for one in known], **fitted, "steps": steps}
    return found


def table(epochs: pd.DataFrame) -> pd.DataFrame:
    """One row a workload and batch: measured steps, those predicted by the other batches."""
    rows = []
    for (model, optimizer, *_), of_one in epochs.groupby(WORKLOAD, dropna=False):
        found = batches(of_one)
        for batch, one in found.items():
            row = {"model": model, "optimizer": optimizer, "batch": batch, "rate": one.rate}
            row |= {"rate is at end": one.rate in (one.rates[0], one.rates[-1])}
            row |= {"steps": ", ".join(f"{steps:,.0f}" for steps in one.steps)}
            if guess := fold(found, batch):
                steps, row["outside"] = guess
                row |= {"predicted": round(steps.value), "low": round(steps.low), "high": steps.high}
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
