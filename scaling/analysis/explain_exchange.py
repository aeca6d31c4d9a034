"""Rules about what the exchange takes of a step; the numbers they hold against are named here."""

from __future__ import annotations

import numpy as np

from scaling.analysis.explain_look import Look, Told
from scaling.analysis.formats import megabytes, milliseconds, percent

EXPOSED_SHARE = 0.2
HIDDEN_SHARE = 0.2
HOST_SHARE = 0.2
CODEC_SHARE = 0.2
SKEW_SHARE = 0.1
WAIT_SHARE = 0.2

_HOST_COLUMNS = ("d2h_s", "reduce_s", "h2d_result_s")


def exposed_communication(look: Look) -> Told | None:
    """The exchange that is not hidden under the computation."""
    share = look.share("exposed_comm_s")
    if not look.exchanges or share < EXPOSED_SHARE:
        return None
    rate = look.bytes_per_s
    at = "" if rate is None else f", {rate / 1e9:.3g} GB/s a rank"
    values = {"exposed_comm_s": look.seconds("exposed_comm_s")}
    if rate is not None:
        values["bytes_per_s"] = rate
    sentence = f"exposed communication {percent(share, 0)} of the step {_way(look)}{at}"
    return Told(sentence, _less_exposed(look), share, values)


def _way(look: Look) -> str:
    row = look.row
    if (row["num_nodes"] or 1) > 1:
        return f"between {row['num_nodes']} nodes"
    if row["device"] == "cpu":
        return "between processes"
    return "on the host link" if row["peer_access"] is False else "between the GPUs"


def _less_exposed(look: Look) -> str:
    row = look.row
    if row["peer_access"] is False:
        other = look.fastest_with({"peer_access"}, peer_access=True)
        if other is None:
            return "try peer_access=[true,false]"
        if other["iteration_s"] < row["iteration_s"]:
            return f"use peer_access=true where the machine has it: {milliseconds(other['iteration_s'])} ms"
    if row["step"] == "eager":
        other = look.fastest_with({"step", "bucket_mb"}, step="overlapped")
        if other is None:
            which = "" if look.aggregator == "all_reduce" else " with all_reduce"
            return f"try step=overlapped{which}: it hides exchange under the backward pass"
        if other["iteration_s"] < row["iteration_s"]:
            return f"use step=overlapped: {milliseconds(other['iteration_s'])} ms"
    faster = look.fastest_with({"aggregator"})
    if faster and faster["iteration_s"] < row["iteration_s"]:
        return f"use {faster['aggregator']}: {milliseconds(faster['iteration_s'])} ms"
    return "try a larger batch per worker: the exchange does not grow with it"


def not_hidden(look: Look) -> Told | None:
    """An overlapped step whose exchange overlaps nothing."""
    exposed, hidden = look.seconds("exposed_comm_s"), look.seconds("comm_hidden_s")
    total = exposed + hidden
    if look.row["step"] != "overlapped" or not look.exchanges or not total or not look.step_s:
        return None
    if hidden / total >= HIDDEN_SHARE or exposed / look.step_s < EXPOSED_SHARE / 2:
        return None
    sentence = f"the step is overlapped, but {percent(hidden / total, 0)} of its exchange is hidden"
    then = "try bucket_mb=[1,5,25]; a hook that synchronizes hides nothing at any size"
    other = look.fastest_with({"bucket_mb"}, aggregator=look.row["aggregator"])
    if other and other["iteration_s"] < look.row["iteration_s"]:
        then = f"use bucket_mb={other['bucket_mb']:g}: {milliseconds(other['iteration_s'])} ms"
    return Told(sentence, then, exposed / look.step_s, {"exposed_comm_s": exposed, "comm_hidden_s": hidden})


