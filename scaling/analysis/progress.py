"""The progress of a study and its expected end, from its records alone: no server, no samples.

Runs carry the times at which they started and ended, to the second; launches write how long they took to
start. What is left is estimated by world size: the mean length of its ended runs (of all, where none has
ended) for each run, and the median start-up for each launch that is still to come.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import mean, median
from typing import Any

from scaling.analysis.columns import by_key
from scaling.analysis.findings import Finding
from scaling.store import ResultsFolder, RunRecord

KILLED = "killed"  # what such a run is called; its record stays `running`, and the next launch plans it anew


def is_killed(record: RunRecord, folder: ResultsFolder) -> bool:
    """Whether that run was killed on this host; runs of other hosts cannot be checked."""
    if record.state != "running" or record.launch.get("host") != platform.node():
        return False
    if folder.is_locked() or folder.is_locked(f".{record.cell['world_size']}"):
        return False
    # Between the two looks, at the record and at the lock, it may have ended.
    return folder.run(record.cell_id, record.repeat).state == "running"


def seen_state(record: RunRecord, folder: ResultsFolder) -> str:
    """The record's state, or KILLED."""
    return KILLED if is_killed(record, folder) else record.state


OVER = ("done", "failed")
PAUSE_S = 600  # between two runs of one go at a study there is less; a longer gap is a night in between
LONGEST_START_S = 120  # what a launch may take until its first run


@dataclass(frozen=True)
class Progress:
    counts: dict[str, int]  # state -> runs; besides the records' states `killed`, where there are any
    running: list[tuple[RunRecord, float]]  # what runs now, and for how many seconds
    runs_per_hour: float | None  # ended runs over the wall time of this go; None before the first has ended
    left_s: float | None  # estimated seconds to the end; 0 when it is over, None before the first has ended
    # seconds since the last run ended, where something is left and nothing runs; else None
    idle_s: float | None
    last_error: RunRecord | None  # what failed last; None if nothing did
    # what was killed on this host while it ran, and the seconds since it began
    killed: list[tuple[RunRecord, float]] = field(default_factory=list)
    without_record: int = 0  # runs that have samples, but no record

    @property
    def num_runs(self) -> int:
        return sum(self.counts.values())

    @property
    def num_over(self) -> int:
        return sum(self.counts.get(state, 0) for state in OVER)

    @property
    def is_over(self) -> bool:
        return self.num_over == self.num_runs


def progress(folder: ResultsFolder, now: datetime) -> Progress:
    """Reads the progress of a study; StoreError where the folder is none, or a record is damaged."""
    records = folder.require().runs()
    counts = dict.fromkeys(("done", "failed", "running", "planned"), 0)
    states = [seen_state(record, folder) for record in records]
    counts |= Counter(states)
    ended = sorted(
        (record for record in records if record.state in OVER and None not in _times(record)),
        key=lambda record: str(record.launch["finished_at"]),
    )
    begun = [
        (state, (record, _since_s(start, now)))
        for record, state in zip(records, states, strict=True)
        if record.state == "running" and (start := _times(record)[0]) is not None
    ]
    running = [run for state, run in begun if state != KILLED]
    since_s = {_key(record): seconds for record, seconds in running}
    unfinished = [record for record in records if record.state not in OVER]
    failed = [record for record in ended if record.state == "failed"]
    last_end = _times(ended[-1])[1] if ended else None
    return Progress(
        counts=counts,
        running=running,
        runs_per_hour=_runs_per_hour(ended),
        left_s=_left_s(unfinished, ended, since_s, folder.launch_times()),
        idle_s=None if running or not unfinished or last_end is None else _since_s(last_end, now),
        last_error=failed[-1] if failed else None,
        killed=[run for state, run in begun if state == KILLED],
        without_record=len(folder.without_record()),
    )


def _key(record: RunRecord) -> tuple[str, int]:
    return record.cell_id, record.repeat


def _times(record: RunRecord) -> tuple[datetime | None, datetime | None]:
    return _time(record.launch.get("started_at")), _time(record.launch.get("finished_at"))


def _since_s(start: datetime, end: datetime) -> float:
    """Of times in records, whose clock may have been set back meanwhile."""
    return max(0.0, (end - start).total_seconds())


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _length_s(record: RunRecord) -> float:
    start, end = _times(record)
    return 0.0 if start is None or end is None else _since_s(start, end)


