"""The answer of a study, as data: how many workers, which aggregator, what limits, what next, how sure.

1. `recommend` names of each workload the best setting, and those that the samples cannot distinguish from it.
2. How many workers: the world size of the best setting, with all others that are not shown to be slower.
   One that cannot be faster by more than TIE_RATIO, and was measured slower by more, is left out, also in 3.
3. Which aggregator, on so many workers: those that are shown to be faster by TIE_RATIO at most are equally
   fast; another one that is not distinguished leaves the choice open.

The template `verdict` and its parts say it, for `run`, `recommend` and the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from scaling.analysis.candidates import ACCURACY, NO_EXCHANGE, OF_PEERS, TIME, Candidate, Excluded, workloads
from scaling.analysis.columns import SPEEDUP, Row, is_of_older_code, pick, to_rows, unit_of_workers
from scaling.analysis.decisions import TIE_RATIO
from scaling.analysis.explain import is_too_noisy
from scaling.analysis.explain_view import Known, View
from scaling.analysis.findings import Finding
from scaling.analysis.recommend import Recommendation, recommend
from scaling.analysis.samples import CellResult
from scaling.axes import Role, columns
from scaling.measure.statistics import ONE_LAUNCH

NAMED_RATIO = 1.1  # measured time to the choice's, up to which a setting is named as not resolved from it
WIDE_RATIO = 1.5  # upper end to lower end of an interval, above which it is named instead of its middle
Ratios = Mapping[str, tuple[float, float]]  # cell id -> the interval of its time over the choice's
OBJECTIVES = (TIME, ACCURACY)  # those of which a study has an answer, where it measured them
LEAST_LOSS = 0.1  # a step that loses less of its time to several workers is limited by something else
LEAST_PART = 0.02  # a smaller part of a step is not worth a word
LEAST_SHARE = 0.005  # nor is a smaller share in the list of all
# Rules of which the losses say the same, with the largest first.
SAID_HERE = ("exposed_communication", "not_hidden", "waiting", "update", "computation")


def verdicts(
    table: pd.DataFrame, cells: Sequence[CellResult], num_cores: int | None = None, known: Known | None = None
) -> list[Finding]:
    """The answers of a study, one per workload and objective: findings `verdict`, the time's first."""
    verdicts, known = [], known or Known.of(to_rows(table), cells, num_cores)
    for objective in OBJECTIVES:
        sets = workloads(objective, known.rows, cells)
        found = recommend(table, cells, objective, known=known)
        for workload, recommendation in zip(sets, found, strict=True):
            if recommendation.choice is not None:
                verdicts.append(verdict_of(recommendation, workload.candidates, workload.excluded, known))
    return verdicts


