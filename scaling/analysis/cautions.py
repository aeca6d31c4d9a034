"""The column `warnings`: what a reader should know before believing a cell's numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from scaling.analysis.columns import OLDER_CODE, SEPARATOR, Row, shares_gpus
from scaling.analysis.formats import listed, number, on_gpus, percent, workers
from scaling.analysis.groups import Group
from scaling.analysis.samples import CellResult
from scaling.measure.stopping import relative_half_width
from scaling.store import CodeChange, RunRecord, changes_since

LARGEST_UNEXPLAINED = 0.05
"""A budget that leaves more of the split step open is not closed."""

LARGEST_LOOKING = 0.05
"""Marks that cost more than this part of the split step disturb what they show."""

LONGEST_THROTTLED = 0.01
"""A GPU whose clocks were held down for more than this part of the window was throttled."""

IN_HOST_MEMORY = "the data set does not fit on the device"
"""So begins the note of a run whose data set stayed in host memory, on any rank."""


def cautions(cell: CellResult, row: Row) -> list[str]:
    """The warnings of a cell, each as `kind: detail`.

    Args:
        cell: with its samples.
        row: its row of the summary, with the budget.
    """
    return [
        *_code_cautions(cell),
        *_sharing_cautions(row),
        *_host_memory_cautions(cell, row),
        *_budget_cautions(row),
        *_gpu_cautions(cell),
        *_precision_cautions(cell),
    ]


def cautions_of(group: Group, most: int | None = None) -> list[str]:
    """The warnings of a group's cells: one text a kind, with the cells that it is about.

    Args:
        group: comparable cells.
        most: a kind tells so many of its warnings, and the number of the rest; None: all.
    """
    kinds: dict[str, dict[str, list[str]]] = {}
    for row in group.rows:
        for caution in filter(None, (row["warnings"] or "").split(SEPARATOR)):
            kind, _, detail = caution.partition(": ")
            name = f"{group.name(row)} on {workers(row['world_size'])}"
            kinds.setdefault(kind, {}).setdefault(detail, []).append(name)
    return [f"{kind}: {_listed(details, most)}" for kind, details in kinds.items()]


def _listed(details: Mapping[str, Sequence[str]], most: int | None) -> str:
    told = [f"{detail} ({', '.join(names)})" for detail, names in details.items()]
    rest = [] if most is None or len(told) <= most + 1 else [f"{len(told) - most} more in summary.csv"]
    return "; ".join([*(told[:most] if rest else told), *rest])


def _code_cautions(cell: CellResult) -> list[str]:
    """Of cells that were measured, wholly or in part, before the code changed how long they take."""
    found: dict[CodeChange, int] = Counter(one for record in cell.done for one in changes_since(record))
    told = []
    for change, count in found.items():
        launches = "measured" if count == len(cell.done) else f"{count} of {len(cell.done)} repeats measured"
        made_at = change.made_at[:16].replace("T", " ")
        told.append(f"{OLDER_CODE}: {launches} before {made_at} UTC; since then {change.what}")
    return told


def _sharing_cautions(row: Row) -> list[str]:
    if not shares_gpus(row):
        return []
    size = row["world_size"]
    left_out = f"seconds and joules are left out, since they are not those of {size} GPUs"
    return [f"shared GPUs: {on_gpus(row)}: the accuracy is that of {size} workers; {left_out}"]


def _host_memory_cautions(cell: CellResult, row: Row) -> list[str]:
    """Of trainings that have seconds: those of workers that share GPUs are left out as it is."""
    if row["kind"] != "convergence" or shares_gpus(row):
        return []
    if not any(note.startswith(IN_HOST_MEMORY) for record in cell.done for note in record.notes):
        return []
    return ["host memory: the data set was copied batch by batch; the seconds hold that"]


def _budget_cautions(row: Row) -> list[str]:
    split_s, found = row["split_iteration_s"], []
    if not split_s:
        return []
    if row["unexplained_s"] > LARGEST_UNEXPLAINED * split_s:
        share = percent(row["unexplained_s"] / split_s)
        found.append(f"unexplained: {share} of the step is in no phase")
    looking_s = row["looking_s"] or 0.0
    if abs(looking_s) > LARGEST_LOOKING * split_s:
        than = "longer" if looking_s > 0 else "shorter"
        share = percent(abs(looking_s) / split_s)
        found.append(f"looking: makes the step {share} {than}")
    return found


def _gpu_cautions(cell: CellResult) -> list[str]:
    throttled: dict[str, set[int]] = {}
    crowded: set[int] = set()
    for record in cell.done:
        for rank, gpu in enumerate(_gpus(record)):
            for reason in _throttle_reasons(gpu):
                throttled.setdefault(reason, set()).add(rank)
            if gpu.get("other_processes"):
                crowded.add(rank)
    found = [f"throttled: {reason}, GPU of {_ranks(ranks)}" for reason, ranks in throttled.items()]
    return [*found, f"other processes: on the GPU of {_ranks(crowded)}"] if crowded else found


def _gpus(record: RunRecord) -> list[Mapping[str, Any]]:
    """What was read of each rank's GPU (`scaling.measure.power`); empty where nothing was."""
    return [gpu or {} for gpu in record.summary.get("gpu") or record.summary.get("power") or []]


def _throttle_reasons(gpu: Mapping[str, Any]) -> list[str]:
    longest_s = LONGEST_THROTTLED * (gpu.get("window_s") or 0.0)
    held_down = [name for name, held_s in (gpu.get("throttled_s") or {}).items() if held_s > longest_s]
    return list(dict.fromkeys([*(gpu.get("throttle_reasons") or []), *held_down]))


def _ranks(ranks: set[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {listed([str(rank) for rank in sorted(ranks)])}"


def _precision_cautions(cell: CellResult) -> list[str]:
    """Of the launch that missed its goal by most, if any stopped before it was reached."""
    goal = cell.cell.get("precision_goal")
    if goal is None:
        return []
    launches = {launch.repeat: launch for launch in cell.launches}
    missed = [
        (relative_half_width(launches[record.repeat].step_s.tolist()), record)
        for record in cell.done
        if record.repeat in launches and record.summary.get("stop_reason") not in (None, "precision")
    ]
    if not missed:
        return []
    half, record = max(missed, key=lambda one: one[0])
    seconds = (record.summary.get("seconds") or {}).get("unsplit")
    after = f"{len(launches[record.repeat].iterations)} iterations"
    if seconds is not None:
        after = f"{number(seconds, digits=2)} s"
    goal_text = f"goal {percent(goal, decimals=0 if goal >= 0.01 else 1)}"
    if math.isinf(half):
        return [f"precision: no 95% interval after {after}, {goal_text}"]
    return [f"precision: 95% interval is +-{percent(half)} after {after}, {goal_text}"]


def joules_per_sample(cell: CellResult) -> float | None:
    """Energy that all GPUs together took for a sample: the median over the repeats, None if one lacks it.

    A rank trains on its share of the samples, so that of all is the mean over the ranks.
    """
    found = []
    for record in cell.done:
        own = [gpu.get("energy_per_sample_j") for gpu in _gpus(record)]
        known = [energy for energy in own if energy is not None]
        if not own or len(known) < len(own):
            return None
        found.append(sum(known) / len(known))
    return median(found) if found else None


def memory_peak_bytes(cell: CellResult) -> int | None:
    """The most that any rank had allocated in any repeat."""
    counts = [count for record in cell.done for count in record.summary.get("memory_peak_bytes") or []]
    return max((int(count) for count in counts if count is not None), default=None)
