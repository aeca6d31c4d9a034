"""What a study asks, and what it measured about that: rows of a table, a workload and link each.

DDP is the library's all-reduce in an overlapped step; where that was not timed, its fastest all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, get_args

import pandas as pd

from scaling.analysis.candidates import MEMORY, TIME, CandidateSet, workloads
from scaling.analysis.columns import DEVICE, TRANSFER, Row, by_key, is_control_arm, is_of_older_code, to_rows
from scaling.analysis.critical_batch import learning_plans
from scaling.analysis.findings import Finding
from scaling.analysis.noise import scatter_of
from scaling.analysis.recommend import recommend
from scaling.analysis.samples import CellResult
from scaling.analysis.seed_noise import is_lossy
from scaling.analysis.study_scatter import StudyScatter
from scaling.axes import Question

MANY_BUCKETS = 4  # a study with so many sizes of one aggregator's buckets asks which one

SHARDED = ("zero", "fsdp")


def question_of(study: Mapping[str, Any], rows: Sequence[Row]) -> Question:
    """The study's own key, or what its cells are fit to answer."""
    asked: Question
    for asked in get_args(Question):
        if study.get("question") == asked:
            return asked
    kinds = {row["kind"] for row in rows}
    if kinds <= {TRANSFER, DEVICE}:
        return "devices" if DEVICE in kinds else "transfer"
    timed = [row for row in rows if row["kind"] == "iteration"]
    if not timed:
        has_target = any(row["target_accuracy"] is not None for row in rows)
        return "time_to_target" if has_target else "compression"
    if any((row["aggregator"] or "").startswith(SHARDED) for row in timed):
        return "memory"
    if len({row["bucket_mb"] for row in timed if row["aggregator"] == "all_reduce"}) >= MANY_BUCKETS:
        return "buckets"
    settings = {(row["aggregator"], row["step"]) for row in timed if not is_control_arm(row)}
    has_single = any(row["world_size"] == 1 for row in timed)
    return "speedup" if has_single or len(settings) < 2 else "aggregator"


def _values(given: Mapping[str, Any], row: Row) -> dict[str, Any]:
    names = ("world_size", "peer_access", "iteration_s", "memory_peak_bytes", "device", "step")
    return {"given": given, **{name: row[name] for name in names}}


def answers(question: Question, table: pd.DataFrame, cells: Sequence[CellResult]) -> list[Finding]:
    """A finding per row of the answer's table, of what `build_table` made; none where a verdict answers."""
    if question == "memory":
        return [*_memory(table, cells)]
    if question == "buckets":
        return [*_buckets(to_rows(table), cells)]
    rows, by_id = to_rows(table), {cell.cell_id: cell for cell in cells}
    if question == "time_to_target":
        found = [plan.by_seconds("seconds") for plan in learning_plans(rows, by_id) if plan.settings]
        return [replace(one, kind="answer_target", cells=one.cells[:1]) for one in found]
    if question not in ("aggregator", "compression"):
        return []
    trained, scatter = [*_trained(rows, by_id)], scatter_of(cells)
    trainings = by_key([one.values for one in trained], itemgetter(*_TRAINING))
    found = []
    for given, ddp, others in _measured(rows, cells):
        lossy = [row for row in others if is_lossy(by_id[row["cell_id"]])]
        exact = [row for row in others if row not in lossy]
        best = {name: _best(ddp, some, scatter) for name, some in (("exact", exact), ("lossy", lossy))}
        if best["lossy"]:
            steps = {None, *(row["step"] for row in exact)}
            best["lossy"] |= _accuracy_of(trainings, best["lossy"])
            best["lossy"]["is_alone"] = best["lossy"]["step"] not in steps  # nothing exact has such a step
        if any(best.values()):
            chosen = (*(one["cell_id"] for one in best.values() if one), ddp["cell_id"])
            found.append(Finding("answer_aggregator", chosen, {**_values(given, ddp), **best}))
    if question == "compression" or not any(one.values["exact"] for one in found):
        lossy_first = [(one, [cell for cell in one.cells if is_lossy(by_id[cell])]) for one in found]
        found = [
            replace(one, kind="answer_compression", cells=tuple(dict.fromkeys((*first, *one.cells))))
            for one, first in lossy_first
        ]
    return found or (trained if question == "compression" else [])


_TRAINING = ("model", "dataset", "aggregator")


def _accuracy_of(
    trainings: Mapping[Any, Sequence[Mapping[str, Any]]], timed: Mapping[str, Any]
) -> dict[str, Any]:
    """What it lost where it was trained: with as many workers, else with the most (`lost_on`)."""
    found = trainings.get(itemgetter(*_TRAINING)(timed), [])
    size = timed["world_size"]
    best = max(found, key=lambda one: (one["world_size"] == size, one["world_size"]), default=None)
    if best is None:
        return {"lost": None, "lost_on": None}
    return {"lost": best["lost"], "lost_on": None if best["world_size"] == size else best["world_size"]}


