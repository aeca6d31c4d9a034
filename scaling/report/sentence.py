"""What the table says, in sentences: who is fastest if anybody is, whether more workers helped.

Two cells differ where their 95% intervals do not overlap and their medians are further apart than the noise
floor; that errs on the side of "cannot be told apart". Control arms are left out: they exchange nothing, so
they bound the others without being a choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from scaling.analysis.columns import SEPARATOR, Row, aggregator_name, is_control_arm, to_rows
from scaling.analysis.formats import interval, listed, milliseconds, percent, ratio, workers
from scaling.analysis.groups import Group, group_rows
from scaling.report.learning_sentences import convergence_findings

FEW = 3
"""So many cells of a host are named."""

MOST_HOSTS = 4

ONE_LAUNCH = "within this launch only"
"""The interval's method (see `scaling.measure.statistics`) that says nothing of other launches."""


@dataclass(frozen=True)
class _Candidate:
    """One row as seconds a sample: comparable under strong and weak scaling alike."""

    row: Row
    name: str
    median: float
    low: float | None
    high: float | None


def findings(table: pd.DataFrame, num_cores: int | None = None) -> list[str]:
    """The findings of a summary, each a plain sentence or two, the most important first.

    Args:
        table: what `summary_table` made.
        num_cores: CPU cores of a node; None where they are unknown.
    """
    rows = to_rows(table)
    if not any(row["repeats"] for row in rows):
        return ["No cell is done yet, so there is nothing to compare.", *_unfinished(rows)]
    groups = group_rows(rows)
    sentences: list[str] = []
    for group in groups:
        if group.kind == "iteration":
            sentences += _iteration_findings(group)
        elif group.kind == "convergence":
            sentences += convergence_findings(group)
    return [*sentences, *_oversubscribed(rows, num_cores), *_several_hosts(rows), *_unfinished(rows)]


def _iteration_findings(group: Group) -> list[str]:
    done = [row for row in group.rows if row["iteration_s"] is not None]
    several = sorted(
        (_candidate(group, row) for row in done if row["world_size"] > 1 and not is_control_arm(row)),
        key=lambda candidate: candidate.median,
    )
    single = _one_worker(group, done)
    if not several:
        return [f"{group.title}: {single.name} takes {_time(single.row)}."] if single else []
    best, others = several[0], several[1:]
    return [f"{group.title}: with several workers, {_leader(best, others)}{_gain(best, single)}"]


def _candidate(group: Group, row: Row) -> _Candidate:
    low, high, batch = row["iteration_s_low"], row["iteration_s_high"], row["global_batch"]
    return _Candidate(
        row,
        f"{group.name(row)} on {workers(row['world_size'])}",
        row["iteration_s"] / batch,
        None if low is None else low / batch,
        None if high is None else high / batch,
    )


def _one_worker(group: Group, done: Sequence[Row]) -> _Candidate | None:
    """The one-worker cell without exchange; where it was not measured, the fastest other one."""
    singles = [row for row in done if row["world_size"] == 1]
    plain = [row for row in singles if aggregator_name(row["aggregator"]) == "none"]
    candidates = [_candidate(group, row) for row in plain or singles]
    return min(candidates, key=lambda candidate: candidate.median, default=None)


def _leader(best: _Candidate, others: Sequence[_Candidate]) -> str:
    measured = f"{_time(best.row)}{_speedup(best.row)}"
    if not others:
        return f"{best.name} takes {measured}."
    lead = "highest throughput" if best.row["scaling"] == "weak" else "lowest median"
    alike = [other.name for other in others if _within_noise(best, other)]
    apart = [other for other in others if not _within_noise(best, other)]
    unknown = [other.name for other in apart if _overlap(best, other) is None]
    close = [other.name for other in apart if _overlap(best, other)]
    noise = f"less than the noise floor of {percent(best.row['noise_floor'])}"
    if unknown:
        return (
            f"the {lead} is that of {best.name}, {measured}; there are too few samples or launches to "
            f"tell it apart from {listed([*alike, *close, *unknown])}."
        )
    if not alike and not close:
        only = "no other interval overlaps with its own"
        return f"the fastest is {best.name}, {measured}; {only}.{_one_launch(best)}"
    reasons = [
        *([f"{listed(close)} cannot be told apart from it (the intervals overlap)"] if close else []),
        *([f"{listed(alike)} {_are(alike)} indistinguishable from it ({noise} apart)"] if alike else []),
    ]
    return (
        f"no single fastest one can be named. The {lead} is that of {best.name}, {measured}, but "
        f"{listed(reasons)}."
    )


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _one_launch(best: _Candidate) -> str:
    if best.row["interval_method"] != ONE_LAUNCH:
        return ""
    return " There was one launch of each world size: others may order them differently."


