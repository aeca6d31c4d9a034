"""Rules about what takes the time of a step besides the exchange, with the numbers that they hold against."""

from __future__ import annotations

from scaling.analysis.explain_view import Values, View

BUSY_ENOUGH = 0.7
BATCH_SPEED = 0.5
INPUT_SHARE = 0.1
UPDATE_SHARE = 0.25
OPEN_SHARE = 0.1
COMPUTE_SHARE = 0.6


def oversubscribed(view: View) -> Values | None:
    """More threads than cores: workers take turns."""
    row = view.row
    if row["device"] != "cpu" or view.num_cores is None or row["iteration_s"] is None:
        return None
    busy = row["world_size"] // (row["num_nodes"] or 1) * (row["threads"] or 1)
    if busy <= view.num_cores:
        return None
    return {"share": 1.0, "world_size": row["world_size"], "threads": busy, "cores": view.num_cores}


def launches(view: View) -> Values | None:
    """The captured step does the same work in less time: the rest was launching it."""
    row = view.row
    if row["device"] != "cuda" or row["step"] == "captured" or row["iteration_s"] is None:
        return None
    captured = view.fastest_with({"step", "bucket_mb"}, step="captured")
    if captured is None:
        return _launches_in_computation(view)
    busy = captured["iteration_s"] / row["iteration_s"]
    if busy >= BUSY_ENOUGH:
        return None
    times = {"iteration_s": row["iteration_s"], "captured_iteration_s": captured["iteration_s"]}
    return {"share": 1 - busy, "busy_ratio": busy, **times}


def _launches_in_computation(view: View) -> Values | None:
    """The same of forward and backward alone, by a captured cell with another aggregator or input."""
    free = {"step", "bucket_mb", "aggregator", "input_placement", "loader_workers"}
    captured = [other for other in view.others(free) if other["step"] == "captured" and other["backward_s"]]
    if not captured or not view.compute_s:
        return None
    captured_s = min(float(other["forward_s"] + other["backward_s"]) for other in captured)
    busy = captured_s / view.compute_s
    if busy >= BUSY_ENOUGH:
        return None
    share = (1 - busy) * view.share("forward_s", "backward_s")
    times = {"compute_s": view.compute_s, "captured_compute_s": captured_s}
    return {"share": share, "busy_ratio": busy, **times}


def small_batch(view: View) -> Values | None:
    """A GPU computes a sample much more slowly than with a larger batch."""
    row, compute_s = view.row, view.compute_s
    if row["device"] != "cuda" or not compute_s:
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
        "local_batch": row["local_batch"],
        "larger_batch": other["local_batch"],
        "step": row["step"],
    }


def feeding(view: View) -> Values | None:
    """Batches that the step waits for."""
    share = view.share("input_s", "h2d_s")
    if share < INPUT_SHARE:
        return None
    names = ("input_placement", "loader_workers", "augmentation", "device")
    times = {name: view.seconds(name) for name in ("input_s", "h2d_s")}
    return {"share": share, **times, **{name: view.row[name] for name in names}}


def update(view: View) -> Values | None:
    """The optimizer's step."""
    share = view.share("update_s")
    if share < UPDATE_SHARE or "launches" in view.fired:
        return None
    return {"share": share, "update_s": view.seconds("update_s")}


def open_time(view: View) -> Values | None:
    """Time in no phase."""
    share = view.share("unattributed_s")
    return None if share < OPEN_SHARE else {"share": share, "unattributed_s": view.seconds("unattributed_s")}


def computation(view: View) -> Values | None:
    """Forward and backward, where nothing says that the device was idle in them."""
    share = view.share("forward_s", "backward_s")
    if share < COMPUTE_SHARE or view.fired & {"launches", "small_batch", "oversubscribed"}:
        return None
    row = view.row
    on_gpu = row["device"] == "cuda"
    captured = row["step"] == "captured" or view.fastest_with({"step", "bucket_mb"}, step="captured")
    return {
        "share": share,
        **{name: view.seconds(name) for name in ("forward_s", "backward_s")},
        "has_tf32_left": on_gpu and row["precision"] == "float32",
        "lacks_captured": on_gpu and not captured,
    }
