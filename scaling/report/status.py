"""How far a study is and how fast it goes on, in words: states, what runs, what is left. Reads no samples."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import Any

from scaling.analysis.columns import TRANSFER, Row, by_key, is_aa_replicate, to_rows
from scaling.analysis.progress import KILLED, LONGEST_START_S, Progress, seen_state
from scaling.analysis.samples import CellResult, read_records
from scaling.analysis.summary import build_table, study_name
from scaling.axes import Axis, Role, with_columns, workers
from scaling.files.texts import WIDTH, folded
from scaling.report.formats import duration
from scaling.store import ResultsFolder, RunRecord

COLUMNS = (
    *("cell_id", "kind", "model", "dataset", "aggregator", "step", "world_size", "global_batch"),
    *("aa_replicate", "state", "reason"),
)
"""Of a summary's row, what a cell's state is shown with."""

MOST_OF_STATES = 20  # characters of a cell's states side by side; what is longer is counted or folded


def status_table(folder: ResultsFolder) -> list[dict[str, Any]]:
    """The state of every cell, in the summary's order. Raises StoreError: the folder is none, or a record is
    damaged.

    One dict a cell: cell_id, kind, model, dataset, aggregator (labels), step, world_size, global_batch,
    aa_replicate (1 for the second cell of an A/A pair), state (of the cell), states (one a repeat, in their
    order; of a run that was killed by force `killed`), reason (why it failed, or what the last launch lacked
    that left it planned; else None), num_waiting (runs left planned so), name (what sets it apart from the
    others of its model). A cell of which runs have samples, but no record, has a dict more, of state `no
    record`; what nobody knows of it is None."""
    folder.require()
    records = read_records(folder)
    cells = [CellResult(cell_id, of_cell[0].cell, of_cell, [], []) for cell_id, of_cell in records.items()]
    rows = to_rows(build_table(study_name(folder), cells))
    lost = without_record(folder)
    differing = {model: _differing(same) for model, same in by_key(rows, _of_model).items()}
    shown = []
    for row in rows:
        of_cell = records[row["cell_id"]]
        states = [seen_state(record, folder) for record in of_cell]
        # What a launch has left planned, since it lacked what it needs.
        waiting = [one.reason for one in of_cell if one.state == "planned" and one.reason is not None]
        name = _name(row, differing[_of_model(row)]) if row["model"] else without_model(of_cell[0].cell)
        shown.append(
            {
                **{name: row[name] for name in COLUMNS},
                "state": KILLED if row["state"] == "running" and KILLED in states else row["state"],
                "reason": row["reason"] or next(iter(waiting), None),
                "num_waiting": len(waiting),
                "states": states,
                "name": name,
            }
        )
    for cell_id, repeats in lost.items():
        known = {"cell_id": cell_id, "state": NO_RECORD, "reason": lost_text(cell_id, repeats)}
        states = [NO_RECORD] * len(repeats)
        shown.append({**dict.fromkeys(COLUMNS), **known, "num_waiting": 0, "states": states, "name": cell_id})
    return shown


NO_RECORD = "no record"  # state of a run that has samples, but no run.json


def without_record(folder: ResultsFolder) -> dict[str, list[int]]:
    """Cell id -> the repeats that have samples, but no record."""
    found = by_key(folder.without_record(), lambda run: run[0])
    return {cell_id: [repeat for _, repeat in runs] for cell_id, runs in found.items()}


def lost_text(cell_id: str, repeats: Sequence[int]) -> str:
    which = f"repeat{'s' * (len(repeats) > 1)} {', '.join(map(str, repeats))}"
    return (
        f"cell {cell_id}, {which}: samples without a record: run.json is gone; `scaling run` with the same "
        "study measures it again and keeps the samples"
    )


def without_model(cell: Mapping[str, Any]) -> str:
    """`kernel-choices, AlexNet 5x5, float32`: what a cell of an experiment or of transfers is called."""
    point = [str(value) for value in (cell.get("point") or {}).values()]
    access = {True: "peer access on", False: "peer access off"}.get(cell.get("peer_access") or False)
    parts = [str(cell.get("experiment") or cell["kind"]), *point]
    if cell["kind"] == TRANSFER and access:
        parts.append(access)
    return ", ".join([*parts, str(cell.get("device") or "")]).rstrip(", ")


_of_model = itemgetter("kind", "model")


def _differing(rows: Sequence[Row]) -> list[Axis]:
    differing = []
    for axis in with_columns(role=Role.CHOSEN | Role.RECIPE | Role.REPETITION):
        values = {row[axis.key] for row in rows}
        if len(values - {None} if axis.role & Role.RECORDED else values) > 1:
            differing.append(axis)
    return differing


def _name(row: Row, differing: Sequence[Axis]) -> str:
    """The aggregator, what else sets it apart from its model's cells, and whether it is an A/A replicate."""
    parts = [str(row["aggregator"] or "")]
    parts += [axis.text(row[axis.key], short=True) for axis in differing if row[axis.key] is not None]
    return ", ".join(filter(None, parts)) + (" (A/A replicate)" if is_aa_replicate(row) else "")


