"""Rules about the exchange's share of a step; their thresholds are named here."""

from __future__ import annotations

from itertools import takewhile

from scaling.analysis.columns import aggregator_name, is_of_older_code
from scaling.analysis.decisions import TIE_RATIO
from scaling.analysis.explain_view import Values, View
from scaling.measure.budget import EXCHANGE, HOOK

EXPOSED_SHARE = 0.1
HIDDEN_SHARE = 0.2
HOST_SHARE = 0.1
CODEC_SHARE = 0.1
TINY_BUCKET_BYTES = 2**19
FEW_BUCKETS = 4
WAIT_SHARE = 0.1

SAME_TRAINING = ("aggregator", "model", "dataset", "state", "world_size")
_HOST_COLUMNS = ("d2h_s", "reduce_s", "h2d_result_s")


def exposed_communication(view: View) -> Values | None:
    """The part of the exchange that computation does not hide."""
    share = view.share("exposed_comm_s")
    if not view.exchanges or share < EXPOSED_SHARE or _is_a_symptom(view, share):
        return None
    rate = {} if view.bytes_per_s is None else {"bytes_per_s": view.bytes_per_s}
    where = {name: view.row[name] for name in ("num_nodes", "device", "peer_access")}
    return {"share": share, "exposed_comm_s": view.seconds("exposed_comm_s"), **rate, **where, **_less(view)}


def _is_a_symptom(view: View, share: float) -> bool:
    """Whether an earlier finding explains the long exchange: its threads have no core either."""
    busy = view.fired.get("busy_host", {}).get("share", 0.0)
    return bool(view.fired.keys() & {"oversubscribed", "tiny_buckets"}) or share < busy


def _less(view: View) -> Values:
    """How to reduce it: `remedy`, and if that was measured, its aggregator and time."""
    row = view.row
    if row["peer_access"] is False:
        if view.fastest_with({"peer_access"}, peer_access=True) is None:
            return {"remedy": "peer_access"}
        if faster := view.faster_with({"peer_access"}, peer_access=True):
            return {"remedy": "peer_access", **faster}
    if row["step"] == "eager":
        free, wanted = {"step", "bucket_mb"}, {"step": "overlapped"}
        is_other = aggregator_name(row["aggregator"]) != "all_reduce"
        with_all_reduce = is_other and view.fastest_with(free, **wanted) is None
        if with_all_reduce:
            free, wanted = {*free, "aggregator"}, {**wanted, "aggregator": "all_reduce"}
        remedy = {"remedy": "overlapped", "with_all_reduce": with_all_reduce}
        if view.fastest_with(free, **wanted) is None:
            return remedy
        if faster := view.faster_with(free, **wanted):
            return {**remedy, **faster}
    faster = view.faster_with({"aggregator"})
    return {"remedy": "aggregator", **faster} if faster else {"remedy": "larger_batch"}


def tiny_buckets(view: View) -> Values | None:
    """An overlapped step with many small exchanges: each costs the same regardless of its size."""
    row, sent = view.row, view.row["wire_bytes_per_rank"]
    steps = [step for launch in (view.cell.launches if view.cell else []) for step in launch.profiled_steps]
    if row["step"] != "overlapped" or not view.exchanges or not sent or not steps or not view.step_s:
        return None
    if row["bucket_mb"] is None and row["bucket_sizes_mb"] is None:
        return None  # tensor by tensor: there are no buckets to enlarge
    count = sum(span.phase == EXCHANGE and span.lane != HOOK for span in steps[0].ranks[0].spans)
    if count < FEW_BUCKETS or sent / count > TINY_BUCKET_BYTES:
        return None
    better = view.faster_with({"bucket_mb"}, aggregator=row["aggregator"])
    share = view.share("exposed_comm_s") * (1 - 1 / count)
    if better:
        share = max(share, 1 - better["better_iteration_s"] / row["iteration_s"])
    if share < EXPOSED_SHARE:
        return None
    return {"share": share, "num_buckets": count, "bytes_per_bucket": sent / count, **better}


