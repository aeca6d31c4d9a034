"""What may be recommended: the cells of each workload, with their value under an objective.

A workload is what is given: model, data set, scaling, batch, device, precision, batch normalisation,
augmentation. What is chosen is aggregator, world size, step, bucket size, input placement, memory format,
threads and peer access. One worker has nothing to exchange, so there `none` is a choice; with several it is a
control arm, and never one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from scaling.analysis.cautions import energies_per_sample, memory_peaks, seconds_to_target
from scaling.analysis.columns import (
    Row,
    aggregator_order,
    by_key,
    is_aa_replicate,
    is_control_arm,
    is_of_older_code,
    is_unchanged,
    pick,
    shares_gpus,
    workers_of,
)
from scaling.analysis.findings import Finding
from scaling.analysis.groups import Differing, differing_settings, given_of, settings_to_name
from scaling.analysis.learning import REACHED, family_key
from scaling.analysis.samples import CellResult
from scaling.analysis.seed_noise import Trainings
from scaling.analysis.study_scatter import CellTimes
from scaling.axes import Axis, Role, Shared, columns, fixed_batch, with_columns
from scaling.measure.statistics import ONE_LAUNCH

TIME, ACCURACY, EFFICIENCY, HOURS = "time", "time-to-accuracy", "efficiency", "gpu-hours"
ENERGY, MEMORY = "energy", "memory"

NO_EXCHANGE = "nothing to exchange"  # the part of a setting of one worker that stands for its aggregator
OF_PEERS = ("peer_access", "num_nodes")  # settings that mean nothing to one worker
ENERGY_STEP_S = 0.1  # the counter of energy moves in such steps (`scaling.measure.power`)


@dataclass(frozen=True)
class Candidate:
    row: Row  # its row of the summary
    # aggregator and world size, then the further choices by which the workload's cells differ
    parts: tuple[str, ...]
    value: float  # what the objective makes smallest, a `quantity`
    low: float | None  # low, high: its 95% interval; None where there is none
    high: float | None
    # iteration_ms, sample_us, gpu_hours or worker_hours (a billion samples), energy (J a thousand samples),
    # memory_gb (peak of a GPU) or training_s (to the target)
    quantity: str
    method: str  # how the interval was made
    times: CellTimes  # the value of each launch, or training, for differences to other candidates
    factor: float = 1.0  # of the value to what `times` has
    open_ratio: float = 0.0  # what the instrument leaves open of each value, whatever the number of launches

    @property
    def cell_id(self) -> str:
        """The id of the cell; with several seeds, of the first seed's cell."""
        return str(self.row["cell_id"])

    @property
    def num_launches(self) -> int:
        return len(self.times.by_launch)

    @property
    def name(self) -> str:
        """A readable name, such as `all_reduce on 4 workers, captured step`."""
        return ", ".join(self.parts)

    def values(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "short": self.parts[0],
            **pick(vars(self), "value", "low", "high", "quantity"),
            "target_accuracy": self.row["target_accuracy"],
            "is_one_launch": self.method == ONE_LAUNCH,
            "num_launches": self.num_launches,
        }


@dataclass(frozen=True)
class Excluded:
    name: str  # of the whole setting
    aggregator: str  # its label; of one worker, where there is nothing to exchange, the same as the name
    reason: Finding  # why
    row: Row | None = None  # its row of the summary, for cells that no objective weighed


@dataclass(frozen=True)
class CandidateSet:
    # model, dataset, device, and `further`, by axis, what is not the default or differs from other workloads;
    # of timed cells also scaling and batch; of trainings target_accuracy
    given: dict[str, Any]
    candidates: list[Candidate]  # by value, the smallest first
    excluded: list[Excluded]  # cells that may not be chosen


def workloads(objective: str, rows: Sequence[Row], cells: Sequence[CellResult]) -> list[CandidateSet]:
    """Every workload to which an objective applies, in the table's order."""
    trained = objective == ACCURACY
    kind = "convergence" if trained else "iteration"
    by_id = {cell.cell_id: cell for cell in cells}
    eligible = [
        row
        for row in rows
        if row["kind"] == kind
        and not is_aa_replicate(row)
        and is_unchanged(row)
        and (not trained or row["target_accuracy"] is not None)
    ]
    families = by_key(eligible, lambda row: _given(row, trained=trained))
    differing = differing_settings(rows)
    if trained:
        return [_trained(family, differing, by_id) for family in families.values()]
    of_study = differing, by_id, Trainings(rows, cells)
    return [_timed(objective, family, *of_study) for family in families.values()]


