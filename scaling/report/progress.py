"""How fast a study goes on, in words and for JSON (`scaling.analysis.progress`)."""

from __future__ import annotations

from typing import Any

from scaling.analysis.progress import LONGEST_START_S, Progress
from scaling.axes import workers
from scaling.files.texts import folded
from scaling.report.formats import duration
from scaling.report.status import without_model
from scaling.store import RunRecord


def progress_lines(progress: Progress) -> list[str]:
    """Each as wide as a terminal: states, what runs, rate and rest, the last error."""
    states = ", ".join(f"{count} {state}" for state, count in progress.counts.items() if count)
    lines = [f"{progress.num_over}/{progress.num_runs} runs over: {states}"]
    lines += [f"now: {run_name(run)}, for {duration(seconds)}" for run, seconds in progress.running]
    lines += [
        f"killed while it ran: {run_name(run)}, begun {duration(seconds)} ago"
        for run, seconds in progress.killed
    ]
    if progress.without_record:
        lines.append(f"{progress.without_record} more have samples, but no record: `scaling status`")
    if progress.idle_s is not None:
        perhaps = " (a launch may be starting)" if progress.idle_s < LONGEST_START_S else ""
        lines.append(f"nothing runs now{perhaps}; the last run ended {duration(progress.idle_s)} ago")
    if not progress.is_over and progress.runs_per_hour is not None and progress.left_s is not None:
        lines.append(f"{progress.runs_per_hour:.0f} runs an hour, about {duration(progress.left_s)} left")
    if progress.last_error is not None:
        lines.append(f"last error: {run_name(progress.last_error)}: {progress.last_error.reason}")
    return [folded("", line, indent=2) for line in lines]


def progress_as_dict(progress: Progress) -> dict[str, Any]:
    last = progress.last_error
    return {
        "counts": progress.counts,
        "num_runs": progress.num_runs,
        "num_over": progress.num_over,
        "is_over": progress.is_over,
        "running": [{"cell": run_name(run), "seconds": seconds} for run, seconds in progress.running],
        "killed": [{"cell": run_name(run), "seconds": seconds} for run, seconds in progress.killed],
        "without_record": progress.without_record,
        "runs_per_hour": progress.runs_per_hour,
        "left_s": progress.left_s,
        "idle_s": progress.idle_s,
        "last_error": None if last is None else {"cell": run_name(last), "reason": str(last.reason)},
    }


def run_name(record: RunRecord) -> str:
    """`ring on 4 workers, repeat 2`; of cells without an aggregator, their kind or experiment."""
    cell = record.cell
    what = cell.get("aggregator_label") or cell.get("aggregator") or without_model(cell)
    replicate = " (A/A replicate)" if cell.get("aa_replicate") else ""
    model = f", {cell['model_label']}" if cell.get("model_label") else ""
    return f"{what}{replicate} on {workers(cell['world_size'])}{model}, repeat {record.repeat}"
