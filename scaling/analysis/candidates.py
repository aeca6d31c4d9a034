"""What may be recommended: the cells of each workload, with what an objective makes of them.

A workload is what is given: model, data set, scaling, batch, device, precision, batch normalisation,
augmentation. What is chosen is aggregator, world size, step, bucket size, input placement, memory format,
threads and peer access. One worker has nothing to exchange, so there `none` is a choice; with several it is a
control arm, and never one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.analysis.accuracy import why_not
from scaling.analysis.columns import (
    Row,
    aggregator_order,
    is_aa_replicate,
    is_control_arm,
    is_of_older_code,
    shares_gpus,
)
from scaling.analysis.findings import Finding
from scaling.analysis.formats import percent, workers
from scaling.analysis.launch_values import energies_per_sample, seconds_to_target
from scaling.analysis.learning import REACHED, family_key
from scaling.analysis.samples import CellResult
from scaling.axes import Role, Shared, columns, fixed_batch, with_columns
from scaling.measure.statistics import ONE_LAUNCH, estimate_median

TIME, ACCURACY, EFFICIENCY, HOURS, ENERGY = "time", "time-to-accuracy", "efficiency", "gpu-hours", "energy"

NO_EXCHANGE = "nothing to exchange"
"""The part of a setting of one worker that stands for its aggregator."""

ENERGY_STEP_S = 0.1
"""The counter of energy moves in such steps, by which a window is uncertain (`scaling.measure.power`)."""


@dataclass(frozen=True)
class Candidate:
    """A cell that may be recommended.

    Attributes:
        row: its row of the summary.
        parts: aggregator and world size, then the further choices by which the workload's cells differ.
        value: what the objective makes smallest, in `unit`.
        low, high: its 95% interval; None where there is none.
        unit: for people.
        method: how the interval was made.
        launches: the value of each launch (or training), for their spread.
    """

    row: Row
    parts: tuple[str, ...]
    value: float
    low: float | None
    high: float | None
    unit: str
    method: str
    launches: list[float]

    @property
    def name(self) -> str:
        """`all_reduce on 4 workers, captured step`."""
        return ", ".join(self.parts)

    def values(self) -> dict[str, Any]:
        """What a finding says of it."""
        return {
            "name": self.name,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "unit": self.unit,
            "is_one_launch": self.method == ONE_LAUNCH,
            "num_launches": len(self.launches),
        }

    @property
    def spread(self) -> float | None:
        """Standard deviation over launches; None with fewer than two."""
        return float(np.std(self.launches, ddof=1)) if len(self.launches) > 1 else None


@dataclass(frozen=True)
class Excluded:
    """A cell that may not be recommended.

    Attributes:
        name: of the whole setting.
        aggregator: its label; of one worker, where there is nothing to exchange, the same as the name.
        reason: why.
    """

    name: str
    aggregator: str
    reason: Finding


@dataclass(frozen=True)
class Workload:
    """What is given, and what may be chosen for it.

    Attributes:
        title: for people.
        candidates: by value, the smallest first.
        excluded: cells that may not be chosen.
    """

    title: str
    candidates: list[Candidate]
    excluded: list[Excluded]


def workloads(objective: str, rows: Sequence[Row], cells: Sequence[CellResult]) -> list[Workload]:
    """Every workload that an objective has something to say of, in the table's order.

    Args:
        objective: TIME, ACCURACY, EFFICIENCY (the same as TIME), HOURS or ENERGY.
        rows: the study's.
        cells: the samples they were made of.
    """
    trained = objective == ACCURACY
    kind = "convergence" if trained else "iteration"
    by_id = {cell.cell_id: cell for cell in cells}
    families: dict[Hashable, list[Row]] = {}
    for row in rows:
        if (
            row["kind"] == kind
            and not is_aa_replicate(row)
            and (not trained or row["target_accuracy"] is not None)
        ):
            families.setdefault(_given(row, trained=trained), []).append(row)
    make = _trained if trained else _timed
    return [make(objective, own, rows, by_id) for own in families.values()]


def _given(row: Row, *, trained: bool) -> Hashable:
    if trained:  # batch and rate are chosen too: the target says what they are good for
        return tuple(row[name] for name in ("model", "dataset", "device", "target_accuracy"))
    return (*(row[name] for name in columns(Shared.WORKLOAD)), fixed_batch(row))


def _unusual(row: Row) -> Iterator[str]:
    """What is given besides model, data set, scaling, batch and device, where it is not the default."""
    for given in with_columns(Shared.WORKLOAD):
        value = row[given.key]
        if not given.role & Role.GIVEN and value not in (None, given.default_shown):
            yield given.text(value)


def _timed(
    objective: str, family: Sequence[Row], rows: Sequence[Row], cells: Mapping[str, CellResult]
) -> Workload:
    first = family[0]
    batch = (
        f"{fixed_batch(first)} a worker"
        if first["scaling"] == "weak"
        else f"global batch {fixed_batch(first)}"
    )
    title = f"{first['model']} on {first['dataset']}, {first['scaling']} scaling, {batch}, {first['device']}"
    title += "".join(f", {text}" for text in _unusual(first))
    singles = _one_of_each_single(family)
    candidates, excluded = [], []
    for row in family:
        parts, cell = _parts(row, family), cells[row["cell_id"]]
        candidate = None
        if is_control_arm(row) and not _is_single(row):
            reason: Finding | None = Finding("control_arm", (row["cell_id"],))
        elif _is_single(row) and row["cell_id"] not in singles:
            continue
        elif row["state"] == "failed":
            reason = Finding("not_done", (row["cell_id"],), {"reason": row["reason"]})
        elif (reason := why_not(row, cell, rows, list(cells.values()))) is None:
            if row["iteration_s"] is None:
                continue
            candidate = _MEASURES[objective](row, cell, parts)
            reason = None if candidate else Finding("energy_not_measured", (row["cell_id"],))
        candidates += [candidate] if candidate else []
        excluded += [_excluded(row, parts, reason)] if reason else []
    return Workload(title, sorted(candidates, key=lambda one: one.value), excluded)


def _excluded(row: Row, parts: tuple[str, ...], reason: Finding) -> Excluded:
    name = ", ".join(parts)
    return Excluded(name, name if _is_single(row) else row["aggregator"], reason)


def _one_of_each_single(family: Sequence[Row]) -> set[str]:
    """The cells of one worker that stand for all: with nothing to exchange, aggregators are but a name.

    Of those that are the same in all other choices, `none` where it is, else the first in the table's order.
    """
    kept: dict[Hashable, Row] = {}
    for row in sorted(family, key=lambda row: aggregator_order(row["aggregator"])):
        if _is_single(row) and row["state"] != "failed":
            names = ("global_batch", *columns(role=Role.CHOSEN | Role.RECIPE | Role.REPETITION))
            kept.setdefault(tuple(row[name] for name in names), row)
    return {row["cell_id"] for row in kept.values()}


def _is_single(row: Row) -> bool:
    return bool(row["world_size"] == 1)


def _by_time(row: Row, cell: CellResult, parts: tuple[str, ...]) -> Candidate:
    if row["scaling"] == "weak":
        return _scaled(row, cell, parts, 1e6 / row["global_batch"], "us a sample")
    return _scaled(row, cell, parts, 1e3, "ms an iteration")


def _by_hours(row: Row, cell: CellResult, parts: tuple[str, ...]) -> Candidate:
    factor = row["world_size"] / row["global_batch"] / 3600 * 1e9
    unit = f"{'GPU' if row['device'] == 'cuda' else 'worker'} hours a billion samples"
    return _scaled(row, cell, parts, factor, unit)


def _scaled(row: Row, cell: CellResult, parts: tuple[str, ...], factor: float, unit: str) -> Candidate:
    low, high = row["iteration_s_low"], row["iteration_s_high"]
    return Candidate(
        row,
        parts,
        factor * row["iteration_s"],
        None if low is None else factor * low,
        None if high is None else factor * high,
        unit,
        row["interval_method"],
        [factor * float(np.median(launch.step_s)) for launch in cell.launches],
    )


def _by_energy(row: Row, cell: CellResult, parts: tuple[str, ...]) -> Candidate | None:
    """Joules a sample: the interval is widened by what the counter's steps leave open in a window."""
    energies = energies_per_sample(cell)
    if not energies:
        return None
    estimate = estimate_median([[1e3 * one.joules] for one in energies])
    open_part = max(ENERGY_STEP_S / one.window_s for one in energies)
    low, high = estimate.low, estimate.high
    if len(energies) == 1:
        low = high = estimate.median
    return Candidate(
        row,
        parts,
        estimate.median,
        None if low is None else low * (1 - open_part),
        None if high is None else high * (1 + open_part),
        "J a thousand samples",
        estimate.method,
        [1e3 * one.joules for one in energies],
    )


