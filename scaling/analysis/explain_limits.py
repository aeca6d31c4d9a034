"""Rules about limits other than the exchange, with their thresholds."""

from __future__ import annotations

import numpy as np

from scaling.analysis.columns import pick, unit_of_workers
from scaling.analysis.explain_view import Values, View
from scaling.analysis.periodic import periodic_slowness
from scaling.analysis.rank_times import SLOW_SHARE, own_phases

BUSY_ENOUGH = 0.7
BATCH_SPEED = 0.5
INPUT_SHARE = 0.1
UPDATE_SHARE = 0.25
OPEN_SHARE = 0.1
COMPUTE_SHARE = 0.6
QUEUED_SHARE = 0.15
AVOIDABLE_SHARE = 0.1  # more than this part of a step is said before computation
UTILIZATION = ("mfu", "mfu_data_sheet")
LOW_MFU, HIGH_MFU = 0.4, 0.6
"""GPT-2 small in bf16 on an H200 has an MFU of 0.26 without torch.compile and 0.45 with it; from HIGH_MFU on,
a captured step cannot help much: the GPU waits for few launches."""

SHORTEST_QUEUE_S, QUEUE_SHARE = 100e-6, 0.03
"""A device that ends a phase no later than this after the host has queued it had no work waiting: the first
is some launches, with the uncertainty of the clocks, the second a part of forward and backward."""


def oversubscribed(view: View) -> Values | None:
    """More threads than cores: workers take turns."""
    row = view.row
    if row["iteration_s"] is None:
        return None
    cores = _cores(view)
    # On a GPU a rank's one busy thread is that which launches kernels.
    threads = (row["threads"] or 1) if row["device"] == "cpu" else 1
    busy = row["world_size"] // (row["num_nodes"] or 1) * threads
    if cores is None or busy <= cores:
        return None
    share = 1 - cores / busy if view.queued_ratios is None else float(np.median(view.queued_ratios))
    if share < QUEUED_SHARE:
        return None
    return {"share": share, "world_size": row["world_size"], "threads": busy, "cores": cores}


def busy_host(view: View) -> Values | None:
    """Other processes use the cores: every worker waits for one."""
    queued = view.queued_ratios
    if queued is None or min(queued) < QUEUED_SHARE or "oversubscribed" in view.fired:
        return None
    return {"share": min(queued), "queued_ratios": queued}


def _cores(view: View) -> int | None:
    """The cores of a node that its ranks may use; all cores of the node if that was not recorded."""
    if (view.row["num_nodes"] or 1) > 1:
        return view.study.num_cores
    ranks = range(view.row["world_size"])
    allowed = [{core for host in view.of_rank("host", r) for core in host.get("cores") or ()} for r in ranks]
    num_cores = len(set().union(*allowed))
    return min(num_cores, view.study.num_cores or num_cores) if all(allowed) else view.study.num_cores


def launches(view: View) -> Values | None:
    """The captured step does the same work in less time: the difference is launch overhead."""
    row = view.row
    if row["device"] != "cuda" or row["step"] == "captured" or row["iteration_s"] is None:
        return None
    if "oversubscribed" in view.fired:
        return None
    free = {"step", "bucket_mb"}
    captured = view.fastest_with(free, step="captured")
    if captured is None:
        limit = _launches_in_computation(view) or _device_waits(view)
        return limit and {**limit, **pick(row, *UTILIZATION)}
    busy = captured["iteration_s"] / row["iteration_s"]
    if busy >= BUSY_ENOUGH:
        return None
    times = {"iteration_s": row["iteration_s"], "captured_iteration_s": captured["iteration_s"]}
    is_shown = bool(view.faster_with(free, step="captured").get("is_shown"))
    return {"share": 1 - busy, "busy_ratio": busy, "is_shown": is_shown, **pick(row, *UTILIZATION), **times}


def _launches_in_computation(view: View) -> Values | None:
    """Launch overhead of forward and backward, from a captured cell with another aggregator or input."""
    free = {"step", "bucket_mb", "aggregator", "input_placement", "loader_workers"}
    tried = [other for other in view.others(free) if other["step"] == "captured"]
    captured = [other for other in tried if other["backward_s"]]
    if not captured or not view.compute_s:
        return None
    captured_s = min(float(other["forward_s"] + other["backward_s"]) for other in captured)
    busy = captured_s / view.compute_s
    if busy >= BUSY_ENOUGH:
        return None
    share = (1 - busy) * view.share("forward_s", "backward_s")
    times = {"compute_s": view.compute_s, "captured_compute_s": captured_s}
    placement = view.row["input_placement"]
    names = sorted({other["aggregator"] for other in tried if other["input_placement"] == placement})
    return {"share": share, "busy_ratio": busy, "measured_captured": names, **times}