def _gain(best: _Candidate, single: _Candidate | None) -> str:
    """What the workers brought over one, where that was measured."""
    if single is None:
        return " One worker was not measured, so nothing is said of the speedup."
    overlap, than = _overlap(best, single), f"one worker ({single.name}, {_time(single.row)})"
    if _within_noise(best, single):
        return f" It is indistinguishable from {than}: the difference is below the noise floor."
    if overlap is None:
        return f" There are too few samples or launches to tell whether it is faster than {than}."
    if ONE_LAUNCH in (best.row["interval_method"], single.row["interval_method"]):
        return " With one launch of each world size, the ratio to one worker is no more than an indication."
    if overlap:
        return f" It cannot be told apart from {than}: more workers than one did not help measurably."
    if single.median < best.median:
        return f" More workers than one did not help: {than} gets through more samples per second."
    return ""


def _within_noise(first: _Candidate, second: _Candidate) -> bool:
    """Whether the medians differ by no more than two measurements of the very same do."""
    floors = [floor for floor in (first.row["noise_floor"], second.row["noise_floor"]) if floor is not None]
    if not floors:
        return False
    allowed: float = max(floors) * (first.median + second.median) / 2
    return abs(first.median - second.median) <= allowed


def _overlap(first: _Candidate, second: _Candidate) -> bool | None:
    """Whether the intervals share a point; None where one of them does not exist."""
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return None
    return first.low <= second.high and second.low <= first.high


def _time(row: Row) -> str:
    low, high = row["iteration_s_low"], row["iteration_s_high"]
    width = None if low is None or high is None else high - low
    text = f"{milliseconds(row['iteration_s'], width)} ms an iteration"
    if low is None or high is None:
        return f"{text} (too few samples for an interval)"
    where = ", within one launch" if row["interval_method"] == ONE_LAUNCH else ""
    return f"{text} (95% interval {interval(low, high)} ms{where})"


def _speedup(row: Row) -> str:
    return "" if row["speedup"] is None else f", {ratio(row['speedup'])} times the throughput of one worker"


def _oversubscribed(rows: Sequence[Row], num_cores: int | None) -> Iterator[str]:
    if num_cores is None:
        return
    crowded = [
        row
        for row in rows
        if row["device"] == "cpu"
        and row["world_size"] // (row["num_nodes"] or 1) * row["threads"] > num_cores
    ]
    if crowded:
        sizes = sorted({(row["world_size"], row["threads"]) for row in crowded})
        what = listed([f"{size} x {threads}" for size, threads in sizes])
        yield (
            f"Workers x threads exceeded the {num_cores} CPU cores of a machine ({what}): those workers took "
            "turns on the same cores, so their times say little about how the training really scales."
        )


def _several_hosts(rows: Sequence[Row]) -> Iterator[str]:
    """Machines of one type are not equally fast, nor is one after a restart.

    Where a run recorded which start of its host it belongs to, that tells machines apart: the names of
    containers change on one machine, and several machines may have one name.
    """
    on: dict[str, list[tuple[str, Row]]] = {}
    for row in rows:
        for host in row["hosts"].split(SEPARATOR) if row["hosts"] else []:
            on.setdefault(host.rpartition("/")[2], []).append((host, row))
    if len(on) < 2:
        return
    told = [_on_host(own) for own in list(on.values())[:MOST_HOSTS]]
    if len(on) > MOST_HOSTS:
        told.append(f"the rest on {len(on) - MOST_HOSTS} more")
    yield (
        f"Not all cells are known to be of one machine between two restarts: {'; '.join(told)}. Times of "
        "different ones may differ by more than their intervals and the noise floor say."
    )


def _on_host(own: Sequence[tuple[str, Row]]) -> str:
    rows = [row for _, row in own]
    names = [f"{row['aggregator']} on {workers(row['world_size'])}" for row in rows if row["aggregator"]]
    few = f" ({listed(list(dict.fromkeys(names)))})" if names and len(rows) <= FEW else ""
    return f"{len(rows)} cell{'s' if len(rows) > 1 else ''} on {own[0][0]}{few}"


def _unfinished(rows: Sequence[Row]) -> Iterator[str]:
    states = {
        "failed": "failed; the reasons are listed with the failed cells",
        "running": "under way",
        "planned": "planned but not measured in full yet",
    }
    for state, what in states.items():
        count = sum(row["state"] == state for row in rows)
        if count:
            yield f"Of {len(rows)} cells, {count} {what}."
