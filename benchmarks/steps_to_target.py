"""Steps to a target by batch, predicted from other batches: blind predictions and left-out folds.

    python benchmarks/steps_to_target.py epochs.csv --gather FOLDER...  # writes the CSV
    python benchmarks/steps_to_target.py epochs.csv --without 256,1024  # what the others predict, as JSON
    python benchmarks/steps_to_target.py epochs.csv  # leaves out each batch in turn
    python benchmarks/steps_to_target.py epochs.csv... --times FOLDER   # and seconds, with timed steps

A row of the CSV is an epoch of a training. The fit is that of `scaling recommend --objective time-to-target`.

With `--times` a fold is a model and optimizer whose fit lacks one batch, or two. Of the pairs of workers and
batch whose step was timed and whose steps are known it takes that of the fewest predicted seconds, the timed
step times the fit's steps. Its measured seconds are put over the fewest measured ones: of the steps in the
CSV times the timed step, and once more of the trainings in the folder, timed from start to target.
Batches that reach the target within their first epoch, where it is not evaluated, have no measured steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import scaling
from scaling.analysis.columns import Row, is_aa_replicate, is_control_arm, shares_gpus, to_rows
from scaling.analysis.critical_batch import WorkersAndBatch
from scaling.analysis.samples import TrainingSamples
from scaling.analysis.seed_noise import is_lossy
from scaling.analysis.steps_by_batch import (
    BatchSteps,
    Fitted,
    Reached,
    best_rate,
    fit_steps,
    steps_to_target,
)
from scaling.analysis.summary import read_study
from scaling.store import Snapshot

NEAR = 1.1  # a choice of at most so many times the fewest seconds is good
ONE_EPOCH = 1 / 12  # variance of log steps where the target comes after one epoch; larger if sooner
Place = tuple[int, int]  # workers, batch
TARGETS = ["target_accuracy", "target_bits_per_byte"]
CELL = ["model", "optimizer", *TARGETS, "global_batch", "learning_rate", "seed"]


def gathered(folders: list[Path]) -> pd.DataFrame:
    """The epochs of the folders' trainings of one worker, ordered."""
    parts = []
    for folder in folders:
        loaded = scaling.load(folder)
        samples, cells = loaded.samples.drop(columns="learning_rate", errors="ignore"), loaded.cells
        alone = cells.loc[(cells.kind == "convergence") & (cells.world_size == 1), ["cell_id", *CELL]]
        epochs = samples.merge(alone, on="cell_id")
        epochs["steps"] = (epochs["samples"] / epochs["global_batch"]).round().astype(int)
        parts.append(epochs[[*CELL, "epoch", "steps", "test_accuracy", "test_loss", "train_s"]])
    return pd.concat(parts).sort_values([*CELL, "epoch"])


def read_epochs(paths: Sequence[Path], bits: float | None = None) -> pd.DataFrame:
    epochs = pd.concat(map(pd.read_csv, paths))
    if bits is not None:
        given = epochs["target_bits_per_byte"]
        epochs["target_bits_per_byte"] = given.where(given.isna(), bits)
    return epochs


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


def timed_steps(rows: Sequence[Row], lossy: Sequence[str]) -> dict[str, dict[Place, Row]]:
    """Workload -> workers and batch -> the fastest timed step of exact exchanges, each worker on its own."""
    found: dict[str, dict[Place, Row]] = {}
    for row in rows:
        is_other = (
            is_aa_replicate(row)
            or shares_gpus(row)
            or row["cell_id"] in lossy
            or (row["sync_every"] or 1) > 1
        )
        if row["kind"] != "iteration" or not row["iteration_s"] or is_other:
            continue
        if row["world_size"] > 1 and is_control_arm(row):
            continue
        by_place = found.setdefault(f"{row['model']}, {row['optimizer']}", {})
        place = (int(row["world_size"]), int(row["global_batch"]))
        by_place[place] = min(row, by_place.get(place, row), key=lambda one: float(one["iteration_s"]))
    return found


def read_times(folder: Path, bits: float | None = None) -> tuple[dict[str, dict[Place, Row]], pd.DataFrame]:
    """The timed steps, and a row a training that reached the target: its steps, and seconds to there.
    `bits` is another target of those that have one in bits a byte."""
    study = read_study(Snapshot(folder))
    rows, cells = to_rows(study.table), {cell.cell_id: cell for cell in study.cells}
    trainings = []
    for row in rows:
        run = cells[row["cell_id"]]
        has_bits = bits is not None and run.cell.get("target_bits_per_byte") is not None
        cell = {**run.cell, "target_bits_per_byte": bits} if has_bits else run.cell
        for training in run.trainings:
            if not (reached := steps_to_target(training, cell)):
                continue
            stops = [0.0, *np.cumsum(training.steps)]
            seconds = np.interp(reached[0], stops, [0.0, *training.train_s])
            seconds = seconds if reached[1] <= ONE_EPOCH else math.nan
            own = {name: row[name] for name in ("world_size", "global_batch", "seed")}
            own |= {"workers_per_gpu": row["workers_per_gpu"] or 1, "rate": row["learning_rate"]}
            own |= {"workload": f"{row['model']}, {row['optimizer']}", "steps": reached[0]}
            trainings.append({**own, "seconds": float(seconds)})
    lossy = [name for name, cell in cells.items() if is_lossy(cell)]
    return timed_steps(rows, lossy), pd.DataFrame(trainings)


def seconds_of(row: Row, steps: Fitted) -> Fitted:
    return WorkersAndBatch(row, steps, is_extrapolated=False, is_own=False).seconds


