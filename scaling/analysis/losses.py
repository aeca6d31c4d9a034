"""What a step takes beyond that of an ideal speedup, as a verdict says it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scaling.analysis.candidates import OF_PEERS, Candidate
from scaling.analysis.columns import Row
from scaling.analysis.findings import Finding
from scaling.axes import Role, columns

LEAST_LOSS = 0.1  # a step that loses less of its time to several workers is limited by something else
LEAST_PART = 0.02  # a smaller part of a step is not worth a word
LEAST_SHARE = 0.005  # nor is a smaller share in the list of all

SAID_HERE = ("exposed_communication", "not_hidden", "waiting", "update", "computation")
"""Rules of which the losses say the same, with the largest first."""


def single_like(row: Row, singles: Sequence[Candidate]) -> Candidate | None:
    """That of one worker with the same further choices."""
    same = [name for name in columns(role=Role.CHOSEN) if name not in OF_PEERS]
    return next((one for one in singles if all(one.row[name] == row[name] for name in same)), None)


def losses_of(choice: Candidate, others: Sequence[Candidate], limit: Finding | None) -> dict[str, Any] | None:
    """What a step takes beyond that of an ideal speedup, by the control arm: what the exchange adds
    (`exchange_range_s`: with the exposed time, where the two differ), and the rest; of the choice, or of the
    fastest with several workers. None where less than LEAST_LOSS is lost, or a rule names the cause."""
    row = choice.row
    if row["world_size"] == 1:
        several = [other.row for other in others if other.row["world_size"] > 1]
        if not several:
            return None
        row = min(several, key=lambda other: float(other["iteration_s"] or math.inf))
    elif limit is not None and limit.kind not in SAID_HERE:
        return None
    if row["parallel_efficiency"] is None or row["exposed_by_difference_s"] is None:
        return None
    step_s, exchange_s = row["iteration_s"], row["exposed_by_difference_s"]
    lost_s = step_s * (1 - row["parallel_efficiency"])
    if lost_s < LEAST_LOSS * step_s:
        return None
    check, spans_s = row["exposed_check"], row["exchange_overhead_s"]
    agrees = check is None or check.kind == "exposed_times_agree" or spans_s is None
    known_to_s = (
        0.0 if row["iteration_s_high"] is None else (row["iteration_s_high"] - row["iteration_s_low"]) / 2
    )
    rest_s = lost_s - exchange_s
    shares = _shares(row, lost_s, exchange_s, _computation(row, [choice, *others]))
    return {
        "world_size": row["world_size"],
        "local_batch": row["local_batch"],
        "iteration_s": step_s,
        "is_strong": row["scaling"] == "strong",
        "ideal_s": step_s - lost_s,
        "exchange_s": exchange_s,
        "exchange_range_s": sorted(max(0.0, one) for one in (exchange_s, exchange_s if agrees else spans_s)),
        "is_resolved": agrees or check.kind == "exposed_times_differ",
        "rest_s": rest_s if rest_s > max(known_to_s, LEAST_PART * step_s) else None,
        "shares": shares,
        "largest": max((name for name in shares if name != "ideal"), key=lambda name: shares[name]),
        "communication_s": (row["exposed_comm_s"] or 0.0) + (row["hidden_comm_s"] or 0.0),
        "bytes_per_s": limit.values.get("bytes_per_s") if limit is not None and row is choice.row else None,
    }


def _shares(row: Row, lost_s: float, exchange_s: float, computation_s: float | None) -> dict[str, float]:
    """Part of a step -> its share, `ideal` first; `other`: what profiled steps do not explain."""
    exchange_s = min(max(exchange_s, 0.0), lost_s)
    rest_s = lost_s - exchange_s
    if computation_s is None:
        lost = {"all but the exchange": rest_s}
    else:
        computation_s = min(max(computation_s, 0.0), rest_s)
        lost = {"computation": computation_s, "other": rest_s - computation_s}
    lost["exchange"] = exchange_s
    shares = {"ideal": 1 - lost_s / row["iteration_s"]}
    shares |= {name: seconds / row["iteration_s"] for name, seconds in lost.items()}
    return {name: share for name, share in shares.items() if share >= LEAST_SHARE}


def _computation(row: Row, candidates: Sequence[Candidate]) -> float | None:
    """Seconds of computation over its share of one worker's, by the profiled steps; None where not known."""
    like = single_like(row, [one for one in candidates if one.row["world_size"] == 1])
    names = ("forward_s", "backward_s", "update_s")
    if like is None or any(one[name] is None for one in (row, like.row) for name in names):
        return None
    divided_by = row["world_size"] if row["scaling"] == "strong" else 1
    return float(sum(row[name] - like.row[name] / divided_by for name in names))
