"""The progress of a study and its expected end, from its records alone: no server, no samples.

Runs carry the times at which they started and ended, to the second; launches write how long they took to
start. What is left is estimated by world size: the mean length of its ended runs (of all, where none has
ended) for each run, and the median start-up for each launch that is still to come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import mean, median
from typing import Any

from scaling.analysis.grouping import by_key
from scaling.analysis.killed import KILLED, seen_state
from scaling.store import ResultsFolder, RunRecord

OVER = ("done", "failed")
PAUSE_S = 600
"""Between two runs of one go at a study there is less; a longer gap is a night in between."""

LONGEST_START_S = 120
"""What a launch may take until its first run."""


@dataclass(frozen=True)
class Progress:
    """The progress of a study.

    Attributes:
        counts: state -> runs; besides the records' states `killed`, where there are any.
        running: what runs now, and for how many seconds.
        killed: what was killed on this host while it ran, and the seconds since it began.
        without_record: runs that have samples, but no record.
        runs_per_hour: ended runs over the wall time of this go; None before the first has ended.
        left_s: estimated seconds to the end; 0 when it is over, None before the first has ended.
        idle_s: seconds since the last run ended, where something is left and nothing runs; else None.
        last_error: what failed last; None if nothing did.
    """

    counts: dict[str, int]
    running: list[tuple[RunRecord, float]]
    runs_per_hour: float | None
    left_s: float | None
    idle_s: float | None
    last_error: RunRecord | None
    killed: list[tuple[RunRecord, float]] = field(default_factory=list)
    without_record: int = 0

    @property
    def num_runs(self) -> int:
        """The number of all runs."""
        return sum(self.counts.values())

    @property
    def num_over(self) -> int:
        """The number of runs that are done or failed."""
        return sum(self.counts.get(state, 0) for state in OVER)

    @property
    def is_over(self) -> bool:
        """Whether no run is left."""
        return self.num_over == self.num_runs


def progress(folder: ResultsFolder, now: datetime) -> Progress:
    """Reads the progress of a study.

    Raises:
        StoreError: the folder is none, or a record is damaged.
    """
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
        left_s=_left_s(unfinished, ended, since_s, _start_up_s(folder.launch_times())),
        idle_s=None if running or not unfinished or last_end is None else _since_s(last_end, now),
        last_error=failed[-1] if failed else None,
        killed=[run for state, run in begun if state == KILLED],
        without_record=len(folder.without_record()),
    )


def _key(record: RunRecord) -> tuple[str, int]:
    return record.cell_id, record.repeat


def _times(record: RunRecord) -> tuple[datetime | None, datetime | None]:
    """When the run started and ended; None if not recorded."""
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
    start_up_s: float,
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
    return seconds + start_up_s * len(planned - running)


def _start_up_s(launches: Iterable[Mapping[str, Any]]) -> float:
    """The median start-up time of the launches that recorded it; 0 if none did."""
    known = [float(launch["start_up_s"]) for launch in launches if launch.get("start_up_s")]
    return median(known) if known else 0.0
