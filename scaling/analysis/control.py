"""A second estimate of exposed time: the difference to a control arm, the same step without exchange.

By intervals, exposed time is what the exchange's spans show outside of computation. By difference, it is
the cell's typical step (median) less that of its control arm; it may be negative, and is not clipped. The
two must agree, or one of them misses something: an exchange that slows the computation that it overlaps, or
marks that cost time.

Both cells ran in the same launches. What the difference is known by is its interval over these, of one launch
the A/A pairs' noise floor; where that is too coarse, the check is not resolved. A cause is named only where
the launches show it: the phase takes longer in the arm than in the control arm, launch by launch, with
variances that all arms of this control arm give together, and Holm's correction over the phases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scaling.analysis.budgets import cell_budget
from scaling.analysis.columns import CONTROL_ARMS, Row, aggregator_name, by_key
from scaling.analysis.decisions import TIE_RATIO, Difference, adjusted
from scaling.analysis.findings import Finding
from scaling.analysis.samples import CellResult
from scaling.analysis.study_scatter import CellTimes, study_scatter
from scaling.axes import Shared, fixed_batch, shared_key
from scaling.measure.statistics import CONFIDENCE

AGREEMENT = 0.10  # two exposed times that differ by no more than this part of the larger one agree
COMPUTATION = ("input", "forward", "backward", "update")  # phases that both arms have
COLUMNS_COMPARED = (*(f"{phase}_s" for phase in COMPUTATION), "unattributed_s")  # of the budget
SLOWED_BY_EXCHANGE = ("input", "forward", "backward")  # the same work in both arms; an update may move


class ControlPeers:
    """A study's cells, of which each finds those that it is compared with, without asking all others."""

    def __init__(self, cells: Iterable[CellResult]) -> None:
        measured = [cell for cell in cells if cell.launches]
        self._baselines: dict[Hashable, CellResult] = {}
        self._controls: dict[Hashable, CellResult] = {}
        num_iterations = {id(one): sum(len(launch.iterations) for launch in one.launches) for one in measured}
        for cell in sorted(measured, key=lambda cell: (-num_iterations[id(cell)], cell.cell_id)):
            if cell.cell.get("aa_replicate"):
                continue
            if _is_alone(cell.cell):
                key = _baseline_key(cell.cell)
                self._baselines.setdefault(key, cell)
                self._baselines.setdefault((key, _access(cell)), cell)
            if aggregator_name(cell.label("aggregator")) in CONTROL_ARMS:
                self._controls.setdefault(_control_key(cell, cell.label("aggregator")), cell)
        self._arms = by_key(measured, lambda cell: id(self.control_arm(cell)))

    def baseline_of(self, cell: CellResult) -> CellResult | None:
        """The measured cell to which the speedup refers: of the same peer access, then of most iterations."""
        key = _baseline_key(cell.cell)
        return self._baselines.get((key, _access(cell)), self._baselines.get(key))

    def control_arm(self, cell: CellResult) -> CellResult | None:
        """The measured cell that differs in the aggregator only; None if there is none."""
        found = (self._controls.get(_control_key(cell, label)) for label in control_labels(cell.cell))
        return next((control for control in found if control is not None), None)

    def arms_of(self, control: CellResult) -> list[CellResult]:
        return self._arms.get(id(control), [])


def _is_alone(cell: Mapping[str, Any]) -> bool:
    label = cell.get("aggregator_label") or cell["aggregator"]
    return cell["world_size"] == 1 and aggregator_name(label) == "none"


def _access(cell: CellResult) -> bool | None:
    return cell.cell.get("peer_access")


def _baseline_key(cell: Mapping[str, Any]) -> Hashable:
    return (*shared_key(Shared.BASELINE, cell), fixed_batch(cell))


def _control_key(cell: CellResult, label: str) -> Hashable:
    """Equal for a cell and the control arm of that label."""
    # Without a wrapper there are no buckets: their size makes no difference to `none`.
    buckets = () if label == "none" else [cell.cell.get(name) for name in ("bucket_mb", "bucket_sizes_mb")]
    return (label, *map(str, buckets), *shared_key(Shared.CONTROL, cell.cell))


def is_baseline_of(other: Mapping[str, Any], cell: Mapping[str, Any]) -> bool:
    """Whether `other` is the one-worker cell without exchange to which the cell's speedup refers."""
    is_first = _is_alone(other) and not other.get("aa_replicate")
    return is_first and _baseline_key(other) == _baseline_key(cell)


def control_labels(cell: Mapping[str, Any]) -> list[str]:
    """The labels of aggregators that can be the cell's control arm, the best first; none for a control arm.
    Overlapped, all-reduce takes DistributedDataParallel's own path, others that of a Python hook: so does
    their arm."""
    label = cell.get("aggregator_label") or cell["aggregator"]
    if aggregator_name(label) in CONTROL_ARMS:
        return []
    if cell["step"] != "overlapped":
        return ["none"]
    own_path = aggregator_name(label) == "all_reduce" and "path=hook" not in label
    return ["no_op" if own_path else "no_op(path=hook)", "none"]


