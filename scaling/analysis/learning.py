"""Results of trainings: the columns of a convergence cell, the spread over seeds, and the predicted time.

The time to a target is also predicted: time per iteration, of the timed cell that takes the same step, x
iterations to the target. Where an augmented training's step was timed without augmentation alone, that time
is taken, and `prediction_lacks` says so; an augmented step predicts no training without.

Its relative uncertainty is the root of a sum of squares: of half the 95% interval of the iteration time; of
its noise floor, where it is of one launch; and of half the interval of the iterations to the target over
seeds and repeats (Student's t), where there are two or more. Evaluation, and what a training does besides
its steps, is in neither.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from scaling.analysis.columns import Row, by_key
from scaling.analysis.gradient_noise import NOISE_FORMS, noise_scale
from scaling.analysis.samples import CellResult, Floats, TrainingSamples
from scaling.axes import Role, Shared, agree, axis, columns_without
from scaling.measure.statistics import estimate_median, interval_of_launches

REACHED = "reached"
BITS_TARGET = "target_bits_per_byte"  # the key of a target that a test loss has to fall to

_EPOCH_VALUES = (
    *("train_s", "train_j", "learning_rate", "train_loss", "train_accuracy", "test_loss", "test_accuracy"),
)
"""Columns of convergence.csv that `TrainingSamples` has an array of."""

_ENDS = ("", "_low", "_high")
NOISE_VALUES = [f"{form}_scale{end}" for form in NOISE_FORMS for end in _ENDS]
EPOCH_COLUMNS = {
    **dict.fromkeys(("cell_id", "model", "dataset", "aggregator"), "string"),
    **dict.fromkeys(("world_size", "global_batch", "seed", "repeat", "epoch", "samples"), "Int64"),
    **dict.fromkeys((*_EPOCH_VALUES, *NOISE_VALUES), "float64"),
    "state": "string",
}
"""Of convergence.csv: one row an epoch; of a run whose state is not `done`, its epochs so far."""


def convergence_values(cell: CellResult) -> Row:
    trainings, target = cell.trainings, cell.cell.get("target_accuracy")
    reached = [index_of_target(training, cell.cell) for training in trainings]
    bits_target = cell.cell.get(BITS_TARGET)
    last = {
        name: _median(getattr(training, name)[-1] for training in trainings)
        for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "train_s")
    }
    accuracy, test_loss = last.pop("test_accuracy"), last["test_loss"]
    is_of_bytes = cell.cell.get("dataset") == "text" or bits_target is not None
    is_aimed = target is not None or bits_target is not None
    samples = [training.samples(cell.cell["global_batch"]) for training in trainings]
    energies = [training.train_j for training in trainings]
    energy_per_sample = [joules[-1] / count[-1] for joules, count in zip(energies, samples, strict=True)]
    return {
        "epochs": min(len(training.epochs) for training in trainings),
        **last,
        "bits_per_byte": test_loss / math.log(2) if is_of_bytes and test_loss is not None else None,
        "final_test_accuracy": accuracy,
        "seconds_to_target": _median(_at(reached, [training.train_s for training in trainings])),
        "epochs_to_target": _median(_at(reached, [training.epochs for training in trainings])),
        "samples_to_target": _median(_at(reached, samples)),
        "joules_to_target": _median(_at(reached, energies)),
        "target_accuracy": target,
        "target_state": _target_state(cell.cell, trainings, reached) if is_aimed else None,
        "joules_per_sample": _median(energy_per_sample),
        **noise_values(trainings, [slice(None if index is None else index + 1) for index in reached]),
    }


def noise_values(trainings: Sequence[TrainingSamples], epochs: Sequence[slice]) -> Row:
    """The columns of the noise scales over these epochs of the trainings; none where nobody looked."""
    values: Row = {}
    for form in NOISE_FORMS:
        of_form = [getattr(one, form)[chosen] for one, chosen in zip(trainings, epochs, strict=True)]
        if (found := noise_scale(of_form)) is not None:
            values |= {f"{form}_scale{end}": value for end, value in zip(_ENDS, found, strict=True)}
    return values


def index_of_target(training: TrainingSamples, cell: Mapping[str, Any]) -> int | None:
    """The index of the first epoch that reaches the cell's target; None if none does, or without a target."""
    target, bits = cell.get("target_accuracy"), cell.get(BITS_TARGET)
    if bits is not None:
        epochs = np.flatnonzero(training.test_loss <= bits * math.log(2))
    else:
        epochs = np.flatnonzero(training.test_accuracy >= (math.inf if target is None else target))
    return int(epochs[0]) if len(epochs) else None


