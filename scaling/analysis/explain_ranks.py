"""Rules about one slow rank or one slow step: which phase is slow, and why."""

from __future__ import annotations

import numpy as np

from scaling.analysis.explain_view import Values, View
from scaling.analysis.periodic import periodic_slowness
from scaling.analysis.rank_times import SLOW_SHARE

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
    return {"share": share, "rank": rank, "ranks": sorted(reasons), **clocks, **_lost(view, share)}


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
    return {"share": share, **values, **_lost(view, share)} if share >= LOST_SHARE else None


def slow_rank(view: View) -> Values | None:
    """A rank that by itself takes longer than the others, which wait for it."""
    slow = view.slow_rank
    if slow is None or not view.step_s or view.fired.keys() & {"oversubscribed", *_of_its_gpu(view)}:
        return None
    first, *_ = slow.phases_s
    return {
        "share": min(1.0, slow.lost_s / view.step_s),
        "rank": slow.rank,
        "phase": first,
        "phases_s": dict(slow.phases_s),
        "lost_s": slow.lost_s,
        "bucket": slow.bucket,
        "num_buckets": slow.num_buckets,
        "late_s": list(slow.late_s),
        "late_exchange": _first_late(slow.late_s),
        "steps_ratio": slow.steps_ratio,
        "num_launches": view.row["repeats"],
        "queued_ratio": _queued_ratio(view, slow.rank),
    }


def periodic(view: View) -> Values | None:
    """Every k-th step is slow."""
    launches = view.cell.launches if view.cell else []
    slowness = periodic_slowness(launches, view.own_phases) if launches else None
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


def _lost(view: View, share: float) -> Values:
    return {"lost_s": share * (view.step_s or 0.0)}


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


def _first_late(late_s: tuple[float, ...]) -> int | None:
    """The first exchange by which most of the rank's lateness has occurred; None if unknown."""
    return next((at for at, lateness_s in enumerate(late_s) if lateness_s >= max(late_s) / 2), None)