def compression(look: Look) -> Told | None:
    """At which bandwidth a lossy codec that was measured beside this cell would break even.

    Not in the overlapped step, whose columns hold only what of the codec's time is exposed.
    """
    row, rate = look.row, look.bytes_per_s
    if not look.exchanges or rate is None or row["encode_s"] is not None or row["step"] == "overlapped":
        return None
    coded = [
        other
        for other in look.others({"aggregator", "bucket_mb"})
        if other["cell_id"] in look.lossy
        and (other["encode_s"] or 0) + (other["decode_s"] or 0) > 0
        and (other["wire_bytes_per_rank"] or row["wire_bytes_per_rank"]) < row["wire_bytes_per_rank"]
    ]
    if not coded:
        return None
    other = min(coded, key=lambda one: float(one["iteration_s"]))
    codec_s = (other["encode_s"] or 0.0) + (other["decode_s"] or 0.0)
    even = (row["wire_bytes_per_rank"] - other["wire_bytes_per_rank"]) / codec_s
    pays = rate < even
    sentence = (
        f"{other['aggregator']} breaks even below {even / 1e9:.3g} GB/s, measured {rate / 1e9:.3g}"
        f"{': it may pay' if pays else ': it does not pay'}"
    )
    values = {"break_even_bytes_per_s": even, "bytes_per_s": rate, "codec_s": codec_s}
    then = f"measure {other['aggregator']} in a convergence part: it is lossy" if pays else None
    return Told(sentence, then, look.share("exposed_comm_s") if pays else 0.0, values)


def host_sums(look: Look) -> Told | None:
    """Copies to the host's memory and sums there."""
    share = look.share(*_HOST_COLUMNS)
    if not look.exchanges or share < HOST_SHARE:
        return None
    parts = ", ".join(
        f"{name} {percent(look.share(column), 0)}"
        for name, column in (("copies up", "d2h_s"), ("sums", "reduce_s"), ("copies back", "h2d_result_s"))
        if look.row[column]
    )
    faster = look.fastest_with({"aggregator"})
    then = "try all_reduce or ring, which leave the host out"
    if faster and faster["iteration_s"] < look.row["iteration_s"]:
        then = f"use {faster['aggregator']}: {milliseconds(faster['iteration_s'])} ms"
    values = {name: look.seconds(name) for name in _HOST_COLUMNS}
    return Told(f"bound by the host's memory: {parts} of the step", then, share, values)


def codec(look: Look) -> Told | None:
    """Encoding and decoding of the gradient."""
    share = look.share("encode_s", "decode_s")
    if share < CODEC_SHARE:
        return None
    values = {name: look.seconds(name) for name in ("encode_s", "decode_s")}
    sentence = f"encoding and decoding take {percent(share, 0)} of the step"
    sent = look.row["wire_bytes_per_rank"]
    about = f" for {megabytes(sent)} MB sent" if sent else ""
    return Told(f"{sentence}{about}", "compare an aggregator without a codec (all_reduce)", share, values)


def straggler(look: Look) -> Told | None:
    """One rank comes to the exchange after the others."""
    skew_s = look.row["skew_s"]
    if skew_s is None or not look.step_s or skew_s / look.step_s < SKEW_SHARE or not look.exchanges:
        return None
    share = min(1.0, skew_s / look.step_s)
    last = _last_rank(look)
    who = (
        "the last rank comes"
        if last is None
        else f"rank {last[0]} comes last to the exchange in {percent(last[1], 0)} of the steps,"
    )
    sentence = f"stragglers: {who} {milliseconds(skew_s)} ms after the first, {percent(share, 0)} of the step"
    then = "look at that rank in budget.csv; `scaling export DIR --format chrome` shows all on one clock"
    return Told(sentence, then, share, {"skew_s": skew_s})


def _last_rank(look: Look) -> tuple[int, float] | None:
    """The rank that comes last most often, and in which part of the split steps."""
    lates = [
        [rank.arrived_after_first_s for rank in ranks]
        for launch in (look.cell.launches if look.cell else [])
        for ranks in launch.budgets
    ]
    known = [np.array(late_s, dtype=float) for late_s in lates if None not in late_s]
    if not known:
        return None
    counts = np.bincount([int(late_s.argmax()) for late_s in known])
    return int(counts.argmax()), float(counts.max() / len(known))


def waiting(look: Look) -> Told | None:
    """Barriers on the host."""
    share = look.share("wait_s")
    if share < WAIT_SHARE:
        return None
    then = "look at arrived_after_first_s in budget.csv: who is late"
    sentence = f"waiting for other ranks {percent(share, 0)} of the step, on the rank that waits least"
    return Told(sentence, then, share, {"wait_s": look.seconds("wait_s")})
