"""Rules about what makes a cell's numbers doubtful, or what it did not reach."""

from __future__ import annotations

from scaling.analysis.cautions import LARGEST_LOOKING
from scaling.analysis.columns import SEPARATOR
from scaling.analysis.explain_look import Look, Told
from scaling.analysis.formats import percent, ratio, workers
from scaling.analysis.learning import REACHED

WIDE_INTERVAL = 0.05
LARGE_FLOOR = 0.05
NO_SPEEDUP = 1.0


def failed(look: Look) -> Told | None:
    """Runs that ended with a reason."""
    if look.row["state"] != "failed":
        return None
    reason = str(look.row["reason"])
    memory = "memory" in reason.lower()
    then = "try a smaller batch per worker" if memory else "mend it, then `run --retry-failed`"
    return Told(f"failed: {reason}", then, 1.0, {})


def disturbed_gpu(look: Look) -> Told | None:
    """Clocks held down, or others on the GPU."""
    warnings = (look.row["warnings"] or "").split(SEPARATOR)
    told = [text for text in warnings if text.startswith(("throttled", "other processes"))]
    if not told:
        return None
    then = "measure it again on a quiet, cool machine, into another folder"
    return Told("; ".join(told), then, 1.0, {})


def no_speedup(look: Look) -> Told | None:
    """Several workers get through fewer samples than one."""
    row = look.row
    if row["world_size"] < 2 or row["speedup"] is None or row["speedup"] >= NO_SPEEDUP:
        return None
    sentence = (
        f"{workers(row['world_size'])} get through fewer samples than one: speedup {ratio(row['speedup'])}"
    )
    then = "fewer workers, or a larger batch per worker"
    return Told(sentence, then, 1 - row["speedup"], {"speedup": row["speedup"]})


def scatter(look: Look) -> Told | None:
    """A wide interval."""
    row = look.row
    if row["iteration_s"] is None or row["iteration_s_low"] is None:
        return None
    half = (row["iteration_s_high"] - row["iteration_s_low"]) / 2 / row["iteration_s"]
    if half <= WIDE_INTERVAL:
        return None
    sentence = f"the 95% interval is +-{percent(half, 0)} ({row['interval_method']})"
    then = f"repeats={max(5, 2 * int(row['repeats'] or 1))}"
    return Told(sentence, then, min(1.0, half), {"half_width_ratio": half})


def noise(look: Look) -> Told | None:
    """A/A pairs that differ much."""
    floor = look.row["noise_floor"]
    if floor is None or floor <= LARGE_FLOOR:
        return None
    sentence = f"two measurements of the same differ by up to {percent(floor)} here"
    return Told(sentence, "a quiet machine, longer min_seconds", min(1.0, floor), {"noise_floor": floor})


def looking(look: Look) -> Told | None:
    """Marks that change what they show."""
    own_s, step_s = look.row["looking_s"], look.step_s
    if own_s is None or not step_s or abs(own_s) <= LARGEST_LOOKING * step_s:
        return None
    than = "longer" if own_s > 0 else "shorter"
    sentence = f"the split steps are {percent(abs(own_s) / step_s)} {than} than unsplit ones"
    then = "trust iteration_s, and the budget's shares only so far"
    return Told(sentence, then, min(1.0, abs(own_s) / step_s), {"looking_s": own_s})


def one_launch(look: Look) -> Told | None:
    """Nothing is known of other launches."""
    if look.row["kind"] != "iteration" or look.row["repeats"] != 1 or look.row["state"] != "done":
        return None
    return Told("measured in one launch: others may differ by more than its interval", "repeats=3", 0.0, {})


def target(look: Look) -> Told | None:
    """A training that did not reach its accuracy."""
    row = look.row
    if row["target_state"] in (None, REACHED):
        return None
    sentence = f"the target of {percent(row['target_accuracy'])} was {row['target_state']}"
    values = {"target_accuracy": float(row["target_accuracy"])}
    return Told(sentence, f"epochs={2 * int(row['epochs'] or 1)}, or another learning_rate", 1.0, values)