_MEASURES: dict[str, Callable[[Row, CellResult, tuple[str, ...]], Candidate | None]] = {
    TIME: _by_time,
    EFFICIENCY: _by_time,
    HOURS: _by_hours,
    ENERGY: _by_energy,
}


def _trained(
    objective: str, family: Sequence[Row], rows: Sequence[Row], cells: Mapping[str, CellResult]
) -> Workload:
    first, target = family[0], percent(family[0]["target_accuracy"])
    candidates, excluded = [], []
    singles = _one_of_each_single(family)
    for own in _over_seeds(family):
        row, ids = own[0], tuple(one["cell_id"] for one in own)
        if _is_single(row) and row["cell_id"] not in singles:
            continue
        parts = (*_parts(row, family), *_recipe(row, family))
        missed = next((one["target_state"] for one in own if one["target_state"] != REACHED), REACHED)
        if is_control_arm(row) and not _is_single(row):
            reason = Finding("control_arm_training", ids)
        elif any(one["state"] == "failed" for one in own):
            reason = Finding("not_done", ids, {"reason": next(one["reason"] for one in own if one["reason"])})
        elif not any(one["repeats"] for one in own):
            continue
        elif missed != REACHED:
            reason = Finding("target_missed", ids, {"target_state": missed})
        elif shares_gpus(row):
            names = ("world_size", "workers_per_gpu")
            reason = Finding("seconds_on_shared_gpus", ids, {name: row[name] for name in names})
        else:
            seconds = [s for one in own for s in seconds_to_target(cells[one["cell_id"]])]
            estimate = estimate_median([[one] for one in seconds])
            candidates.append(
                Candidate(
                    row, parts, estimate.median, estimate.low, estimate.high, f"s to {target}",
                    estimate.method, seconds,
                )
            )  # fmt: skip
            continue
        excluded.append(_excluded(row, parts, reason))
    title = f"{first['model']} on {first['dataset']} to an accuracy of {target}, {first['device']}"
    return Workload(title, sorted(candidates, key=lambda one: one.value), excluded)