def within_memory(workload: CandidateSet, most_bytes: int) -> CandidateSet:
    within, excluded = [], list(workload.excluded)
    for candidate in workload.candidates:
        peak = candidate.row["memory_peak_bytes"]
        if peak is not None and peak <= most_bytes:
            within.append(candidate)
            continue
        kind = "memory_not_measured" if peak is None else "memory_above"
        values = {"peak_bytes": peak, "most_bytes": most_bytes}
        excluded.append(Excluded(candidate.name, candidate.name, Finding(kind, (candidate.cell_id,), values)))
    return replace(workload, candidates=within, excluded=excluded)


_TRAINED_FOR = ("model", "dataset", "device", "target_accuracy")


def _given(row: Row, *, trained: bool) -> Hashable:
    if trained:  # batch and rate are chosen too: the target says what they are good for
        return tuple(row[name] for name in _TRAINED_FOR)
    return (*(row[name] for name in columns(Shared.WORKLOAD)), fixed_batch(row))


def _timed(
    objective: str,
    family: Sequence[Row],
    differing_of: Differing,
    cells: Mapping[str, CellResult],
    trainings: Trainings,
) -> CandidateSet:
    workload = {**given_of(family[0]), "further": settings_to_name(family, differing_of)}
    singles, differing = _one_of_each_single(family), _differing(family)
    candidates, excluded = [], []
    for row in family:
        parts, cell = _parts(row, differing), cells[row["cell_id"]]
        candidate = None
        if is_control_arm(row) and not _is_single(row):
            reason: Finding | None = Finding("control_arm", (row["cell_id"],))
        elif _is_single(row) and row["cell_id"] not in singles:
            continue
        elif row["state"] == "failed":
            reason = Finding("not_done", (row["cell_id"],), {"reason": row["reason"]})
        elif (reason := trainings.why_not(row, cell)) is None:
            if row["iteration_s"] is None:
                continue
            candidate = _MEASURES[objective](row, cell, parts)
            reason = None if candidate else Finding(f"{objective}_not_measured", (row["cell_id"],))
        candidates += [candidate] if candidate else []
        excluded += [_excluded(row, parts, reason)] if reason else []
    return CandidateSet(workload, sorted(candidates, key=lambda candidate: candidate.value), excluded)


def _excluded(row: Row, parts: tuple[str, ...], reason: Finding) -> Excluded:
    name = ", ".join(parts)
    return Excluded(name, name if _is_single(row) else row["aggregator"], reason, row)


def _one_of_each_single(family: Sequence[Row]) -> set[str]:
    """One-worker cells, one for all aggregators: `none` where it is, else the table's first."""
    first_of_each: dict[Hashable, Row] = {}
    for row in sorted(family, key=lambda row: aggregator_order(row["aggregator"])):
        if _is_single(row) and row["state"] != "failed":
            names = ("global_batch", *columns(role=Role.CHOSEN | Role.RECIPE | Role.REPETITION))
            first_of_each.setdefault(tuple(row[name] for name in names if name not in OF_PEERS), row)
    return {row["cell_id"] for row in first_of_each.values()}


def _is_single(row: Row) -> bool:
    return bool(row["world_size"] == 1)


def _by_time(row: Row, cell: CellResult, parts: tuple[str, ...]) -> Candidate:
    if row["scaling"] == "weak":
        return _scaled(row, cell, parts, 1e6 / row["global_batch"], "sample_us")
    return _scaled(row, cell, parts, 1e3, "iteration_ms")


def _by_hours(row: Row, cell: CellResult, parts: tuple[str, ...]) -> Candidate:
    factor = row["world_size"] / row["global_batch"] / 3600 * 1e9
    return _scaled(row, cell, parts, factor, f"{'gpu' if row['device'] == 'cuda' else 'worker'}_hours")


def _scaled(row: Row, cell: CellResult, parts: tuple[str, ...], factor: float, quantity: str) -> Candidate:
    times = CellTimes(row["world_size"], {launch.repeat: launch.iteration_s for launch in cell.launches})
    ends = (row["iteration_s_low"], row["iteration_s_high"])
    low, high = (None if end is None else factor * end for end in ends)
    value, method = factor * row["iteration_s"], row["interval_method"]
    return Candidate(row, parts, value, low, high, quantity, method, times, factor)