def _has_one_worker_once(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a script of the user's, which runs several times, ran on one worker in a single launch."""
    return row["arm"] is not None and any(
        other["arm"] == "one_worker" and other["model"] == row["model"] and other["repeats"] == 1
        for other in rows
    )


def verdict_of(
    recommendation: Recommendation,
    candidates: Sequence[Candidate],
    excluded: Sequence[Excluded],
    known: Known,
) -> Finding:
    """The answer for one workload, whose recommendation has a choice; `known`: of the study."""
    choice = recommendation.choice
    assert choice is not None
    row, size = choice.row, choice.row["world_size"]
    others = [candidate for candidate in candidates if candidate.row["cell_id"] != row["cell_id"]]
    rivals, ties = _rivals_and_ties(recommendation, choice, others)
    as_fast = {rival.cell_id for rival in rivals}
    slower = [other for other in others if other.cell_id not in as_fast]
    same_size = [rival for rival in rivals if rival.row["world_size"] == size]
    open_sizes = sorted({rival.row["world_size"] for rival in rivals} - {size})
    sizes = sorted({candidate.row["world_size"] for candidate in candidates})
    measured = _measured(choice, candidates, recommendation.ratios)
    values = {
        "objective": recommendation.objective,
        "workload": recommendation.workload,
        "scaling": row["scaling"],
        "unit": unit_of_workers(row),
        "world_size": size,
        "world_sizes": sizes,
        "lacks_one_worker": sizes[0] > 1 and measured["speedup"] is None and row["arm"] is None,
        "open_world_sizes": open_sizes,
        "untrained": _untrained(candidates, excluded),
        "lossy_sizes": sorted({row["world_size"] for row in _timed_lossy(excluded)} - {*sizes}),
        **measured,
        "setting": _choice_setting(choice, ties),
        "shared": _shared(choice, ties),
        "ties": [_setting(tie, choice) for tie in ties],
        "are_surely_ties": {tie.cell_id for tie in ties}
        <= ({rival.candidate.cell_id for rival in recommendation.rivals if rival.is_same}),
        "tie_ratio": TIE_RATIO,
        "unresolved": [_setting(other, choice) for other in _nearest(choice, same_size) if other not in ties],
        "ruled_out": [_setting(other, choice) for other in slower if other.row["world_size"] == size],
        "ruled_out_sizes": sorted({other.row["world_size"] for other in slower} - {size, *open_sizes}),
        "remarks": recommendation.remarks,
        **_lossy_of_unknown_accuracy(choice, excluded),
        "next_best": _next_best(choice, slower, recommendation.ratios),
        "other_size": _best_of_other_sizes(choice, others),
        "limit": recommendation.limit,
        "measured": View(row, known).measured,
        "losses": losses_of(choice, others, recommendation.limit),
        "confidence": (confidence := _confidence(choice, open_sizes, is_tie=len(ties) == len(same_size))),
        "is_too_noisy": confidence in ("one_launch", "workers_open") and is_too_noisy(recommendation.doubts),
        "num_launches": choice.num_launches,
        "has_one_worker_once": _has_one_worker_once(choice.row, known.rows),
        "half_width_ratio": None
        if choice.low is None or choice.high is None
        else (choice.high - choice.low) / 2 / choice.value,
        "noise_floor": choice.row["noise_floor"],
        **{name: getattr(recommendation, name) for name in ("more_repeats", "is_noisy", "doubts")},
    }
    return Finding("verdict", tuple(other.row["cell_id"] for other in (choice, *ties)), values)


def _nearest(choice: Candidate, rivals: Sequence[Candidate]) -> list[Candidate]:
    """Those to be named, the fastest first; those measured far slower only where no other is."""
    nearest = sorted(rivals, key=lambda rival: _ratio(rival, choice))
    return [rival for rival in nearest if _ratio(rival, choice) <= NAMED_RATIO] or nearest[:1]


def _rivals_and_ties(
    recommendation: Recommendation, choice: Candidate, others: Sequence[Candidate]
) -> tuple[list[Candidate], list[Candidate]]:
    """Those that may be as fast, and of them the ones with as many workers that are a tie."""
    rival_ids = {rival.candidate.row["cell_id"] for rival in recommendation.rivals}
    tie_ids = {rival.candidate.row["cell_id"] for rival in recommendation.rivals if rival.why == "tie"}
    # One that cannot be faster by more than a tie, and was measured slower by more, is no choice.
    slower_ids = {
        other.row["cell_id"]
        for other in others
        if other.row["cell_id"] in tie_ids and _ratio(other, choice) > 1 + TIE_RATIO
    }
    rivals = [other for other in others if other.row["cell_id"] in rival_ids - slower_ids]
    size = choice.row["world_size"]
    ties = [rival for rival in rivals if rival.row["world_size"] == size and rival.row["cell_id"] in tie_ids]
    return rivals, ties


def _untrained(candidates: Sequence[Candidate], excluded: Sequence[Excluded]) -> dict[str, Any] | None:
    """The fastest lossy cell of unknown accuracy, if one worker is the only other choice."""
    if any(candidate.row["world_size"] > 1 for candidate in candidates):
        return None
    rows = [row for row in _timed_lossy(excluded) if (row["speedup"] or 0.0) > 1.0]
    best = max(rows, key=lambda row: float(row["samples_per_s"]), default=None)
    return best and {name: best[name] for name in ("aggregator", "world_size", "speedup", "wire")}


def _timed_lossy(excluded: Sequence[Excluded]) -> list[Row]:
    rows = [other.row for other in excluded if other.row and other.reason.kind == "lossy_not_trained"]
    return [row for row in rows if row["iteration_s"] is not None]


def _lossy_of_unknown_accuracy(choice: Candidate, excluded: Sequence[Excluded]) -> dict[str, list[str]]:
    """Lossy aggregators of unknown accuracy in the choice's setting: as fast ones, and too uncertain ones."""
    same = ("world_size", *columns(role=Role.CHOSEN))
    as_fast: dict[str, None] = {}
    open_ones: dict[str, None] = {}
    for row in _timed_lossy(excluded):
        if (
            any(row[name] != choice.row[name] for name in same)
            or is_of_older_code(row)
            or row["interval_method"] == ONE_LAUNCH
            or row["iteration_s_high"] is None
        ):
            continue
        if row["iteration_s_high"] <= (1 + TIE_RATIO) * choice.row["iteration_s"]:
            as_fast[row["aggregator"]] = None
        elif row["iteration_s_low"] <= choice.row["iteration_s"]:
            open_ones[row["aggregator"]] = None
    return {"lossy": [*as_fast], "lossy_open": [*open_ones]}


def _measured(choice: Candidate, candidates: Sequence[Candidate], ratios: Ratios) -> dict[str, Any]:
    """What the choice reaches; `single`: the aggregator of one worker that the speedup is over."""
    row = choice.row
    singles = [candidate for candidate in candidates if candidate.row["world_size"] == 1]
    if row["kind"] != "iteration":
        return {
            "seconds_to_target": choice.value,
            "target_accuracy": row["target_accuracy"],
            "single": None,
            **_over_one_worker(choice, singles, ratios),
        }
    names = ("iteration_s", "samples_per_s", "tokens_per_s", *SPEEDUP, "parallel_efficiency")
    values = {**{name: row[name] for name in names}, "single": None, "unlike": None}
    single = single_like(row, singles)
    if row["speedup"] is None and row["world_size"] > 1 and single is not None:
        speedup = _ratio(single, choice)
        ends = dict(zip(SPEEDUP, (speedup, *ratios.get(single.cell_id, (None, None))), strict=True))
        values |= {**ends, "parallel_efficiency": speedup / row["world_size"]}
        values["single"] = {name: single.row[name] for name in ("aggregator", "iteration_s")}
    return values


def _over_one_worker(choice: Candidate, singles: Sequence[Candidate], ratios: Ratios) -> dict[str, Any]:
    """The speedup of trainings, of the seeds that both have; `unlike` says where they have others."""
    shared = [single for single in singles if _shared_trainings(single, choice)]
    if not shared:
        return dict.fromkeys((*SPEEDUP, "parallel_efficiency", "unlike"))
    single = min(shared, key=lambda one: _ratio(one, choice))
    keys = _shared_trainings(single, choice)
    is_unlike = any(len(one.times.by_launch) > len(keys) for one in (single, choice))
    seeds = list(dict.fromkeys(seed for seed, _ in keys))
    speedup = _ratio(single, choice)
    ends = (None, None) if is_unlike else ratios.get(single.cell_id, (None, None))
    return {
        **dict(zip(SPEEDUP, (speedup, *ends), strict=True)),
        "parallel_efficiency": speedup / choice.row["world_size"],
        "unlike": {"num_trainings": single.num_launches, "seeds": seeds} if is_unlike else None,
    }


def _confidence(choice: Candidate, open_sizes: Sequence[int], *, is_tie: bool) -> str:
    if choice.values()["is_one_launch"] or choice.low is None:
        return "one_launch"
    if open_sizes:
        return "workers_open"
    return "sure" if is_tie else "aggregator_open"


def _setting(candidate: Candidate, choice: Candidate) -> dict[str, Any]:
    """The aggregator, and the other settings in which this differs from the choice."""
    return {
        "name": _aggregator(candidate),
        "further": [part for part in candidate.parts[1:] if part not in choice.parts],
    }


def _choice_setting(choice: Candidate, ties: Sequence[Candidate]) -> dict[str, Any]:
    """The choice, with what distinguishes it from ties of the same aggregator."""
    same = [tie for tie in ties if _aggregator(tie) == _aggregator(choice)]
    further = [part for part in choice.parts[1:] if part != NO_EXCHANGE]
    told = [part for part in further if any(part not in tie.parts for tie in same)]
    return {"name": _aggregator(choice), "further": told}


def _aggregator(candidate: Candidate) -> str:
    label = candidate.parts[0]
    return label if candidate.row["world_size"] == 1 else label.rpartition(" on ")[0]


def _shared(choice: Candidate, ties: Sequence[Candidate]) -> list[str]:
    further = [part for part in choice.parts[1:] if part != NO_EXCHANGE]
    return [part for part in further if all(part in tie.parts for tie in ties)]


def _ratio(candidate: Candidate, choice: Candidate) -> float:
    """The candidate's value over the choice's; of trainings those of the seeds that both have."""
    keys = _shared_trainings(candidate, choice)
    if not keys:
        return candidate.value / choice.value
    first, second = (median(one.times.by_launch[key] for key in keys) for one in (candidate, choice))
    return first / second


def _shared_trainings(candidate: Candidate, choice: Candidate) -> list[Any]:
    """The (seed, repeat) of trainings that both have; none of timed steps."""
    if choice.row["kind"] == "iteration":
        return []
    return sorted(candidate.times.by_launch.keys() & choice.times.by_launch.keys())


def _next_best(
    choice: Candidate, others: Sequence[Candidate], ratios: Mapping[str, tuple[float, float]]
) -> dict[str, Any] | None:
    """The fastest slower setting on as many workers, with what its times do not show."""
    slower = [other for other in others if other.row["world_size"] == choice.row["world_size"]]
    first = min(slower, key=lambda other: other.value, default=None)
    if first is None:
        return None
    slower_ratio, ends = _ratio(first, choice) - 1, ratios.get(first.cell_id)
    most_ratio = ends[1] - 1 if ends is not None and slower_ratio <= TIE_RATIO else None
    return {
        **_setting(first, choice),
        "slower_ratio": slower_ratio,
        "at_most_ratio": most_ratio,
        "range": ends if ends is not None and ends[1] > WIDE_RATIO * ends[0] else None,
    }


def _best_of_other_sizes(choice: Candidate, others: Sequence[Candidate]) -> dict[str, Any] | None:
    elsewhere = [other for other in others if other.row["world_size"] != choice.row["world_size"]]
    best = min(elsewhere, key=lambda other: other.value, default=None)
    if best is None:
        return None
    return {"world_size": best.row["world_size"], "slower_ratio": _ratio(best, choice) - 1}


def single_like(row: Row, singles: Sequence[Candidate]) -> Candidate | None:
    """That of one worker with the same further choices."""
    same = [name for name in columns(role=Role.CHOSEN) if name not in OF_PEERS]
    return next((one for one in singles if all(one.row[name] == row[name] for name in same)), None)


def losses_of(choice: Candidate, others: Sequence[Candidate], limit: Finding | None) -> dict[str, Any] | None:
    """What a step takes beyond that of an ideal speedup, by the control arm: what the exchange adds
    and the rest; of the choice, or of the fastest with several workers. None where less than LEAST_LOSS is
    lost, or a rule names the cause."""
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
    check = row["exposed_check"] if row["exchange_overhead_s"] is not None else None
    known_to_s = (
        0.0 if row["iteration_s_high"] is None else (row["iteration_s_high"] - row["iteration_s_low"]) / 2
    )
    rest_s = lost_s - exchange_s
    shares = _shares(row, lost_s, exchange_s, _computation(row, [choice, *others]))
    return {
        **pick(row, "world_size", "local_batch", "iteration_s"),
        "is_strong": row["scaling"] == "strong",
        "ideal_s": step_s - lost_s,
        "exchange_s": exchange_s,
        "is_resolved": check is None or check.kind in ("exposed_times_agree", "exposed_times_differ"),
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