def _over_seeds(family: Sequence[Row]) -> Iterator[list[Row]]:
    groups: dict[Hashable, list[Row]] = {}
    for row in family:
        groups.setdefault(family_key(row), []).append(row)
    yield from groups.values()


def _recipe(row: Row, family: Sequence[Row]) -> list[str]:
    """What of a training's recipe differs within the family."""
    names = ("global_batch", *columns(role=Role.RECIPE))
    differing = [name for name in names if len({other[name] for other in family}) > 1]
    return [f"{name} {row[name]}" for name in differing if row[name] is not None]


def _parts(row: Row, family: Sequence[Row]) -> tuple[str, ...]:
    parts = [f"{row['aggregator']} on {workers(row['world_size'])}"]
    if _is_single(row):
        parts = ["1 worker", NO_EXCHANGE]
    for choice in with_columns(role=Role.CHOSEN):
        value = row[choice.key]
        if value is None or (choice.key in ("peer_access", "num_nodes") and _is_single(row)):
            continue
        if len({other[choice.key] for other in family if other[choice.key] is not None}) > 1:
            parts.append(choice.text(value))
    return (*parts, "older code") if is_of_older_code(row) else tuple(parts)


def relative_half_width(candidate: Candidate) -> float:
    """Half of the interval over the value; infinite where there is none."""
    if candidate.low is None or candidate.high is None:
        return math.inf
    return (candidate.high - candidate.low) / 2 / candidate.value