def _measured(
    rows: Sequence[Row], cells: Sequence[CellResult]
) -> Iterator[tuple[Mapping[str, Any], Row, list[Row]]]:
    """What is given, and the timed settings on one link and the most workers: DDP's, and the others."""
    for workload in workloads(TIME, rows, cells):
        by_link = by_key(_settings(workload), lambda row: row["peer_access"])
        for _, same in sorted(by_link.items(), key=lambda link: link[0] is False):  # host-only last
            size = max(row["world_size"] for row in same)
            most = [row for row in same if row["world_size"] == size > 1]
            of_library = [row for row in most if row["aggregator"] == "all_reduce"]
            ddp = min(
                of_library, key=lambda row: (row["step"] != "overlapped", row["iteration_s"]), default=None
            )
            if ddp is not None:
                own = (ddp["aggregator"], ddp["step"])
                others = [row for row in most if (row["aggregator"], row["step"]) != own]
                yield workload.given, ddp, others


def _settings(workload: CandidateSet) -> list[Row]:
    """All that was timed, lossy ones of unknown accuracy too; no control arm, nothing of older code."""
    left_out = [one.row for one in workload.excluded if one.row is not None]
    return [
        row
        for row in (*(one.row for one in workload.candidates), *left_out)
        if row["iteration_s"] is not None and not is_control_arm(row) and not is_of_older_code(row)
    ]


def _best(ddp: Row, others: Sequence[Row], scatter: StudyScatter) -> dict[str, Any] | None:
    """The fastest of them, and how many times as fast as DDP it is, with the interval of that."""
    best = min(others, key=lambda row: float(row["iteration_s"]), default=None)
    if best is None:
        return None
    interval = scatter.difference(ddp["cell_id"], best["cell_id"]).interval
    return {
        **{name: best[name] for name in ("cell_id", "aggregator", "model", "dataset", "world_size")},
        "step": best["step"] if best["step"] != ddp["step"] else None,
        "iteration_s": best["iteration_s"],
        "times": ddp["iteration_s"] / best["iteration_s"],
        "interval": interval and (1 / interval[1], 1 / interval[0]),
    }


def _memory(table: pd.DataFrame, cells: Sequence[CellResult]) -> Iterator[Finding]:
    measured = [*_measured(to_rows(table), cells)]
    by_workload = {str(given): ddp for given, ddp, _ in reversed(measured)}  # the first link of each
    for found in recommend(table, cells, MEMORY):
        ddp = by_workload.get(str(found.workload))
        if found.choice is None or ddp is None or ddp["memory_peak_bytes"] is None:
            continue
        names = ("aggregator", "world_size", "memory_peak_bytes", "iteration_s", "peer_access")
        choice = {name: found.choice.row[name] for name in names}
        values = {**_values(found.workload, ddp), "choice": choice}
        yield Finding("answer_memory", (found.choice.cell_id, ddp["cell_id"]), values)


def _buckets(rows: Sequence[Row], cells: Sequence[CellResult]) -> Iterator[Finding]:
    names, scatter = ("bucket_mb", "iteration_s"), scatter_of(cells)
    for workload in workloads(TIME, rows, cells):
        several = [row for row in _settings(workload) if row["world_size"] > 1]
        timed = [row for row in several if row["bucket_mb"] and row["aggregator"] == "all_reduce"]
        for same in by_key(timed, lambda row: (row["peer_access"], row["world_size"], row["step"])).values():
            by_time = sorted(same, key=lambda row: float(row["iteration_s"]))
            if len({row["bucket_mb"] for row in same}) > 1:
                best, worst = ({name: row[name] for name in names} for row in (by_time[0], by_time[-1]))
                values = _values(workload.given, by_time[0])
                first = by_time[0]["cell_id"]
                differences = [scatter.difference(first, row["cell_id"]) for row in by_time[1:]]
                unsure = [
                    row["bucket_mb"]
                    for row, one in zip(by_time[1:], differences, strict=True)
                    if one.error is not None and not one.is_larger
                ]
                values |= {"best": best, "worst": worst, "not_shown_slower": sorted(unsure)}
                values |= {"times": worst["iteration_s"] / best["iteration_s"]}
                values |= {"interval": differences[-1].interval}
                values["num_launches"] = min(int(row["repeats"] or 1) for row in same)
                yield Finding("answer_buckets", tuple(row["cell_id"] for row in by_time), values)


def _trained(rows: Sequence[Row], cells: Mapping[str, CellResult]) -> Iterator[Finding]:
    """Trainings of one seed each with an accuracy after the last epoch, against the best exact one."""
    shared = ("model", "dataset", "world_size", "peer_access")
    names = (*shared, "aggregator", "final_test_accuracy", "train_s")
    done = [row for row in rows if row["kind"] == "convergence" and row["final_test_accuracy"] is not None]
    done.sort(key=lambda row: row["peer_access"] is False)  # host-only last
    for same in by_key(done, lambda row: tuple(row[name] for name in shared)).values():
        exact = [row for row in same if not is_lossy(cells[row["cell_id"]])]
        lossy = [row for row in same if row not in exact]
        if not exact or not lossy or len({row["seed"] for row in same}) > 1:
            continue
        best = max(exact, key=lambda row: float(row["final_test_accuracy"]))
        reference = {name: best[name] for name in names}
        for row in [*sorted(lossy, key=lambda row: -float(row["final_test_accuracy"])), best]:
            lost = None if row is best else row["final_test_accuracy"] - best["final_test_accuracy"]
            values = {**{name: row[name] for name in names}, "exact": reference, "lost": lost}
            yield Finding("answer_trained", (row["cell_id"],), values)
