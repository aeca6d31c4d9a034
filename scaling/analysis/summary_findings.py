"""What the summary shows: which setting is fastest, if any, and whether more workers helped.

Two cells differ where the launches that they share show it (`scaling.analysis.study_scatter`). Control arms
are
left out: they exchange nothing, so they bound the others without being a choice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scaling.analysis.columns import (
    SEPARATOR,
    SPEEDUP,
    Row,
    aggregator_name,
    by_key,
    is_control_arm,
    pick,
    shares_gpus,
    to_rows,
    unit_of_workers,
    with_local_updates,
)
from scaling.analysis.decisions import TIE_RATIO, Difference, state_of
from scaling.analysis.findings import Finding
from scaling.analysis.groups import CellGroup, group_rows
from scaling.analysis.learning import NOISE_VALUES, over_seeds
from scaling.analysis.samples import CellResult
from scaling.analysis.study_scatter import StudyScatter
from scaling.measure.statistics import ONE_LAUNCH

FEW = 3  # so many cells of a host are named

MOST_HOSTS = 4


@dataclass(frozen=True)
class _Throughput:
    """One row as seconds per sample, which compares strong and weak scaling alike."""

    row: Row
    name: str
    scatter: StudyScatter

    @property
    def sample_s(self) -> float:
        return float(self.row["iteration_s"] / self.row["global_batch"])

    def values(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": unit_of_workers(self.row),
            **pick(self.row, "world_size", "iteration_s", "iteration_s_low", "iteration_s_high", *SPEEDUP),
            "one_launch": self.row["interval_method"] == ONE_LAUNCH,
        }

    def difference(self, other: _Throughput) -> Difference:
        batches = math.log(self.row["global_batch"] / other.row["global_batch"])
        return self.scatter.difference(self.row["cell_id"], other.row["cell_id"], batches)


def summary_findings(
    table: pd.DataFrame, scatter: StudyScatter, num_cores: int | None = None, lossy: Collection[str] = ()
) -> list[Finding]:
    """What a summary table shows, most important first. `num_cores`: of a node, if known; `lossy`: ids of
    cells with a lossy exchange: no rivals of an exact one, but named."""
    rows = to_rows(table)
    if not any(row["repeats"] for row in rows):
        return [Finding("nothing_done"), *_unfinished(rows)]
    findings: list[Finding] = []
    for group in group_rows(rows):
        if group.kind == "iteration":
            findings += _throughput(group, scatter, lossy)
        elif group.kind == "convergence":
            cells, given = tuple(row["cell_id"] for row in group.rows), {"given": group.given}
            findings += [Finding(kind, cells, {**given, **values}) for kind, values in _found(group)]
    return [
        *findings,
        *scatter.remarks,
        *_oversubscribed(rows, num_cores),
        *_several_hosts(rows),
        *_unfinished(rows),
    ]


def _throughput(group: CellGroup, scatter: StudyScatter, lossy: Collection[str]) -> Iterator[Finding]:
    timed = [row for row in group.rows if row["iteration_s"] is not None]
    done = [_Throughput(row, group.name(row), scatter) for row in timed]
    several = sorted(
        (setting for setting in done if setting.row["world_size"] > 1 and not is_control_arm(setting.row)),
        key=lambda setting: setting.sample_s,
    )
    singles = [throughput for throughput in done if throughput.row["world_size"] == 1]
    # The cell without exchange; where it was not measured, the fastest other one.
    plain = [setting for setting in singles if aggregator_name(setting.row["aggregator"]) == "none"]
    single = min(plain or singles, key=lambda setting: setting.sample_s, default=None)
    cells = tuple(row["cell_id"] for row in group.rows)
    if several:
        best, *others = several
        values = {
            "given": group.given,
            "best": best.values(),
            "is_weak": best.row["scaling"] == "weak",
            **_compared(best, others, lossy),
            "gain": _gain(best, single),
            "single": None if single is None else single.values(),
        }
        yield Finding("highest_throughput", cells, values)
    elif single:
        yield Finding("one_worker_alone", cells, {"given": group.given, "single": single.values()})


def _compared(best: _Throughput, others: Sequence[_Throughput], lossy: Collection[str]) -> dict[str, Any]:
    """The best row's state, and the others not shown to be slower; `rivals`: by TIE_RATIO at most."""
    is_exact = best.row["cell_id"] not in lossy
    exact = [other for other in others if not is_exact or other.row["cell_id"] not in lossy]
    differences = [best.difference(other) for other in others]
    compared = [difference for other, difference in zip(others, differences, strict=True) if other in exact]
    state: str = state_of(compared)
    not_slower = [other for other, one in zip(others, differences, strict=True) if not one.is_larger]
    near = [other for other, one in zip(exact, compared, strict=True) if one.is_same()]
    if state == "best" and near:
        state = "near"
    return {
        "state": state,
        "rivals": [_setting(other) for other in (near if state == "near" else not_slower) if other in exact],
        "lossy_rivals": [_setting(other) for other in not_slower if other not in exact],
        "tie_ratio": TIE_RATIO,
    }