def _at(reached: Sequence[int | None], values: Sequence[Any]) -> list[float]:
    pairs = zip(reached, values, strict=True)
    return [math.nan if index is None else float(values[index]) for index, values in pairs]


def _target_state(
    cell: Mapping[str, Any], trainings: Sequence[TrainingSamples], reached: Sequence[int | None]
) -> str:
    missed = [training for training, index in zip(trainings, reached, strict=True) if index is None]
    if not missed:
        return REACHED
    epochs = max(len(training.epochs) for training in missed)
    who = f" by {len(missed)} of {len(trainings)} repeats" if len(trainings) > 1 else ""
    return f"not reached{who} in {epochs} epoch{'s' if epochs > 1 else ''}{_at_best(cell, missed)}"


def _at_best(cell: Mapping[str, Any], missed: Sequence[TrainingSamples]) -> str:
    values = [
        training.test_accuracy if cell.get(BITS_TARGET) is None else -training.test_loss / math.log(2)
        for training in missed
    ]
    known = [float(np.nanmax(of_epochs)) for of_epochs in values if np.isfinite(of_epochs).any()]
    if not known or math.isnan(best := max(known)):
        return ""
    in_bits = cell.get(BITS_TARGET) is not None
    return f", at best {-best:.3f} bits a byte" if in_bits else f", at best {100 * best:.2f}%"


def add_seeds_and_predictions(cells: Sequence[CellResult], rows: Mapping[str, Row]) -> None:
    """Adds to the rows of trainings, by cell id, the columns that depend on other cells: `num_seeds`,
    `seed_mean_accuracy`, `seed_sd_accuracy`, `predicted_s_to_target`, its bounds and `prediction_lacks`."""
    trained = [cell for cell in cells if cell.trainings]
    for family in by_key(trained, lambda cell: family_key(rows[cell.cell_id])).values():
        accuracies = [rows[cell.cell_id]["final_test_accuracy"] for cell in family]
        known = [accuracy for accuracy in accuracies if accuracy is not None]
        shared: Row = {"num_seeds": len(family)}
        if len(known) == len(family):
            shared["seed_mean_accuracy"] = float(np.mean(known))
            shared["seed_sd_accuracy"] = float(np.std(known, ddof=1)) if len(known) > 1 else None
        shared.update(_prediction(family, cells, rows))
        for cell in family:
            rows[cell.cell_id].update(shared)


def family_key(row: Row) -> tuple[Any, ...]:
    return (*(row[name] for name in columns_without(Role.RECORDED | Role.REPETITION)), row["target_accuracy"])


def _prediction(family: Sequence[CellResult], cells: Sequence[CellResult], rows: Mapping[str, Row]) -> Row:
    timed = _timed(family[0], cells)
    iterations = [
        math.nan if index is None else float(training.steps[: index + 1].sum())
        for cell in family
        for training in cell.trainings
        for index in [index_of_target(training, cell.cell)]
    ]
    count = _median(iterations)
    if not timed or count is None:
        return {}
    row = max(
        (rows[cell.cell_id] for cell in timed), key=lambda row: (row["iterations"] or 0, row["cell_id"])
    )
    predicted_s = row["iteration_s"] * count
    relative = _relative_half_width(row, iterations)
    ends = {} if relative is None else {"low": -relative, "high": relative}
    bounds = {f"predicted_s_to_target_{end}": predicted_s * math.exp(by) for end, by in ends.items()}
    lacks = None if _augmentation(timed[0]) == _augmentation(family[0]) else "augmentation"
    return {"predicted_s_to_target": predicted_s, **bounds, "prediction_lacks": lacks}


def _timed(trained: CellResult, cells: Iterable[CellResult]) -> list[CellResult]:
    """The timed cells of a training's step: those with its augmentation, otherwise those without."""
    same_step = [
        cell
        for cell in cells
        if cell.launches
        and axis("input_placement").value(cell.cell) == "device"
        and not cell.cell.get("aa_replicate")
        and agree(Shared.TIMED, cell.cell, trained.cell)
    ]
    same_augmentation = [cell for cell in same_step if _augmentation(cell) == _augmentation(trained)]
    return same_augmentation or [cell for cell in same_step if _augmentation(cell) == "none"]


def _augmentation(cell: CellResult) -> Any:
    return axis("augmentation").value(cell.cell)