def _device_waits(view: View) -> Values | None:
    """The device finishes as soon as the host has queued the last kernel: it always waits for launches."""
    steps = [step for launch in (view.cell.launches if view.cell else []) for step in launch.profiled_steps]
    known = [rank.behind_s for step in steps for rank in step.ranks]
    if not known or not view.compute_s or "tiny_buckets" in view.fired:
        return None
    behind_s = 0.0
    for phase in ("forward", "backward"):
        values = [columns[phase] for columns in known if columns is not None and phase in columns]
        if len(values) < len(known):
            return None
        behind_s = max(behind_s, float(np.median(values)))
    if behind_s > max(SHORTEST_QUEUE_S, QUEUE_SHARE * view.compute_s):
        return None
    return {"share": view.share("forward_s", "backward_s"), "behind_s": behind_s, "compute_s": view.compute_s}


def small_batch(view: View) -> Values | None:
    """The GPU needs much more time per sample than with a larger batch."""
    row, compute_s = view.row, view.compute_s
    if not compute_s or "oversubscribed" in view.fired:
        return None
    free = {"world_size", "local_batch", "global_batch", "aggregator", "bucket_mb", "scaling"}
    larger = [
        other
        for other in view.others(free)
        if other["local_batch"] > row["local_batch"] and other["forward_s"] and other["backward_s"]
    ]
    if not larger:
        return None
    other = max(larger, key=lambda other: (other["local_batch"], -float(other["iteration_s"])))
    other_s = float(other["forward_s"] + other["backward_s"])
    speed = other_s / other["local_batch"] / (compute_s / row["local_batch"])
    if speed >= BATCH_SPEED:
        return None
    return {
        "share": (1 - speed) * view.share("forward_s", "backward_s"),
        "compute_s": compute_s,
        "compute_s_at_larger_batch": other_s,
        "speed_per_sample_ratio": speed,
        "larger_batch": other["local_batch"],
        **pick(row, "local_batch", "step", "device"),
    }


def feeding(view: View) -> Values | None:
    share = view.share("input_s", "h2d_s")
    if share < INPUT_SHARE or _is_of_slow_rank(view, share, "input", "h2d"):
        return None
    settings = pick(view.row, "input_placement", "loader_workers", "augmentation", "device")
    times = {name: view.seconds(name) for name in ("input_s", "h2d_s")}
    return {"share": share, **times, **settings, **view.faster_with({"input_placement", "loader_workers"})}


def update(view: View) -> Values | None:
    share = view.share("update_s")
    if share < UPDATE_SHARE or "launches" in view.fired:
        return None
    return {"share": share, "update_s": view.seconds("update_s")}


def open_time(view: View) -> Values | None:
    share = view.share("unattributed_s")
    if share < OPEN_SHARE or _is_of_slow_rank(view, share, "unattributed"):
        return None
    return {"share": share, "unattributed_s": view.seconds("unattributed_s")}


def _is_of_slow_rank(view: View, share: float, *phases: str) -> bool:
    """Whether most of `share` comes from the slow rank alone, which has a finding already."""
    seconds = view.fired.get("slow_rank", {}).get("phases_s", {})
    return sum(float(seconds.get(phase, 0.0)) for phase in phases) > share * (view.step_s or 0.0) / 2


def computation(view: View) -> Values | None:
    """Forward and backward, where no avoidable part is large."""
    share = view.share("forward_s", "backward_s")
    if share < COMPUTE_SHARE or view.largest_avoidable > AVOIDABLE_SHARE:
        return None
    row = view.row
    on_gpu = row["device"] == "cuda"
    captured = row["step"] == "captured" or view.fastest_with({"step", "bucket_mb"}, step="captured")
    is_compiled = row["compile"] or view.fastest_with({"compile", "step", "bucket_mb"}, compile=True)
    return {
        "share": share,
        **{name: view.seconds(name) for name in ("forward_s", "backward_s")},
        **pick(row, *UTILIZATION),
        "precision": row["precision"],
        "more_workers_help": _more_workers_help(view),
        "has_tf32_left": on_gpu and row["precision"] == "float32",
        "lacks_captured": on_gpu and not captured and (row["mfu"] or 0.0) < HIGH_MFU,
        "lacks_compile": row["mfu"] is not None and row["mfu"] < LOW_MFU and not is_compiled,
        "is_captured": row["step"] == "captured",
        "unit": unit_of_workers(row),
    }


def _more_workers_help(view: View) -> bool:
    """Whether no measurement contradicts it: this cell's speedup, or a cell with more workers and no gain."""
    row = view.row
    if row["world_size"] > 1 and row["speedup"] is not None and row["speedup"] < 1:
        return False
    free = {"world_size", "local_batch", "global_batch", "num_nodes"}
    larger = [other for other in view.others(free) if other["world_size"] > row["world_size"]]
    if not larger:  # no exchange is faster than none
        bounds = [other for other in view.others({*free, "aggregator"}) if other["aggregator"] == "none"]
        larger = [other for other in bounds if other["world_size"] > row["world_size"]]
    rate = row["global_batch"] / row["iteration_s"] if row["iteration_s"] else 0.0
    return not larger or any(other["global_batch"] / other["iteration_s"] > rate for other in larger)