def not_hidden(view: View) -> Values | None:
    """An overlapped step that does not hide its exchange."""
    exposed, hidden = view.seconds("exposed_comm_s"), view.seconds("hidden_comm_s")
    total = exposed + hidden
    if view.row["step"] != "overlapped" or not view.exchanges or not total or not view.step_s:
        return None
    share = exposed / view.step_s
    if hidden / total >= HIDDEN_SHARE or share < EXPOSED_SHARE or _is_a_symptom(view, share):
        return None
    better = view.faster_with({"bucket_mb"}, aggregator=view.row["aggregator"])
    times = {"exposed_comm_s": exposed, "hidden_comm_s": hidden}
    return {"share": share, "hidden_ratio": hidden / total, **times, **better}


def compression(view: View) -> Values | None:
    """Where a lossy codec that was measured with this cell breaks even, but in overlapped steps."""
    row, rate = view.row, view.bytes_per_s
    if not view.exchanges or rate is None or row["encode_s"] is not None or row["step"] == "overlapped":
        return None
    alike = view.study.like(row, {"aggregator", "bucket_mb"})  # fastest first
    coded = (
        other
        for other in alike
        if other["cell_id"] in view.study.lossy
        and (other["encode_s"] or 0) + (other["decode_s"] or 0) > 0
        and (other["wire_bytes_per_rank"] or row["wire_bytes_per_rank"]) < row["wire_bytes_per_rank"]
        and not is_of_older_code(other)
    )
    faster = takewhile(lambda other: (1 + TIE_RATIO) * other["iteration_s"] < row["iteration_s"], alike)
    is_beaten = any(
        (other["wire_bytes_per_rank"] or 0) > 0
        and other["cell_id"] not in view.study.lossy
        and not is_of_older_code(other)
        for other in faster
    )
    other = next(coded, None)
    if other is None or is_beaten:  # by another exact exchange: that is the advice
        return None
    codec_s = (other["encode_s"] or 0.0) + (other["decode_s"] or 0.0)
    times, interval = view.times_of(other)
    is_faster = times * (1 + TIE_RATIO) < 1
    pays = is_faster and interval is not None and interval[1] < 1
    return {
        "share": 1 - times if pays else 0.0,
        "aggregator": other["aggregator"],
        "break_even_bytes_per_s": (row["wire_bytes_per_rank"] - other["wire_bytes_per_rank"]) / codec_s,
        "bytes_per_s": rate,
        "codec_s": codec_s,
        "iteration_s": other["iteration_s"],
        "times": times,
        "interval": interval,
        "pays": pays,
        "is_unsure": is_faster and not pays,
        "is_trained": any(
            one["kind"] == "convergence" and all(one[name] == other[name] for name in SAME_TRAINING)
            for one in view.study.rows
        ),
    }


def host_sums(view: View) -> Values | None:
    """Copies to the host's memory and sums there."""
    share = view.share(*_HOST_COLUMNS)
    if not view.exchanges or share < HOST_SHARE:
        return None
    return {
        "share": share,
        **{name: view.seconds(name) for name in _HOST_COLUMNS},
        "shares": {name: view.share(name) for name in _HOST_COLUMNS if view.row[name]},
        **view.faster_with({"aggregator"}),
    }


def codec(view: View) -> Values | None:
    share = view.share("encode_s", "decode_s")
    if share < CODEC_SHARE:
        return None
    times = {name: view.seconds(name) for name in ("encode_s", "decode_s")}
    return {"share": share, **times, "wire_bytes_per_rank": view.row["wire_bytes_per_rank"]}


def waiting(view: View) -> Values | None:
    share = view.share("wait_s")
    if share < WAIT_SHARE or view.largest_avoidable > WAIT_SHARE:
        return None
    return {"share": share, "wait_s": view.seconds("wait_s")}
