"""Rules about what takes the time of a step beside the exchange, with the numbers that they hold against."""

from __future__ import annotations

from scaling.analysis.explain_look import Look, Told
from scaling.analysis.formats import milliseconds, percent, workers

BUSY_ENOUGH = 0.7
BATCH_SPEED = 0.5
INPUT_SHARE = 0.1
UPDATE_SHARE = 0.25
OPEN_SHARE = 0.1
COMPUTE_SHARE = 0.6


def oversubscribed(look: Look) -> Told | None:
    """More threads than cores: workers take turns."""
    row = look.row
    if row["device"] != "cpu" or look.num_cores is None or row["iteration_s"] is None:
        return None
    busy = row["world_size"] // (row["num_nodes"] or 1) * (row["threads"] or 1)
    if busy <= look.num_cores:
        return None
    values = {"threads": float(busy), "cores": float(look.num_cores)}
    sentence = f"{workers(row['world_size'])} with {busy} threads in all share {look.num_cores} CPU cores"
    return Told(f"{sentence}: they take turns", f"world_sizes up to {look.num_cores}", 1.0, values)


def launches(look: Look) -> Told | None:
    """The captured step does the same work in less time: the rest was launching it."""
    row = look.row
    if row["device"] != "cuda" or row["step"] == "captured" or row["iteration_s"] is None:
        return None
    captured = look.fastest_with({"step", "bucket_mb"}, step="captured")
    if captured is None:
        return _launches_in_computation(look)
    busy = captured["iteration_s"] / row["iteration_s"]
    if busy >= BUSY_ENOUGH:
        return None
    times = f"{milliseconds(captured['iteration_s'])} of {milliseconds(row['iteration_s'])} ms"
    sentence = (
        f"bound by Python launches: GPU busy at most {percent(busy, 0)} of the step, "
        f"captured it takes {times}"
    )
    values = {"iteration_s": row["iteration_s"], "captured_iteration_s": captured["iteration_s"]}
    return Told(sentence, "use step=captured", 1 - busy, values)


def _launches_in_computation(look: Look) -> Told | None:
    """The same of forward and backward alone, by a captured cell with another aggregator or input."""
    free = {"step", "bucket_mb", "aggregator", "input_placement", "loader_workers"}
    captured = [other for other in look.others(free) if other["step"] == "captured" and other["backward_s"]]
    if not captured or not look.compute_s:
        return None
    captured_s = min(float(other["forward_s"] + other["backward_s"]) for other in captured)
    busy = captured_s / look.compute_s
    if busy >= BUSY_ENOUGH:
        return None
    sentence = (
        f"bound by Python launches: GPU busy at most {percent(busy, 0)} of forward and backward, captured "
        f"they take {milliseconds(captured_s)} of {milliseconds(look.compute_s)} ms"
    )
    share = (1 - busy) * look.share("forward_s", "backward_s")
    values = {"compute_s": look.compute_s, "captured_compute_s": captured_s}
    return Told(sentence, "use step=captured with all_reduce or ring", share, values)


def small_batch(look: Look) -> Told | None:
    """A GPU computes a sample much more slowly than with a larger batch."""
    row, own_s = look.row, look.compute_s
    if row["device"] != "cuda" or not own_s:
        return None
    free = {"world_size", "local_batch", "global_batch", "aggregator", "bucket_mb", "scaling"}
    larger = [
        other
        for other in look.others(free)
        if other["local_batch"] > row["local_batch"] and other["forward_s"] and other["backward_s"]
    ]
    if not larger:
        return None
    other = max(larger, key=lambda one: (one["local_batch"], -float(one["iteration_s"])))
    other_s = float(other["forward_s"] + other["backward_s"])
    speed = other_s / other["local_batch"] / (own_s / row["local_batch"])
    if speed >= BATCH_SPEED:
        return None
    sentence = (
        f"batch per GPU {row['local_batch']} leaves the GPU idle: forward and backward take "
        f"{milliseconds(own_s)} ms, and {milliseconds(other_s)} ms at {other['local_batch']}"
    )
    then = "a larger batch" if row["step"] == "captured" else "step=captured, or a larger batch"
    values = {"compute_s": own_s, "compute_s_at_larger_batch": other_s, "speed_per_sample_ratio": speed}
    return Told(
        sentence, f"try {then}, or fewer GPUs", (1 - speed) * look.share("forward_s", "backward_s"), values
    )


def feeding(look: Look) -> Told | None:
    """Batches that the step waits for."""
    share = look.share("input_s", "h2d_s")
    if share < INPUT_SHARE:
        return None
    where = look.row["input_placement"]
    told: dict[str, tuple[str, str | None]] = {
        "pageable": ("input over pageable memory", "try input_placement=pinned"),
        "pinned": ("input copies are not hidden under the step before", "try input_placement=device"),
        "loader": (
            f"input bound by the loader ({look.row['loader_workers'] or 0} workers)",
            "try more loader_workers, or input_placement=pinned",
        ),
    }
    on_device = "compare input_placement=pinned" if look.row["device"] == "cuda" else None
    sentence, then = told.get(where, ("gathering the batch on the device", on_device))
    if look.row["augmentation"] == "standard":  # on the device, wherever the batch comes from
        sentence = f"{sentence}, and augmentation"
        then = f"compare augmentation=none{f', then {then}' if then else ''}"
    values = {name: look.seconds(name) for name in ("input_s", "h2d_s")}
    return Told(f"{sentence}: {percent(share, 0)} of the step", then, share, values)


def update(look: Look) -> Told | None:
    """The optimizer's step."""
    share = look.share("update_s")
    if share < UPDATE_SHARE or "launches" in look.fired:
        return None
    then = "try a larger batch per worker: the update does not grow with it"
    return Told(
        f"the update takes {percent(share, 0)} of the step",
        then,
        share,
        {"update_s": look.seconds("update_s")},
    )


def open_time(look: Look) -> Told | None:
    """Time in no phase."""
    share = look.share("unexplained_s")
    if share < OPEN_SHARE:
        return None
    sentence = f"{percent(share, 0)} of the step lies in no phase: the host does something between them"
    then = "look at it: `scaling export DIR --format chrome`"
    return Told(sentence, then, share, {"unexplained_s": look.seconds("unexplained_s")})


def computation(look: Look) -> Told | None:
    """Forward and backward, where nothing says that the device was idle in them."""
    share = look.share("forward_s", "backward_s")
    if share < COMPUTE_SHARE or look.fired & {"launches", "small_batch", "oversubscribed"}:
        return None
    row = look.row
    then = "more workers share it"
    if row["device"] == "cuda" and row["precision"] == "float32":
        then = "more workers share it; tf32=true makes matrix products faster, and less exact"
    if (
        row["device"] == "cuda"
        and row["step"] != "captured"
        and look.fastest_with({"step", "bucket_mb"}, step="captured") is None
    ):
        then += "; step=captured would tell whether launches are part of it"
    sentence = f"bound by computation: forward and backward {percent(share, 0)} of the step"
    values = {name: look.seconds(name) for name in ("forward_s", "backward_s")}
    return Told(sentence, then, share, values)
