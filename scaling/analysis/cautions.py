"""The column `warnings`: what a reader should know before trusting a cell's numbers, as findings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from scaling.analysis.columns import OLDER_CODE, Row, shares_gpus
from scaling.analysis.findings import Finding
from scaling.analysis.learning import index_of_target
from scaling.analysis.periodic import long_firsts, periodic_slowness, slow_place
from scaling.analysis.rank_times import own_phases
from scaling.analysis.samples import CellResult
from scaling.measure.statistics import relative_half_width
from scaling.store import CodeChange, RunRecord, changes_since
from scaling.store.upgrades import has_data_in_host_memory


def energies_per_sample(cell: CellResult) -> list[tuple[float, float]]:
    """Of each done repeat joules per sample over all GPUs, and the length of the window in seconds: the mean
    over ranks, since each trains on its share; empty if one is missing."""
    values = []
    for record in cell.done:
        known = [(gpu.get("energy_per_sample_j"), gpu.get("window_s")) for gpu in _gpus(record)]
        if not known or not all(map(all, known)):
            return []
        joules, windows = zip(*known, strict=True)
        values.append((sum(joules) / len(joules), min(windows)))
    return values


def memory_peaks(cell: CellResult) -> list[int]:
    """The largest peak in bytes of any rank's GPU, of each done repeat that has it."""
    by_launch = [record.summary.get("memory_peak_bytes") or [] for record in cell.done]
    known = [[int(count) for count in counts if count is not None] for counts in by_launch]
    return [max(counts) for counts in known if counts]


def seconds_to_target(cell: CellResult) -> list[float]:
    """One value per training that reached its target accuracy."""
    reached = [(training, index_of_target(training, cell.cell)) for training in cell.trainings]
    return [float(training.train_s[index]) for training, index in reached if index is not None]


LONG_STEPS = 0.05  # long steps are told where wall clock over steps exceeds the median step by more
LARGEST_UNATTRIBUTED = 0.05  # a budget that leaves more of the profiled iteration open is not closed
LARGEST_PROFILING_OVERHEAD = 0.05  # marks that cost more of the profiled iteration disturb it
LONGEST_THROTTLED = 0.01  # a GPU whose clocks were held down for more of the window was throttled


def cautions(cell: CellResult, row: Row) -> tuple[Finding, ...]:
    cautions = (_of_code, _of_sharing, _of_host_memory, _of_long_steps, _of_budget, _of_gpus, _of_precision)
    return tuple(Finding(kind, (cell.cell_id,), values) for of in cautions for kind, values in of(cell, row))


def code_cautions(cell: CellResult) -> tuple[Finding, ...]:
    """Those of older code, for which the cell alone is needed."""
    return tuple(Finding(kind, (cell.cell_id,), values) for kind, values in _of_code(cell, {}))


_Cautions = Iterator[tuple[str, dict[str, Any]]]  # kind and values of each


def _of_code(cell: CellResult, _: Row) -> _Cautions:
    """Warns of cells measured, fully or partly, before a code change that affects how long they take."""
    changes: dict[CodeChange, int] = Counter(one for record in cell.done for one in changes_since(record))
    for change, count in changes.items():
        values = {"made_at": change.made_at, "change": change.what}
        yield OLDER_CODE, {"num_repeats": count, "num_done": len(cell.done), **values}


def _of_sharing(_: CellResult, row: Row) -> _Cautions:
    if shares_gpus(row):
        yield "workers_share_gpus", {name: row[name] for name in ("world_size", "workers_per_gpu")}


def _of_host_memory(cell: CellResult, row: Row) -> _Cautions:
    """Warns about host memory of trainings that have seconds; without those whose workers share GPUs."""
    if row["kind"] != "convergence" or shares_gpus(row):
        return
    if any(has_data_in_host_memory(record.summary, record.notes) for record in cell.done):
        yield "data_in_host_memory", {}


def _of_long_steps(cell: CellResult, row: Row) -> _Cautions:
    """Says how far the rate is above the typical step, and of the long steps the period, rank and phase."""
    typical_s = row["typical_iteration_s"]
    if not typical_s or row["iteration_s"] <= (1 + LONG_STEPS) * typical_s:
        return
    phases = own_phases(cell.cell["step"])
    found = periodic_slowness(cell.launches, phases)
    place = (found.rank, found.phase) if found else slow_place(cell.launches, phases, typical_s)
    rank, phase = place or (None, None)
    values = {"iteration_s": row["iteration_s"], "typical_iteration_s": typical_s}
    period, block = (found.period, None) if found else (None, long_firsts(cell.launches))
    yield "long_steps", {**values, "period": period, "block": block, "rank": rank, "phase": phase}


def _of_budget(_: CellResult, row: Row) -> _Cautions:
    profiled_s = row["profiled_iteration_s"]
    if not profiled_s:
        return
    if row["unattributed_s"] > LARGEST_UNATTRIBUTED * profiled_s:
        yield "unattributed_time", {"share": row["unattributed_s"] / profiled_s}
    overhead_s = row["profiling_overhead_s"] or 0.0
    ratio = overhead_s / (profiled_s - overhead_s)
    if abs(ratio) > LARGEST_PROFILING_OVERHEAD:
        yield "profiling_overhead", {"overhead_ratio": ratio}


def _of_gpus(cell: CellResult, _: Row) -> _Cautions:
    throttled: dict[str, set[int]] = {}
    crowded: set[int] = set()
    for record in cell.done:
        for rank, gpu in enumerate(_gpus(record)):
            longest_s = LONGEST_THROTTLED * (gpu.get("window_s") or 0.0)
            held_down = [name for name, s in (gpu.get("throttled_s") or {}).items() if s > longest_s]
            for reason in (*(gpu.get("throttle_reasons") or ()), *held_down):
                throttled.setdefault(reason, set()).add(rank)
            if gpu.get("other_processes"):
                crowded.add(rank)
    for reason, ranks in throttled.items():
        yield "throttled", {"reason": reason, "ranks": sorted(ranks)}
    if crowded:
        yield "other_processes", {"ranks": sorted(crowded)}


def _gpus(record: RunRecord) -> list[Mapping[str, Any]]:
    return [gpu or {} for gpu in record.summary.get("gpu") or record.summary.get("power") or []]


def _of_precision(cell: CellResult, _: Row) -> _Cautions:
    """Warns of the launch that missed its precision goal by most, if any stopped before it."""
    goal = cell.cell.get("precision_goal")
    if goal is None:
        return
    launches = {launch.repeat: launch for launch in cell.launches}
    missed = [
        (relative_half_width(launches[record.repeat].step_s.tolist()), record)
        for record in cell.done
        if record.repeat in launches and record.summary.get("stop_reason") not in (None, "precision")
    ]
    if not missed:
        return
    half, record = max(missed, key=lambda pair: pair[0])
    values = {"goal_ratio": goal, "half_width_ratio": None if math.isinf(half) else half}
    values["seconds"] = (record.summary.get("seconds") or {}).get("unprofiled")
    values["iterations"] = len(launches[record.repeat].iterations)
    yield "missed_precision", values


def joules_per_sample(cell: CellResult) -> float | None:
    """Energy per sample of all GPUs: as above, the median over the repeats; None if one lacks it."""
    energies: list[list[Any]] = [
        [gpu.get("energy_per_sample_j") for gpu in _gpus(record)] for record in cell.done
    ]
    is_known = energies and all(of_gpus and None not in of_gpus for of_gpus in energies)
    return median(sum(of_gpus) / len(of_gpus) for of_gpus in energies) if is_known else None