def _setting(throughput: _Throughput) -> dict[str, Any]:
    row = throughput.row
    return {"name": throughput.name, "world_size": row["world_size"], "unit": unit_of_workers(row)}


def _gain(best: _Throughput, single: _Throughput | None) -> str:
    if single is None:
        return "not_measured"
    difference = best.difference(single)
    if difference.error is None:
        return "one_launch"
    if difference.is_same():
        return "same"
    if not difference.is_significant:
        return "unresolved"
    return "slower" if difference.log_ratio < 0 else "faster"


def _oversubscribed(rows: Sequence[Row], num_cores: int | None) -> Iterator[Finding]:
    if num_cores is None:
        return
    crowded = [
        row
        for row in rows
        if row["device"] == "cpu"
        and row["world_size"] // (row["num_nodes"] or 1) * row["threads"] > num_cores
    ]
    if crowded:
        sizes = sorted({(row["world_size"], row["threads"]) for row in crowded})
        values = {
            "num_cores": num_cores,
            "settings": [{"world_size": size, "threads": threads} for size, threads in sizes],
        }
        yield Finding("more_threads_than_cores", tuple(row["cell_id"] for row in crowded), values)


def _several_hosts(rows: Sequence[Row]) -> Iterator[Finding]:
    """Machines of one type differ in speed, and so does one after a restart: by a host's start, if recorded,
    since names of containers change on one machine."""
    runs = [(host, row) for row in rows if row["hosts"] for host in row["hosts"].split(SEPARATOR)]
    by_start = by_key(runs, lambda run: run[0].rpartition("/")[2])
    if len(by_start) < 2:
        return
    starts = [cells[0][0] for cells in by_start.values()]
    named = starts
    if len({host.partition("/")[0] for host in starts}) == 1:
        boots = [host.partition("/")[2] for host in starts]
        named = [f"boot {boot}" if boot else "an unrecorded boot" for boot in boots]
    hosts = [
        {"host": name, "num_cells": len(cells), "settings": _few_settings([row for _, row in cells])}
        for name, cells in zip(named, by_start.values(), strict=True)
    ]
    values = {"hosts": hosts[:MOST_HOSTS], "num_more": max(0, len(hosts) - MOST_HOSTS)}
    yield Finding("several_hosts", (), values)


def _few_settings(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The aggregators and world sizes of the rows, each once; none if there are many rows."""
    if len(rows) > FEW:
        return []
    settings = dict.fromkeys((row["aggregator"], row["world_size"]) for row in rows if row["aggregator"])
    return [{"name": name, "world_size": size} for name, size in settings]


def _unfinished(rows: Sequence[Row]) -> Iterator[Finding]:
    for state in ("failed", "running", "planned"):
        cells = tuple(row["cell_id"] for row in rows if row["state"] == state)
        if cells:
            yield Finding(
                "unfinished", cells, {"num_cells": len(rows), "state": state, "num_unfinished": len(cells)}
            )


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
                "settings": [{**setting(row), **pick(row, *names)} for row in predicted],
                "num_lacking": len(without_augmentation(predicted)),
            },
        )
    if noisy := [row for row in done if row["noise_scale_low"] is not None]:
        names = ("global_batch", *NOISE_VALUES)
        yield "noise_scale", {"settings": [{**setting(row), **pick(row, *names)} for row in noisy]}
    if shared := [row for row in done if shares_gpus(row)]:
        yield "gpus_shared", {"settings": [pick(row, "world_size", "workers_per_gpu") for row in shared]}


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
    return [setting(row) for row in rows]


def _scored(row: Row) -> dict[str, Any]:
    return {**setting(row), **pick(row, "final_test_accuracy", "seed_sd_accuracy", "num_seeds", "epochs")}