def _by_energy(row: Row, cell: CellResult, parts: tuple[str, ...]) -> Candidate | None:
    """Joules per sample; the interval is widened by the resolution of the energy counter."""
    energies = energies_per_sample(cell)
    if not energies:
        return None
    values = [1e3 * joules for joules, _ in energies]
    open_ratio = max(ENERGY_STEP_S / window_s for _, window_s in energies)
    middle, times = median(values), CellTimes(row["world_size"], dict(enumerate(values)))
    low, high = middle * (1 - open_ratio), middle * (1 + open_ratio)
    return Candidate(row, parts, middle, low, high, "energy", ONE_LAUNCH, times, open_ratio=open_ratio)


def _by_memory(row: Row, cell: CellResult, parts: tuple[str, ...]) -> Candidate | None:
    peaks = [count / 1e9 for count in memory_peaks(cell)]
    if not peaks:
        return None
    times = CellTimes(row["world_size"], dict(enumerate(peaks)))
    return Candidate(row, parts, max(peaks), None, None, "memory_gb", ONE_LAUNCH, times)


_MEASURES: dict[str, Callable[[Row, CellResult, tuple[str, ...]], Candidate | None]] = {
    TIME: _by_time,
    EFFICIENCY: _by_time,
    HOURS: _by_hours,
    ENERGY: _by_energy,
    MEMORY: _by_memory,
}


def _trained(family: Sequence[Row], differing_of: Differing, cells: Mapping[str, CellResult]) -> CandidateSet:
    first, differing = family[0], _differing(family)
    recipes = ("global_batch", *columns(role=Role.RECIPE))
    recipe = [name for name in recipes if len({other[name] for other in family}) > 1]
    candidates, excluded = [], []
    singles = _one_of_each_single(family)
    for seeds in by_key(family, family_key).values():
        row, ids = seeds[0], tuple(seed["cell_id"] for seed in seeds)
        if _is_single(row) and row["cell_id"] not in singles:
            continue
        of_recipe = (f"{name} {row[name]}" for name in recipe if row[name] is not None)
        parts = (*_parts(row, differing), *of_recipe)
        missed = next((seed["target_state"] for seed in seeds if seed["target_state"] != REACHED), REACHED)
        if is_control_arm(row) and not _is_single(row):
            reason = Finding("control_arm_training", ids)
        elif any(seed["state"] == "failed" for seed in seeds):
            first_reason = next(seed["reason"] for seed in seeds if seed["reason"])
            reason = Finding("not_done", ids, {"reason": first_reason})
        elif not any(seed["repeats"] for seed in seeds):
            continue
        elif missed != REACHED:
            reason = Finding("target_missed", ids, {"target_state": missed})
        elif shares_gpus(row):
            reason = Finding("seconds_on_shared_gpus", ids, pick(row, "world_size", "workers_per_gpu"))
        else:
            seconds: dict[Hashable, float] = {
                (seed["seed"], number): value
                for seed in seeds
                for number, value in enumerate(seconds_to_target(cells[seed["cell_id"]]))
            }
            times = CellTimes(row["world_size"], seconds)
            middle = median(seconds.values())
            candidates.append(Candidate(row, parts, middle, None, None, "training_s", ONE_LAUNCH, times))
            continue
        excluded.append(_excluded(row, parts, reason))
    workload = {**pick(first, *_TRAINED_FOR), "further": settings_to_name(family, differing_of)}
    return CandidateSet(workload, sorted(candidates, key=lambda candidate: candidate.value), excluded)


def _differing(family: Sequence[Row]) -> list[Axis]:
    return [
        choice
        for choice in with_columns(role=Role.CHOSEN)
        if len({other[choice.key] for other in family if other[choice.key] is not None}) > 1
    ]


def _parts(row: Row, differing: Sequence[Axis]) -> tuple[str, ...]:
    parts = [f"{row['aggregator']} on {workers_of(row)}"]
    if _is_single(row):
        parts = [workers_of(row), NO_EXCHANGE]
    for choice in differing:
        value = row[choice.key]
        if value is not None and not (choice.key in OF_PEERS and _is_single(row)):
            parts.append(choice.text(value))
    return (*parts, "older code") if is_of_older_code(row) else tuple(parts)