def exposed_check(
    arm: Row, control: Row, difference: Difference, differing_s: Callable[[], Mapping[str, float]]
) -> Finding | None:
    """Whether a cell's two estimates of exposed time agree (`exposed_times_agree`, `exposed_times_unresolved`
    or `exposed_times_differ`), with both times and the cause, if it has both. `differing_s`: budget's columns
    -> by how much the arm has more."""
    by_intervals, by_difference = arm["exchange_overhead_s"], arm["exposed_by_difference_s"]
    if by_intervals is None or by_difference is None:
        return None
    cells, step_s = (arm["cell_id"], control["cell_id"]), arm["typical_iteration_s"]
    gap_s = by_difference - by_intervals
    half = difference.half_width()
    known_to = arm["noise_floor"] if half is None else math.expm1(half)
    tolerance_s = AGREEMENT * max(abs(by_intervals), abs(by_difference))
    if known_to is None or known_to * step_s > max(tolerance_s, TIE_RATIO * step_s):
        values = {"known_to_ratio": known_to, "is_one_launch": half is None}
        return Finding("exposed_times_unresolved", cells, values)
    if abs(gap_s) <= max(tolerance_s, known_to * step_s):
        bound = "ratio" if abs(gap_s) <= tolerance_s else "launches"
        return Finding("exposed_times_agree", cells, {"bound": bound, "agreement_ratio": AGREEMENT})
    values = {"exchange_overhead_s": by_intervals, "exposed_by_difference_s": by_difference}
    explanation = {"cause": "one_launch"}
    if half is not None:
        explanation = _explanation(gap_s, arm, control, differing_s())
    return Finding("exposed_times_differ", cells, {**values, "control": control["aggregator"], **explanation})


def differences_of_launches(arm: CellResult, control: CellResult, peers: ControlPeers) -> dict[str, float]:
    """Budget columns -> the seconds that the arm takes more, where common launches show a difference; cells
    with the same control arm tell how it scatters."""
    budgets = {
        cell.cell_id: {launch.repeat: budget for launch in cell.launches if (budget := cell_budget([launch]))}
        for cell in [control, *peers.arms_of(control)]
    }
    of_arm, base = budgets[arm.cell_id], budgets[control.cell_id]
    common = of_arm.keys() & base.keys()
    if len(common) < 2:
        return {}
    iteration_s = float(np.mean([budget["profiled_iteration_s"] for budget in base.values()]))
    more_s: dict[str, float] = {}
    p_values: list[float] = []
    for name in COLUMNS_COMPARED:
        column = {
            cell_id: {repeat: budget.get(name, 0.0) for repeat, budget in by_launch.items()}
            for cell_id, by_launch in budgets.items()
        }
        others_s = iteration_s - float(np.mean([*column[control.cell_id].values()]))
        times: dict[Hashable, CellTimes] = {
            cell_id: CellTimes(None, {repeat: others_s + seconds for repeat, seconds in by_launch.items()})
            for cell_id, by_launch in column.items()
        }
        p = study_scatter(times).difference(control.cell_id, arm.cell_id).p_value
        p_values.append(1.0 if p is None else p)
        differences_s = [column[arm.cell_id][repeat] - column[control.cell_id][repeat] for repeat in common]
        more_s[name] = float(np.mean(differences_s))
    shown = zip(more_s.items(), adjusted(p_values), strict=True)
    return {name: seconds for (name, seconds), p in shown if seconds and p < 1 - CONFIDENCE}


def _explanation(gap_s: float, arm: Row, control: Row, differing_s: Mapping[str, float]) -> dict[str, Any]:
    """The cause of half or more of a difference of `gap_s`, or the phase that differs most."""
    enough_s = abs(gap_s) / 2
    # A hook that exchanges nothing takes time too: by intervals it is exposed, by difference it cancels.
    shared_s = control["exchange_overhead_s"] or 0.0
    if gap_s < 0 and shared_s >= enough_s:
        return {"cause": "path", "seconds": shared_s}
    sign = 1 if gap_s > 0 else -1
    longer_s = [(phase, sign * differing_s.get(f"{phase}_s", 0.0)) for phase in COMPUTATION]
    phases = sorted((pair for pair in longer_s if pair[1] > 0), key=lambda pair: -pair[1])
    total_s = 0.0
    for count, (_, seconds) in enumerate(phases, 1):
        total_s += seconds
        if total_s >= enough_s:
            return {"cause": "phases", **_differing(phases[:count], total_s, gap_s)}
    unattributed_s = differing_s.get("unattributed_s", 0.0)
    if unattributed_s * gap_s > 0 and abs(unattributed_s) >= enough_s:
        return {"cause": "no_phase", "seconds": unattributed_s}
    overheads_s = [row["profiling_overhead_s"] for row in (arm, control)]
    more_s = 0.0 if None in overheads_s else float(overheads_s[0] - overheads_s[1])
    if more_s * gap_s < 0 and abs(more_s) >= enough_s:
        return {"cause": "profiling_overhead", "seconds": more_s}
    return {"cause": "unknown", **(_differing(phases[:1], phases[0][1], gap_s) if phases else {"phases": []})}


def _differing(phases: Sequence[tuple[str, float]], total_s: float, gap_s: float) -> dict[str, Any]:
    names = [name for name, _ in phases]
    slows = gap_s > 0 and set(names) <= set(SLOWED_BY_EXCHANGE)
    return {"phases": names, "seconds": math.copysign(total_s, gap_s), "exchange_slows": slows}
