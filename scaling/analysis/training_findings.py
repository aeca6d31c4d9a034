"""What trainings showed: final accuracies, targets reached, and runs that are not finished."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scaling.analysis.columns import Row, shares_gpus, unit_of_workers, with_local_updates
from scaling.analysis.findings import Finding
from scaling.analysis.groups import CellGroup
from scaling.analysis.learning import over_seeds
from scaling.analysis.samples import CellResult


def training_findings(group: CellGroup) -> Iterator[Finding]:
    """The findings of a group of trainings."""
    cells = tuple(row["cell_id"] for row in group.rows)
    for kind, values in _found(group):
        yield Finding(kind, cells, {"given": group.given, **values})


def _found(group: CellGroup) -> Iterator[tuple[str, dict[str, Any]]]:
    done = [row for row in over_seeds(group.rows) if row["repeats"]]
    scored = sorted(
        (row for row in done if row["final_test_accuracy"] is not None),
        key=lambda row: float(row["final_test_accuracy"]),
    )
    if scored:
        num_once = sum(row["repeats"] == 1 for row in scored)
        ends = {"worst": _scored(scored[0]), "best": _scored(scored[-1])}
        yield "final_accuracy", {"num_settings": len(scored), "num_once": num_once, **ends}
    if diverged := [row for row in done if row["train_loss"] is None]:
        yield "loss_not_finite", {"settings": settings(diverged)}
    yield from _targets([row for row in done if row["target_accuracy"] is not None])
    if predicted := [row for row in done if row["predicted_s_to_target"] is not None]:
        bounds = (f"predicted_s_to_target{end}" for end in ("", "_low", "_high"))
        names = (*bounds, "seconds_to_target", "prediction_lacks")
        yield (
            "predicted_seconds_to_target",
            {
                "settings": [{**setting(row), **{name: row[name] for name in names}} for row in predicted],
                "num_lacking": len(without_augmentation(predicted)),
            },
        )
    if noisy := [row for row in done if row["noise_scale_low"] is not None]:
        names = ("global_batch", "noise_scale", "noise_scale_low", "noise_scale_high")
        yield "noise_scale", {"settings": [{**setting(row), **_values(row, names)} for row in noisy]}
    if shared := [row for row in done if shares_gpus(row)]:
        columns = ("world_size", "workers_per_gpu")
        yield "gpus_shared", {"settings": [{name: row[name] for name in columns} for row in shared]}


def _targets(aimed: Sequence[Row]) -> Iterator[tuple[str, dict[str, Any]]]:
    for target in sorted({row["target_accuracy"] for row in aimed}):
        rows = [row for row in aimed if row["target_accuracy"] == target]
        missed = settings(row for row in rows if row["epochs_to_target"] is None)
        yield "target_reached", {"target_accuracy": target, "num_settings": len(rows), "missed": missed}


def unfinished_trainings(groups: Sequence[CellGroup], cells: Mapping[str, CellResult]) -> Iterator[Finding]:
    """The progress of each training that runs, or was interrupted and will resume."""
    for group in groups:
        for row in group.rows if group.kind == "convergence" else ():
            cell = cells[row["cell_id"]]
            for training in cell.begun:
                loss, accuracy = float(training.train_loss[-1]), float(training.test_accuracy[-1])
                values = {
                    "given": group.given,
                    **setting(row),
                    "seed": row["seed"] if group.differs("seed") else None,
                    "repeat": training.repeat,
                    "epoch": int(training.epochs[-1]),
                    "epochs": cell.cell["epochs"],
                    "is_finite": math.isfinite(loss) and math.isfinite(accuracy),
                    "train_loss": loss,
                    "test_accuracy": accuracy,
                }
                yield Finding("unfinished_training", (cell.cell_id,), values)


def without_augmentation(rows: Iterable[Row]) -> list[Row]:
    """Trainings with augmentation for which the predicted time to target uses a timed step without it."""
    return [row for row in rows if row["prediction_lacks"] is not None]


def setting(row: Row) -> dict[str, Any]:
    """A row's aggregator and world size, as findings name them."""
    return {"name": with_local_updates(row), "world_size": row["world_size"], "unit": unit_of_workers(row)}


def settings(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The settings of several rows."""
    return [setting(row) for row in rows]


def _values(row: Row, names: Iterable[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _scored(row: Row) -> dict[str, Any]:
    names = ("final_test_accuracy", "seed_sd_accuracy", "num_seeds", "epochs")
    return {**setting(row), **{name: row[name] for name in names}}