def half_widths_of_time(row: Row) -> Sequence[float]:
    """Of the logarithm of the time of a step: its interval's, and of one launch, whose interval is that
    within it, the noise floor; none without an interval."""
    if row["iteration_s_low"] is None or row["iteration_s_high"] is None:
        return ()
    floor = row["noise_floor"] if row["repeats"] == 1 else None
    return math.log(row["iteration_s_high"] / row["iteration_s_low"]) / 2, floor or 0.0


def _relative_half_width(row: Row, iterations: Sequence[float]) -> float | None:
    """Half width on the logarithm of the product; None without an interval of the time, or of one run."""
    spread = estimate_median([[count] for count in iterations])
    of_time = half_widths_of_time(row)
    if len(iterations) < 2 or not of_time or spread.low is None or spread.high is None:
        return None
    return math.hypot(*of_time, math.log(spread.high / spread.low) / 2)


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """One row for all seeds of a combination: means of accuracies, medians of the rest, missing where one
    seed lacks it, and the widest interval; the state is that of the seed furthest from done. One seed's row
    is unchanged."""
    families = by_key(rows, family_key)
    return [family[0] if len(family) == 1 else _merged(family) for family in families.values()]


def _merged(rows: Sequence[Row]) -> Row:
    medians = (
        *("train_loss", "train_accuracy", "test_loss", "bits_per_byte", "train_s", "joules_per_sample"),
        *(f"{form}_scale" for form in NOISE_FORMS),
        *(f"{what}_to_target" for what in ("seconds", "epochs", "samples", "joules")),
    )
    states = [row["state"] for row in rows]
    merged = {
        **rows[0],
        **{name: _median(math.nan if row[name] is None else row[name] for row in rows) for name in medians},
    }
    epochs = [row["epochs"] for row in rows if row["epochs"] is not None]
    missed = sum(row["target_state"] not in (None, REACHED) for row in rows)
    merged.update(
        seed=None,
        final_test_accuracy=next((row["seed_mean_accuracy"] for row in rows if row["repeats"]), None),
        num_seeds=sum(bool(row["repeats"]) for row in rows) or None,
        repeats=sum(row["repeats"] or 0 for row in rows),
        epochs=min(epochs, default=None),
        state=next((state for state in ("failed", "running", "planned") if state in states), "done"),
    )
    bounds = [f"predicted_s_to_target{end}" for end in ("", "_low", "_high")]
    for name in ("seed_sd_accuracy", *bounds, "prediction_lacks"):
        merged[name] = next((row[name] for row in rows if row["repeats"]), None)
    seconds = [row["seconds_to_target"] for row in rows]
    low, high = (None, None) if None in seconds else interval_of_launches(seconds)
    merged.update(seconds_to_target_low=low, seconds_to_target_high=high)
    for form in NOISE_FORMS:
        for name, widest in ((f"{form}_scale_low", min), (f"{form}_scale_high", max)):
            ends = [row[name] for row in rows if row["repeats"]]
            merged[name] = widest(ends) if ends and None not in ends else None
    if missed:
        merged["target_state"] = f"not reached by {missed} of {len(rows)} seeds"
    return merged


def epoch_table(cells: Sequence[CellResult]) -> pd.DataFrame:
    """One row per epoch of every training, with EPOCH_COLUMNS; missing values stay missing."""
    rows = [
        row
        for cell in cells
        for training in (*cell.trainings, *cell.begun)
        for row in _epoch_rows(cell, training)
    ]
    return pd.DataFrame(rows, columns=list(EPOCH_COLUMNS), dtype=object).astype(EPOCH_COLUMNS)


def _epoch_rows(cell: CellResult, training: TrainingSamples) -> Iterable[Row]:
    fixed = {name: cell.cell[name] for name in ("world_size", "global_batch", "seed")}
    fixed |= {name: cell.label(name) for name in ("model", "dataset", "aggregator")}
    samples = training.samples(cell.cell["global_batch"])
    (state,) = [record.state for record in cell.records if record.repeat == training.repeat]
    fixed |= {"repeat": training.repeat, "state": state}
    for index, epoch in enumerate(training.epochs):
        arrays: dict[str, Floats] = {name: getattr(training, name) for name in _EPOCH_VALUES}
        values = {name: _known(array[index]) for name, array in arrays.items()}
        values["samples"] = _known(samples[index])
        values |= noise_values([training], [slice(index, index + 1)])
        yield {"cell_id": cell.cell_id, **fixed, "epoch": int(epoch), **values}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _median(values: Iterable[float]) -> float | None:
    """The median; None if a value is missing, because the median of the others would look too good."""
    median = float(np.median(list(values)))
    return None if math.isnan(median) else median