def describe_status(rows: list[dict[str, Any]]) -> str:
    lost = [folded("", row["reason"], indent=2) for row in rows if row.get("state") == NO_RECORD]
    rows = [row for row in rows if row.get("state") != NO_RECORD]
    if lost and not rows:
        return "\n".join(lost)
    lines: list[str] = []
    models = list(dict.fromkeys(row.get("model") for row in rows))
    for model in models:
        of_model = [row for row in rows if row.get("model") == model]
        if len(models) > 1:
            lines.append(f"{model or 'without a model'}:")
        room = min(MOST_OF_STATES, max(len(_states(row)) for row in of_model))
        widest = WIDTH - len(_start(of_model[0])) - 1 - room
        width = min(widest, max(len(_shown(row)) for row in of_model))
        lines += [line for row in of_model for line in _lines(row, width)]
    return "\n".join([*lines, *lost, folded("", what_is_left(rows), indent=2)])


def _lines(row: dict[str, Any], width: int) -> Iterator[str]:
    """The cell's name and its states side by side, both folded where they must be; then why it failed."""
    start = _start(row)
    names = textwrap.wrap(_shown(row), width, break_on_hyphens=False)
    states = textwrap.wrap(_states(row), WIDTH - len(start) - width - 1)
    line = ""
    for at, (name, state) in enumerate(zip_longest(names, states, fillvalue="")):
        if at:
            yield line
        line = f"{start if not at else '':{len(start)}}{name:{width}} {state}".rstrip()
    reason = f"  {row['reason'] or ''}".rstrip()
    fits = len(line) + len(reason) <= WIDTH
    yield line + reason if fits else line
    if not fits:
        yield folded("    ", reason.strip())


def _start(row: dict[str, Any]) -> str:
    return f"{row['kind']:11} {row['world_size']:3} x "


def _states(row: dict[str, Any]) -> str:
    every = ", ".join(row["states"])
    if len(every) <= MOST_OF_STATES:
        return every
    return ", ".join(f"{number} {state}" for state, number in Counter(row["states"]).items())


def _shown(row: dict[str, Any]) -> str:
    return row.get("name", row["aggregator"]) or ""


def what_is_left(rows: list[dict[str, Any]]) -> str:
    """One sentence: the runs that are neither done nor failed, by world size."""
    num_runs = sum(len(row["states"]) for row in rows)
    num_failed = sum(row["states"].count("failed") for row in rows)
    failed = f"; {num_failed} failed, `--retry-failed` runs them again" if num_failed else ""
    left: Counter[int] = Counter()
    for row in rows:
        left[row["world_size"]] += sum(state not in ("done", "failed") for state in row["states"])
    parts = [
        f"{number} with {size} worker{'s' * (size > 1)}" for size, number in sorted(left.items()) if number
    ]
    if not parts:
        return f"nothing is left of {num_runs} runs{failed}"
    how_many = f"{sum(left.values())} of {num_runs} runs are left: {', '.join(parts)}"
    num_waiting = sum(row["num_waiting"] for row in rows)
    others = f"; {num_waiting} of them need another launch, as said above" if num_waiting else ""
    goes_on = "; the same `run` or `submit` goes on" if sum(left.values()) > num_waiting else ""
    return f"{how_many}{goes_on}{others}{failed}"


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
    last, own = progress.last_error, ("counts", "num_runs", "num_over", "is_over", "without_record")
    return {
        **{name: getattr(progress, name) for name in (*own, "runs_per_hour", "left_s", "idle_s")},
        "running": [{"cell": run_name(run), "seconds": seconds} for run, seconds in progress.running],
        "killed": [{"cell": run_name(run), "seconds": seconds} for run, seconds in progress.killed],
        "last_error": None if last is None else {"cell": run_name(last), "reason": str(last.reason)},
    }


def run_name(record: RunRecord) -> str:
    """`ring on 4 workers, repeat 2`; of cells without an aggregator, their kind or experiment."""
    cell = record.cell
    what = cell.get("aggregator_label") or cell.get("aggregator") or without_model(cell)
    replicate = " (A/A replicate)" if cell.get("aa_replicate") else ""
    model = f", {cell['model_label']}" if cell.get("model_label") else ""
    return f"{what}{replicate} on {workers(cell['world_size'])}{model}, repeat {record.repeat}"