def _runs_per_hour(ended: Sequence[RunRecord]) -> float | None:
    """Runs per hour over the wall time from the first start to the last end of this session."""
    this_go: list[RunRecord] = []
    for record in reversed(ended):
        if this_go:
            later, end = _times(this_go[-1])[0], _times(record)[1]
            if later is not None and end is not None and _since_s(end, later) > PAUSE_S:
                break
        this_go.append(record)
    starts = [start for record in this_go if (start := _times(record)[0]) is not None]
    ends = [end for record in this_go if (end := _times(record)[1]) is not None]
    if not starts or not ends:
        return None
    seconds = _since_s(min(starts), max(ends))
    return 3600 * len(this_go) / seconds if seconds > 0 else None


def _left_s(
    unfinished: Sequence[RunRecord],
    ended: Sequence[RunRecord],
    since_s: Mapping[tuple[str, int], float],
    launches: Iterable[Mapping[str, Any]],
) -> float | None:
    if not unfinished:
        return 0.0
    if not ended:
        return None
    by_size = by_key(ended, lambda record: record.cell["world_size"])
    seconds = 0.0
    for record in unfinished:
        expected = mean(map(_length_s, by_size.get(record.cell["world_size"], ended)))
        seconds += max(0.0, expected - since_s.get(_key(record), 0.0))
    planned, running = (
        {(record.repeat, record.cell["world_size"]) for record in unfinished if record.state == state}
        for state in ("planned", "running")
    )
    start_ups_s = [float(launch["start_up_s"]) for launch in launches if launch.get("start_up_s")]
    return seconds + (median(start_ups_s) if start_ups_s else 0.0) * len(planned - running)


@dataclass(frozen=True)
class WallTime:
    """The wall time of a study's launches, in seconds."""

    num_launches: int  # that wrote theirs down
    # of the commands that recorded theirs, and of launches from their start to the end of the last cell
    total_s: float
    # start-up: until the first cell (processes, imports, connections); set-up: of cells (data, replicas,
    # captures); warm-up: iterations that are discarded; measuring: unprofiled and profiled iterations
    inside_s: Mapping[str, float]
    outside_s: Mapping[str, float]

    def parts_s(self) -> dict[str, float]:
        """Part -> seconds; they sum to `total_s`, with `other` for writing, agreeing, failed cells."""
        known_s = sum(self.inside_s.values()) + sum(self.outside_s.values())
        return {**self.inside_s, **self.outside_s, "other": max(0.0, self.total_s - known_s)}

    @property
    def finding(self) -> Finding:
        values = {"total_s": self.total_s, "num_launches": self.num_launches, "parts_s": self.parts_s()}
        return Finding("wall_time", (), values)

    def as_dict(self) -> dict[str, Any]:
        keys = {"start-up": "start_up", "set-up": "setup", "warm-up": "warmup"}
        parts = {f"{keys.get(name, name).replace(' ', '_')}_s": s for name, s in self.parts_s().items()}
        return {"num_launches": self.num_launches, "total_s": self.total_s, **parts}


OUTSIDE = {
    "command": "command_s",
    "predictions": "predictions_s",
    "between launches": "gaps_s",
    "report": "report_s",
}
"""What a command does outside of launches, as people read it -> as it is recorded: its own start, with the
study's reading; predictions before launches; the time between launches; the report."""


def wall_time(
    launches: Sequence[Mapping[str, Any]], commands: Sequence[Mapping[str, Any]] = ()
) -> WallTime | None:
    """The sum over launches, and the commands' time outside of them; None where none wrote down its time."""
    cells = [cell for launch in launches for cell in launch.get("cells") or []]
    total_s = _sum(launches, "total_s")
    if total_s <= 0:
        return None
    outside_s = {name: _sum(commands, key) for name, key in OUTSIDE.items()} if commands else {}
    inside_s = {
        "start-up": _sum(launches, "start_up_s"),
        "set-up": _sum(cells, "setup_s"),
        "warm-up": _sum(cells, "warmup_s"),
        "measuring": _sum(cells, "unprofiled_s") + _sum(cells, "profiled_s") + _sum(cells, "training_s"),
    }
    return WallTime(len(launches), total_s + sum(outside_s.values()), inside_s, outside_s)


def _sum(mappings: Iterable[Mapping[str, Any]], key: str) -> float:
    return sum(float(mapping.get(key) or 0.0) for mapping in mappings)