def chosen_over_best(predicted: Mapping[Place, float], measured: Mapping[Place, float]) -> dict[str, Any]:
    """Of the measured places: the best by prediction, the best, and the ratio of measured seconds."""
    choice, best = (min(measured, key=lambda place: of[place]) for of in (predicted, measured))
    return {"choice": choice, "best": best, "over_best": measured[choice] / measured[best]}


def folds(
    epochs: pd.DataFrame, timed: Mapping[str, Mapping[Place, Row]], trainings: pd.DataFrame
) -> pd.DataFrame:
    """One row a workload and one or two batches that its fit lacks."""
    rows = []
    for workload, trained in by_workload(epochs):
        known = [batch for batch, one in trained.items() if one.evaluation <= ONE_EPOCH]
        places = {place: row for place, row in timed.get(workload, {}).items() if place[1] in known}
        if not places:
            continue
        own = trainings[(trainings.workload == workload) & trainings.seconds.notna()]
        by_training = own.groupby(["world_size", "global_batch"]).seconds.mean().to_dict()
        mean = {batch: math.exp(one.logs.mean()) for batch, one in trained.items()}
        measured = {place: row["iteration_s"] * mean[place[1]] for place, row in places.items()}
        whole = {place: by_training[place] for place in places if place in by_training}
        for left_out in [*itertools.combinations(trained, 1), *itertools.combinations(trained, 2)]:
            if fit := fit_steps([one for batch, one in trained.items() if batch not in left_out]):
                predicted = {at: seconds_of(row, fit.steps(at[1])).value for at, row in places.items()}
                row = {"workload": workload, "left_out": left_out, **chosen_over_best(predicted, measured)}
                of_trainings = chosen_over_best(predicted, whole) if whole else {}
                rows.append(row | {f"trained_{name}": value for name, value in of_trainings.items()})
    return pd.DataFrame(rows)


def against_trainings(
    epochs: pd.DataFrame, timed: Mapping[str, Mapping[Place, Row]], trainings: pd.DataFrame
) -> pd.DataFrame:
    """The folder's trainings with the seconds that a fit without their batch predicts, and their steps over
    those of one worker of the same batch, rate and seed."""
    fits = {}
    for workload, trained in by_workload(epochs):
        for left_out in trained:
            fits[workload, left_out] = fit_steps([one for one in trained.values() if one.batch != left_out])
    same = ["workload", "global_batch", "rate", "seed"]
    alone = trainings[trainings.world_size == 1].groupby(same).steps.mean()
    rows = []
    for one in trainings.to_dict("records"):
        key = tuple(one[name] for name in same)
        row: dict[Any, Any] = {**one, "over_alone": one["steps"] / alone[key] if key in alone else math.nan}
        step = timed.get(one["workload"], {}).get((one["world_size"], one["global_batch"]))
        fit = fits.get((one["workload"], one["global_batch"]))
        if step and fit and math.isfinite(one["seconds"]):
            found = seconds_of(step, fit.steps(one["global_batch"]))
            row |= {"error": found.value / one["seconds"] - 1, **found._asdict()}
            row["inside"] = found.low <= one["seconds"] <= found.high
        rows.append(row)
    return pd.DataFrame(rows)


def said(folded: pd.DataFrame, trained: pd.DataFrame) -> Iterator[str]:
    """What the two tables come to."""
    for count, some in folded.groupby(folded.left_out.map(len)):
        for name in ("over_best", "trained_over_best"):
            known = [*some[name].dropna()] if name in some else []
            yield f"{count} left out, {name}: {sum(one <= NEAR for one in known)} of {len(known)} within 10%"
    predicted = trained.dropna(subset="error") if "error" in trained else trained[:0]
    for size, some in predicted.groupby("world_size"):
        error, held = some.error.abs().median(), int(some.inside.sum())
        yield f"{size} workers, seconds: median error {error:.1%}, {held} of {len(some)} inside"
    for (size, shared), some in trained[trained.world_size > 1].groupby(["world_size", "workers_per_gpu"]):
        off = (some.over_alone.dropna() - 1).abs()
        yield (
            f"{size} workers, {shared} a GPU: steps of {len(off)} trainings differ from one worker's by "
            f"{off.median():.1%} (median), {off.max():.1%} (most)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("epochs", type=Path, nargs="+")
    parser.add_argument("--gather", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--without", type=lambda text: [int(batch) for batch in text.split(",")])
    parser.add_argument("--times", type=Path, metavar="FOLDER")
    parser.add_argument("--bits", type=float, help="another target of workloads that have one in bits a byte")
    parser.add_argument("--only", default="", help="workloads with this in their name")
    arguments = parser.parse_args()
    if arguments.gather:
        gathered(arguments.gather).to_csv(arguments.epochs[0], index=False, float_format="%.6g")
        return
    epochs = read_epochs(arguments.epochs, arguments.bits)
    epochs = epochs[epochs["model"].str.contains(arguments.only, regex=False)]
    if arguments.without:
        json.dump(predictions(epochs, arguments.without), sys.stdout, indent=1)
    elif arguments.times:
        timed, trainings = read_times(arguments.times, arguments.bits)
        folded = folds(epochs, timed, trainings)
        if folded.empty:
            parser.error(
                f"no fold: {arguments.times} timed no workload of four batches of {arguments.epochs}"
            )
        trained = against_trainings(epochs, timed, trainings)
        print(
            folded.to_string(index=False), trained.to_string(index=False), *said(folded, trained), sep="\n\n"
        )
    else:
        print(table(epochs).to_string(index=False))


if __name__ == "__main__":
    main()
