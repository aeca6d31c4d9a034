"""Rules for doubtful numbers, and for goals that a cell did not reach."""

from __future__ import annotations

from scaling.analysis.cautions import LARGEST_PROFILING_OVERHEAD
from scaling.analysis.columns import SPEEDUP
from scaling.analysis.explain_view import Values, View
from scaling.analysis.learning import REACHED
from scaling.store.failures import OUT_OF_MEMORY, failure_kind

WIDE_INTERVAL = 0.05
LARGE_FLOOR = 0.05
NO_SPEEDUP = 1.0
SKEW_SHARE = 0.1
CAUSES = {"busy_host", "oversubscribed", "throttled_gpu", "shared_gpu", "periodic"}
"""Of scatter, by their rules: more repeats do not mend them."""


def failed(view: View) -> Values | None:
    """Runs that failed, with the reason."""
    if view.row["state"] != "failed":
        return None
    runs = [record for record in (view.cell.records if view.cell else []) if record.state == "failed"]
    kinds = {failure_kind(record.summary, record.reason) for record in runs}
    return {"share": 1.0, "reason": str(view.row["reason"]), "is_out_of_memory": OUT_OF_MEMORY in kinds}


def target(view: View) -> Values | None:
    """A training that did not reach its accuracy."""
    row = view.row
    if row["target_state"] in (None, REACHED):
        return None
    names = ("target_accuracy", "target_state")
    return {"share": 1.0, **{name: row[name] for name in names}, "epochs": int(row["epochs"] or 1)}


def disturbed_gpu(view: View) -> Values | None:
    """GPU clocks were limited, or other processes used the GPU."""
    rule_of = {"throttled": "throttled_gpu", "other_processes": "shared_gpu"}
    warnings = view.row["warnings"] or ()
    disturbed = [
        warning for warning in warnings if warning.kind in rule_of and rule_of[warning.kind] not in view.fired
    ]
    return {"share": 1.0, "warnings": disturbed} if disturbed else None


def straggler(view: View) -> Values | None:
    """Ranks reach the first exchange late, and no single rank is slow by itself."""
    skew_s = view.row["skew_s"]
    if skew_s is None or not view.step_s or skew_s / view.step_s < SKEW_SHARE or not view.exchanges:
        return None
    if view.slow_rank is not None or "oversubscribed" in view.fired:
        return None
    return {"share": min(1.0, skew_s / view.step_s), "skew_s": skew_s}


def no_speedup(view: View) -> Values | None:
    """Several workers process fewer samples per second than one."""
    size, speedup = view.row["world_size"], view.row["speedup"]
    if size < 2 or speedup is None or speedup >= NO_SPEEDUP:
        return None
    return {"share": 1 - speedup, "world_size": size, **{name: view.row[name] for name in SPEEDUP}}


def scatter(view: View) -> Values | None:
    """A wide interval."""
    row = view.row
    if row["iteration_s"] is None or row["iteration_s_low"] is None:
        return None
    half = (row["iteration_s_high"] - row["iteration_s_low"]) / 2 / row["iteration_s"]
    if half <= WIDE_INTERVAL:
        return None
    values = {"interval_method": row["interval_method"], "repeats": int(row["repeats"] or 1)}
    values["has_cause"] = bool(view.fired.keys() & CAUSES)
    return {"share": min(1.0, half), "half_width_ratio": half, **values}


def noise(view: View) -> Values | None:
    """A/A pairs that differ much."""
    floor = view.row["noise_floor"]
    if floor is None or floor <= LARGE_FLOOR:
        return None
    return {"share": min(1.0, floor), "noise_floor": floor}


def profiling_effect(view: View) -> Values | None:
    """Profiling marks that change the times which they show."""
    overhead_s, step_s = view.row["profiling_overhead_s"], view.step_s
    if overhead_s is None or not step_s or abs(overhead_s) <= LARGEST_PROFILING_OVERHEAD * step_s:
        return None
    ratio = abs(overhead_s) / step_s
    return {"share": min(1.0, ratio), "profiling_overhead_s": overhead_s, "profiling_overhead_ratio": ratio}


def one_launch(view: View) -> Values | None:
    """One launch only: the scatter between launches is unknown."""
    row = view.row
    is_one = row["kind"] == "iteration" and row["repeats"] == 1 and row["state"] == "done"
    return {"share": 0.0} if is_one else None