LOST_SHARE = SLOW_SHARE
COMPUTING = ("forward_s", "backward_s")


def throttled_gpu(view: View) -> Values | None:
    """A GPU with limited clocks: at its full clock forward and backward would be shorter."""
    reasons = {}
    for warning in view.row["warnings"] or ():
        if warning.kind == "throttled":
            reasons.update(dict.fromkeys(warning.values["ranks"], warning.values["reason"]))
    ratios = {rank: ratio for rank in reasons if (ratio := _clock_ratio(view, rank)) is not None}
    if not ratios:
        return None
    rank = min(ratios, key=ratios.__getitem__)
    share = _with_its_excess(view, rank, (1 - ratios[rank]) * view.share(*COMPUTING))
    if share < LOST_SHARE:
        return None
    clocks = {"clock_ratio": ratios[rank], "reason": reasons[rank]}
    clocks["lost_s"] = share * (view.step_s or 0.0)
    return {"share": share, "rank": rank, "ranks": sorted(reasons), **clocks}


def shared_gpu(view: View) -> Values | None:
    """Other users' processes compute on a rank's GPU and take turns with it."""
    ranks = sorted(
        rank
        for warning in view.row["warnings"] or ()
        if warning.kind == "other_processes"
        for rank in warning.values["ranks"]
    )
    if not ranks:
        return None
    slow = view.slow_rank
    rank = slow.rank if slow is not None and slow.rank in ranks else ranks[0]
    others = max((int(gpu.get("other_processes") or 0) for gpu in view.of_rank("gpu", rank)), default=1)
    measured = slow is not None and slow.rank == rank
    most = others / (others + 1) * view.share(*COMPUTING)
    share = _with_its_excess(view, rank, 0.0) if measured else most
    values = {"rank": rank, "ranks": ranks, "others": others, "is_measured": measured}
    values["lost_s"] = share * (view.step_s or 0.0)
    return {"share": share, **values} if share >= LOST_SHARE else None


def slow_rank(view: View) -> Values | None:
    """A rank that by itself takes longer than the others, which wait for it."""
    slow = view.slow_rank
    if slow is None or not view.step_s or view.fired.keys() & {"oversubscribed", *_of_its_gpu(view)}:
        return None
    first, *_ = slow.phases_s
    return {
        "share": min(1.0, slow.lost_s / view.step_s),
        **vars(slow),
        "phase": first,
        "late_exchange": next((at for at, s in enumerate(slow.late_s) if s >= max(slow.late_s) / 2), None),
        "num_launches": view.row["repeats"],
        "queued_ratio": _queued_ratio(view, slow.rank),
    }


def periodic(view: View) -> Values | None:
    launches = view.cell.launches if view.cell else []
    slowness = periodic_slowness(launches, own_phases(view.row["step"])) if launches else None
    if slowness is None:
        return None
    values = {name: getattr(slowness, name) for name in ("period", "excess_s", "lost_s", "rank", "phase")}
    return {"share": min(1.0, slowness.lost_s / slowness.step_s), **values}


def _of_its_gpu(view: View) -> tuple[str, ...]:
    """Rules that have named the slow rank and the cause."""
    slow = view.slow_rank
    return tuple(
        name
        for name in ("throttled_gpu", "shared_gpu")
        if slow is not None and view.fired.get(name, {}).get("rank") == slow.rank
    )


def _with_its_excess(view: View, rank: int, share: float) -> float:
    """The larger of `share` and the time that the step loses by that rank."""
    slow = view.slow_rank
    if slow is None or slow.rank != rank or not view.step_s:
        return share
    return min(1.0, max(share, slow.lost_s / view.step_s))


def _clock_ratio(view: View, rank: int) -> float | None:
    """The processors' clock after the measured window over its maximum; the median over repeats."""
    ratios = [
        float(gpu["sm_clock_after_hz"]) / float(gpu["sm_clock_max_hz"])
        for gpu in view.of_rank("gpu", rank)
        if gpu.get("sm_clock_after_hz") and gpu.get("sm_clock_max_hz")
    ]
    return float(np.median(ratios)) if ratios else None


def _queued_ratio(view: View, rank: int) -> float | None:
    """The part of the window in which the rank waited for a core, if half of its excess; else None."""
    slow, queued = view.slow_rank, view.queued_ratios
    if slow is None or not view.step_s or queued is None:
        return None
    longer = queued[rank] - float(np.median(np.delete(queued, rank)))
    return queued[rank] if longer >= slow.lost_s / view.step_s / 2 else None
